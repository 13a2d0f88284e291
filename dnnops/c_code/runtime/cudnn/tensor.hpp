// Arrays as cuDNN sees them: dtype, sizes and strides in elements, memory formats.
#ifndef DNNOPS_CUDNN_TENSOR_HPP
#define DNNOPS_CUDNN_TENSOR_HPP

#include <cstring>

#include "descriptor.hpp"

namespace dnnops {

constexpr int MAX_RANK = 5;

enum Format : int64_t { FORMAT_OTHER = 0, FORMAT_CONTIGUOUS = 1, FORMAT_CHANNELS_LAST = 2 };

// Only 8-byte fields and no padding: a part of cache keys.
struct Tensor {
  int64_t ndim;
  int64_t shape[MAX_RANK];
  int64_t strides[MAX_RANK];  // in elements
  int64_t alignment;          // of the address, in bytes, at most 16
};

cudnnDataType_t cudnn_dtype(int64_t dtype);

inline int64_t alignment_of(const void *pointer) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  return address % 16 == 0 ? 16 : static_cast<int64_t>(address & (~address + 1));
}

// Reads an operand: rank 3 becomes 4 by a unit axis before the spatial one.  Throws if a stride
// is not positive, or no multiple of the item size, unless the array is empty.
Tensor read_tensor(const dnnops_tensor &operand);

// The formats, as a bit mask, in which an array is dense; its first axis may have any larger stride.
// An empty array is dense in all of them.
int64_t dense_formats(const Tensor &tensor);

// Of these formats the preferred one, if the array is dense in it.
inline int64_t dense_format(const Tensor &tensor, int64_t preferred) {
  const int64_t formats = dense_formats(tensor);
  return formats & preferred ? preferred : formats;
}

// Makes an array dense.
void set_dense_strides(Tensor &tensor, int64_t format);

// Sets the strides of unit axes, which may have any value, to those of a dense array.
void canonicalize(Tensor &tensor, int64_t format);

// One of the formats for all: channels last if an array has no other, else contiguous.  Arrays
// that are not dense keep their strides.
void canonicalize_together(Tensor *const *tensors, int count);

// True if the first axis is dense as well.
bool is_packed(const Tensor &tensor);

int64_t elements(const Tensor &tensor);

// Makes and sets a legacy descriptor; throws DNNOPS_NOT_SUPPORTED for an array that 32-bit sizes can't describe.
TensorDescriptor tensor_descriptor(const Tensor &tensor, int64_t dtype);
void set_descriptor(legacy::Descriptor descriptor, const Tensor &tensor, int64_t dtype);

// Legacy functions take 32-bit sizes and strides, and arrays of less than 2**31 elements.
void require_32_bit(const Tensor &tensor);

void to_int(const int64_t *from, int count, int *to);

// Fills in the dtype, shape and dense strides of an output.
void describe_output(dnnops_tensor &output, int64_t dtype, const int64_t *shape, int64_t ndim, int64_t format);

// A scaling factor in the type that cuDNN wants for arrays of a dtype.
struct Scalar {
  Scalar(double value, int64_t dtype) : is_double(dtype == DNNOPS_FLOAT64), as_double(value), as_float(static_cast<float>(value)) {}
  const void *pointer() const { return is_double ? static_cast<const void *>(&as_double) : &as_float; }
  bool is_double;
  double as_double;
  float as_float;
};

}  // namespace dnnops
#endif
