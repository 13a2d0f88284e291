// Convolution of 3 x 3 float32 filters by Winograd's F(4 x 4, 3 x 3), forward and both gradients.
//
// A tile of 4 x 4 outputs takes 36 multiplications a pair of channels instead of 144.  S. Winograd,
// Arithmetic Complexity of Computations (1980); A. Lavin and S. Gray, Fast Algorithms for
// Convolutional Neural Networks (CVPR 2016).
//
// A pixel that is not finite spoils all outputs of the tiles that read it, so some that a direct
// convolution would leave alone.  The same number of threads gives the same bits.
#ifndef DNNOPS_ONEDNN_WINOGRAD_HPP
#define DNNOPS_ONEDNN_WINOGRAD_HPP

#include "../common/conv_problem.hpp"

namespace dnnops {

// Why conv_winograd() can't compute this float32 problem; null if it can.
const char *winograd_obstacle(const ConvProblem &problem);
// Why it isn't used for one that it can compute, where oneDNN is faster; null if it is used.
const char *winograd_drawback(const ConvProblem &problem);
inline bool winograd_suits(const ConvProblem &problem) {
  return !winograd_obstacle(problem) && !winograd_drawback(problem);
}

// Inputs and output of any strides, as the Ops get them.
void conv_winograd(const ConvProblem &problem, const dnnops_tensor *inputs, dnnops_tensor &output);

// The scratch memory that this takes.
int64_t winograd_scratch_bytes(const ConvProblem &problem, const dnnops_tensor *inputs, dnnops_tensor &output);

}  // namespace dnnops
#endif
