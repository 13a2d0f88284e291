// The parameters of the oneDNN convolution Ops, as words.
#ifndef DNNOPS_ONEDNN_CONV_PARAMS_HPP
#define DNNOPS_ONEDNN_CONV_PARAMS_HPP

#include "../../abi/python/dnnops_onednn.h"
#include "../../common/conv_problem.hpp"
#include "../../common/op.hpp"

namespace dnnops {

enum ConvAlgorithm : int64_t { ALGORITHM_AUTO = 0, ALGORITHM_DIRECT = 1, ALGORITHM_NAMED = 2 };
constexpr int64_t PLAN_NAME_SIZE = DNNOPS_PLAN_NAME_SIZE;

// The words that parameters() in dnnops/cpu/conv.py returns.
struct ConvParams {
  int64_t direction, algorithm;
  ConvGeometry geometry;
  int64_t verbose;
  char name[PLAN_NAME_SIZE];  // null-terminated for ALGORITHM_NAMED, otherwise zeros
  int64_t node;  // the node's number; 0 if there is none

  const char *op() const {
    return direction == CONV_FORWARD       ? "OneDnnConv"
           : direction == CONV_GRAD_INPUTS ? "OneDnnConvGradInputs"
                                           : "OneDnnConvGradWeights";
  }
  static int input_count() { return 2; }
};

inline ConvProblem problem_of(const ConvParams &params, const dnnops_tensor *inputs) {
  return conv_problem(params.direction, params.geometry, inputs);
}

}  // namespace dnnops
#endif
