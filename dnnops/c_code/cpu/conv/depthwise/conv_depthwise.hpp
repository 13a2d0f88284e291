// Depthwise convolution, with one channel per group, forward and both gradients, in loops over planes of the plain
// layout.
//
// An infinity or NaN affects the same outputs as in a convolution that skips the border. The same number of threads
// gives the same bits.
#ifndef DNNOPS_ONEDNN_CONV_DEPTHWISE_HPP
#define DNNOPS_ONEDNN_CONV_DEPTHWISE_HPP

#include "../../../common/conv_problem.hpp"

namespace dnnops {

// Why conv_depthwise() cannot compute this float32 problem; null if it can.
const char *depthwise_obstacle(const ConvProblem &problem);
// Why it is not used for a problem that it can compute, because oneDNN is faster; null if it is used.
const char *depthwise_drawback(const ConvProblem &problem);

// The inputs and the output may have any strides.
void conv_depthwise(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output);

// The scratch memory that conv_depthwise() needs.
int64_t depthwise_scratch_bytes(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output);

}  // namespace dnnops
#endif
