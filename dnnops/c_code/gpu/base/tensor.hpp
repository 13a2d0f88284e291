// Arrays as cuDNN sees them: dtype, sizes and strides in elements, memory formats.
#ifndef DNNOPS_CUDNN_TENSOR_HPP
#define DNNOPS_CUDNN_TENSOR_HPP

#include <cstring>

#include "descriptor.hpp"

namespace dnnops {

constexpr int MAX_RANK = DNNOPS_MAX_RANK;

enum Format : int64_t { FORMAT_OTHER = 0, FORMAT_CONTIGUOUS = 1, FORMAT_CHANNELS_LAST = 2 };

using Tensor = dnnops_cudnn_array;

cudnnDataType_t cudnn_dtype(int64_t dtype);

inline int64_t alignment_of(const void *pointer) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  return address % 16 == 0 ? 16 : static_cast<int64_t>(address & (~address + 1));
}

// Reads an operand. Rank 3 becomes 4 with a unit axis before the spatial one. Throws if a stride is not a
// positive multiple of the item size, unless the array is empty.
Tensor read_tensor(const dnnops_tensor &operand);

// The formats in which an array is dense, as a bit mask; the stride of its first axis may be larger. An empty
// array is dense in all of them.
int64_t dense_formats(const Tensor &tensor);

// The preferred format if the array is dense in it, otherwise the other one if it is dense in that, or 0.
inline int64_t dense_format(const Tensor &tensor, int64_t preferred) {
  const int64_t formats = dense_formats(tensor);
  return formats & preferred ? preferred : formats;
}

// Makes an array dense.
void set_dense_strides(Tensor &tensor, int64_t format);

// Sets the strides of unit axes, which may have any value, to those of a dense array.
void canonicalize(Tensor &tensor, int64_t format);

// Uses one format for all arrays: channels last if an array has no other format, otherwise contiguous. Arrays
// that are not dense keep their strides.
void canonicalize_together(Tensor *const *tensors, int count);

// Whether the first axis is dense as well.
bool is_packed(const Tensor &tensor);

int64_t elements(const Tensor &tensor);

// Makes and sets a legacy descriptor. Throws DNNOPS_NOT_SUPPORTED if 32-bit sizes cannot describe the array.
TensorDescriptor tensor_descriptor(const Tensor &tensor, int64_t dtype);
void set_descriptor(legacy::Descriptor descriptor, const Tensor &tensor, int64_t dtype);

// Legacy functions use 32-bit sizes and strides, and arrays of less than 2**31 elements.
void require_32_bit(const Tensor &tensor);

void to_int(const int64_t *from, int count, int *to);

// Fills in the dtype, shape and dense strides of an output.
void describe_output(dnnops_tensor &output, int64_t dtype, const int64_t *shape, int64_t ndim, int64_t format);

// A scaling factor in the type that cuDNN requires for arrays of a dtype.
struct Scalar {
  Scalar(double value, int64_t dtype) : is_double(dtype == DNNOPS_FLOAT64), as_double(value), as_float(static_cast<float>(value)) {}
  const void *pointer() const { return is_double ? static_cast<const void *>(&as_double) : &as_float; }
  bool is_double;
  double as_double;
  float as_float;
};

}  // namespace dnnops
#endif
