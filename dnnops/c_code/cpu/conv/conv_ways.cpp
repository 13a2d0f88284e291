#include "conv_ways.hpp"

#include <algorithm>
#include <cstring>

#include "../base/plan.hpp"

namespace dnnops {

const std::array<OwnWay, 3> &own_ways() {
  static const std::array<OwnWay, 3> ways = {{winograd_way, product_way, depthwise_way}};
  return ways;
}

const OwnWay &own_way(ConvWay way) {
  return *std::find_if(own_ways().begin(), own_ways().end(), [&](const OwnWay &own) { return own.way == way; });
}

std::string own_names(const ConvProblem &problem) {
  std::string names;
  for (const OwnWay &own : own_ways())
    if (!own.obstacle(problem)) names += (names.empty() ? "" : ", ") + std::string(own.name);
  return names;
}

ConvWay conv_way(const ConvParams &params, const ConvProblem &problem, int64_t dtype) {
  if (dtype == DNNOPS_FLOAT64) {
    if (params.algorithm == ALGORITHM_NAMED && std::strcmp(params.name, BLAS_NAME) != 0)
      fail(DNNOPS_VALUE_ERROR, "there is no plan %s in float64; there is: %s", params.name, BLAS_NAME);
    return ConvWay::BLAS;
  }
  dnnl_dtype(dtype);
  for (const OwnWay &own : own_ways()) {
    if (params.algorithm == ALGORITHM_AUTO && own.suits(problem)) return own.way;
    if (params.algorithm != ALGORITHM_NAMED || std::strcmp(params.name, own.name) != 0) continue;
    if (const char *obstacle = own.obstacle(problem))
      fail(DNNOPS_NOT_SUPPORTED, "the plan %s cannot be run: %s", params.name, obstacle);
    return own.way;
  }
  return ConvWay::ONEDNN;
}

}  // namespace dnnops
