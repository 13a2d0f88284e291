// Convolution with float32 filters of one pixel as matrix products in the plain layout, forward and both
// gradients.
//
// A contiguous image is a matrix of channels by pixels, and so is its output: the filters times it. oneDNN's
// convolutions would first reorder the arrays into blocks of channels, which takes longer than the products.
// The same number of threads gives the same bits.
#ifndef DNNOPS_ONEDNN_CONV_PRODUCT_HPP
#define DNNOPS_ONEDNN_CONV_PRODUCT_HPP

#include "../../../common/conv_problem.hpp"

namespace dnnops {

// Why conv_product() cannot compute this float32 problem; null if it can.
const char *product_obstacle(const ConvProblem &problem);
// Why it is not used for a problem that it can compute, because oneDNN is faster; null if it is used.
const char *product_drawback(const ConvProblem &problem);

// The inputs and the output may have any strides.
void conv_product(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output);

// The scratch memory that conv_product() needs.
int64_t product_scratch_bytes(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output);

}  // namespace dnnops
#endif
