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

// Whether conv_winograd() computes this float32 problem, and faster than oneDNN does.
bool winograd_suits(const ConvProblem &problem);

// Inputs and output of any strides, as the Ops get them.
void conv_winograd(const ConvProblem &problem, const dnnops_tensor *inputs, dnnops_tensor &output);

}  // namespace dnnops
#endif
