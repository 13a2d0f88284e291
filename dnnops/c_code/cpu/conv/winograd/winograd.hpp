// Convolution with 3 x 3 float32 filters by Winograd's F(4 x 4, 3 x 3), forward and both gradients.
//
// A tile of 4 x 4 outputs takes 36 multiplications per pair of channels instead of 144. S. Winograd,
// Arithmetic Complexity of Computations (1980); A. Lavin and S. Gray, Fast Algorithms for Convolutional
// Neural Networks (CVPR 2016).
//
// A pixel that is not finite affects all outputs of the tiles that read it, including some that a direct
// convolution would not affect. The same number of threads gives the same bits.
#ifndef DNNOPS_ONEDNN_WINOGRAD_HPP
#define DNNOPS_ONEDNN_WINOGRAD_HPP

#include "../../../common/conv_problem.hpp"

namespace dnnops {

// Why conv_winograd() cannot compute this float32 problem; null if it can.
const char *winograd_obstacle(const ConvProblem &problem);
// Why it is not used for a problem that it can compute, because oneDNN is faster; null if it is used.
const char *winograd_drawback(const ConvProblem &problem);

// The inputs and the output may have any strides.
void conv_winograd(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output);

// The scratch memory that conv_winograd() needs.
int64_t winograd_scratch_bytes(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output);

}  // namespace dnnops
#endif
