// Copies of arrays whose strides a library does not support.
#ifndef DNNOPS_ONEDNN_PACK_HPP
#define DNNOPS_ONEDNN_PACK_HPP

#include "../../abi/dnnops_runtime.h"

namespace dnnops {

// Whether elements are adjacent, in C order, and aligned.
bool is_contiguous(const dnnops_tensor &tensor);

// Copies an array of any strides and dtype into a contiguous one, optionally reversing the spatial axes of
// each filter.
void pack(const dnnops_tensor &from, void *to, bool flip_spatial);

// Copies the other way.
void unpack(const void *from, const dnnops_tensor &to, bool flip_spatial);

// Copies a float32 matrix with any strides to another of the same shape.
void copy_matrix(const dnnops_tensor &from, const dnnops_tensor &to);

}  // namespace dnnops
#endif
