#include "tensor.hpp"

#include <climits>

namespace dnnops {

namespace {

// The axes from the fastest to the slowest, without the first one.
void axis_order(int64_t ndim, int64_t format, int *order) {
  int count = 0;
  if (format == FORMAT_CHANNELS_LAST) order[count++] = 1;
  for (int axis = static_cast<int>(ndim) - 1; axis >= (format == FORMAT_CHANNELS_LAST ? 2 : 1); --axis)
    order[count++] = axis;
}

bool is_dense(const Tensor &tensor, int64_t format) {
  int order[MAX_RANK];
  axis_order(tensor.ndim, format, order);
  int64_t expected = 1;
  if (!elements(tensor)) return true;  // whatever its strides
  for (int i = 0; i < tensor.ndim - 1; ++i) {
    const int axis = order[i];
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != expected) return false;
    expected *= tensor.shape[axis];
  }
  return tensor.shape[0] == 1 || tensor.strides[0] >= expected;
}

}  // namespace

cudnnDataType_t cudnn_dtype(int64_t dtype) {
  switch (dtype) {
    case DNNOPS_FLOAT32: return CUDNN_DATA_FLOAT;
    case DNNOPS_FLOAT64: return CUDNN_DATA_DOUBLE;
    case DNNOPS_FLOAT16: return CUDNN_DATA_HALF;
    case DNNOPS_BFLOAT16: return CUDNN_DATA_BFLOAT16;
    default: fail(DNNOPS_TYPE_ERROR, "expected float16, bfloat16, float32 or float64, got %s", dtype_name(dtype));
  }
}

Tensor read_tensor(const dnnops_tensor &operand) {
  Tensor tensor;
  std::memset(&tensor, 0, sizeof tensor);
  const bool widen = operand.ndim == 3;
  tensor.ndim = operand.ndim + widen;
  if (tensor.ndim < 4 || tensor.ndim > MAX_RANK)
    fail(DNNOPS_TYPE_ERROR, "expected an array of 3 to %d dimensions, got %s", MAX_RANK, describe(operand).c_str());
  const int64_t item = item_size(operand.dtype);
  const bool empty = !element_count(operand.shape, operand.ndim);
  for (int64_t i = 0; i < operand.ndim; ++i) {
    const int64_t axis = i + (widen && i == 2);
    tensor.shape[axis] = operand.shape[i];
    tensor.strides[axis] = operand.strides[i] / item;
    // The strides of an empty array are meaningless; CuPy's may be 0.
    if (!empty && operand.shape[i] > 1 && (operand.strides[i] <= 0 || operand.strides[i] % item))
      fail(DNNOPS_NOT_SUPPORTED, "cuDNN requires positive strides that are multiples of the item size, got %s",
           describe(operand).c_str());
  }
  if (widen) tensor.shape[2] = tensor.strides[2] = 1;
  tensor.alignment = alignment_of(operand.data);
  return tensor;
}

int64_t dense_formats(const Tensor &tensor) {
  int64_t formats = FORMAT_OTHER;
  for (int64_t format : {FORMAT_CONTIGUOUS, FORMAT_CHANNELS_LAST})
    if (is_dense(tensor, format)) formats |= format;
  return formats;
}

void set_dense_strides(Tensor &tensor, int64_t format) {
  int order[MAX_RANK];
  axis_order(tensor.ndim, format, order);
  int64_t step = 1;
  for (int i = 0; i < tensor.ndim - 1; ++i) {
    tensor.strides[order[i]] = step;
    step *= tensor.shape[order[i]];
  }
  tensor.strides[0] = step;
}

void canonicalize(Tensor &tensor, int64_t format) {
  int order[MAX_RANK];
  axis_order(tensor.ndim, format, order);
  int64_t expected = 1;
  for (int i = 0; i < tensor.ndim - 1; ++i) {
    const int axis = order[i];
    if (tensor.shape[axis] == 1) tensor.strides[axis] = expected;
    if (tensor.strides[axis] * tensor.shape[axis] > expected) expected = tensor.strides[axis] * tensor.shape[axis];
  }
  if (tensor.shape[0] == 1) tensor.strides[0] = expected;
}

void canonicalize_together(Tensor *const *tensors, int count) {
  int64_t common = FORMAT_CONTIGUOUS;
  for (int i = 0; i < count; ++i)
    if (dense_formats(*tensors[i]) == FORMAT_CHANNELS_LAST) common = FORMAT_CHANNELS_LAST;
  for (int i = 0; i < count; ++i) {
    const int64_t formats = dense_formats(*tensors[i]);
    canonicalize(*tensors[i], formats & common || !formats ? common : formats);
  }
}

bool is_packed(const Tensor &tensor) {
  const int64_t count = elements(tensor);
  return dense_formats(tensor) && (!count || tensor.shape[0] == 1 || tensor.strides[0] == count / tensor.shape[0]);
}

int64_t elements(const Tensor &tensor) {
  int64_t count = 1;
  for (int64_t i = 0; i < tensor.ndim; ++i) count *= tensor.shape[i];
  return count;
}

void require_32_bit(const Tensor &tensor) {
  int64_t last = 0;
  bool fits = true;
  for (int64_t i = 0; i < tensor.ndim; ++i) {
    fits = fits && tensor.shape[i] <= INT_MAX && tensor.strides[i] <= INT_MAX;
    last += (tensor.shape[i] - 1) * tensor.strides[i];
  }
  if (!fits || last >= INT_MAX)
    fail(DNNOPS_NOT_SUPPORTED, "cuDNN's legacy API takes arrays of less than 2**31 elements, got shape %s",
         list_of(tensor.shape, tensor.ndim).c_str());
}

void to_int(const int64_t *from, int count, int *to) {
  for (int i = 0; i < count; ++i) {
    if (from[i] > INT_MAX) fail(DNNOPS_NOT_SUPPORTED, "%lld does not fit cuDNN's legacy API", (long long)from[i]);
    to[i] = static_cast<int>(from[i]);
  }
}

void set_descriptor(legacy::Descriptor descriptor, const Tensor &tensor, int64_t dtype) {
  require_32_bit(tensor);
  int shape[MAX_RANK], strides[MAX_RANK];
  const int ndim = static_cast<int>(tensor.ndim);
  to_int(tensor.shape, ndim, shape);
  to_int(tensor.strides, ndim, strides);
  DNNOPS_LEGACY(cudnnSetTensorNdDescriptor, descriptor, cudnn_dtype(dtype), ndim, shape, strides);
}

TensorDescriptor tensor_descriptor(const Tensor &tensor, int64_t dtype) {
  TensorDescriptor descriptor;
  set_descriptor(descriptor, tensor, dtype);
  return descriptor;
}

void describe_output(dnnops_tensor &output, int64_t dtype, const int64_t *shape, int64_t ndim, int64_t format) {
  output.dtype = dtype;
  output.ndim = ndim;
  int order[DNNOPS_MAX_NDIM];
  axis_order(ndim, format, order);
  int64_t stride = item_size(dtype);
  for (int i = 0; i < ndim; ++i) {
    const int64_t axis = i < ndim - 1 ? order[i] : 0;
    output.shape[axis] = shape[axis];
    output.strides[axis] = stride;
    stride *= shape[axis] > 0 ? shape[axis] : 1;
  }
}

}  // namespace dnnops
