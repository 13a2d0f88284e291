// The ways to compute a convolution on the CPU.
#ifndef DNNOPS_ONEDNN_CONV_WAYS_HPP
#define DNNOPS_ONEDNN_CONV_WAYS_HPP

#include <array>
#include <string>

#include "conv_params.hpp"

namespace dnnops {

// Which code computes a convolution; dnnops/plans/cpu.py reads these numbers.
enum class ConvWay { BLAS, ONEDNN, WINOGRAD, PRODUCT, DEPTHWISE };
constexpr const char *BLAS_NAME = "gemm (BLAS)";

// A way of dnnops' own, for float32 arrays of any strides.
struct OwnWay {
  ConvWay way;
  const char *name;
  // Why it cannot compute a problem; null if it can.
  const char *(*obstacle)(const ConvProblem &problem);
  // Why it is not used for a problem that it can compute, because oneDNN is faster; null if it is used.
  const char *(*drawback)(const ConvProblem &problem);
  void (*compute)(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output);
  // The scratch memory that compute() needs.
  int64_t (*scratch_bytes)(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output);

  bool suits(const ConvProblem &problem) const { return !obstacle(problem) && !drawback(problem); }
};
// Each is defined in a folder of its own.
extern const OwnWay winograd_way, product_way, depthwise_way;
const std::array<OwnWay, 3> &own_ways();
const OwnWay &own_way(ConvWay way);

// The names of those that can compute a problem, separated by commas.
std::string own_names(const ConvProblem &problem);

// The way that the Op uses for these parameters. Throws if nothing supports the dtype, or if a plan is named
// that cannot compute the problem.
ConvWay conv_way(const ConvParams &params, const ConvProblem &problem, int64_t dtype);

}  // namespace dnnops
#endif
