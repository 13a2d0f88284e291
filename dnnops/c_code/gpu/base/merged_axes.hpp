// Contiguous arrays viewed with the fewest axes that describe an operation along some of them.
#ifndef DNNOPS_CUDNN_MERGED_AXES_HPP
#define DNNOPS_CUDNN_MERGED_AXES_HPP

#include <climits>

#include "tensor.hpp"

namespace dnnops {

// cuDNN's legacy descriptors have at least 4 axes here, a number that all of its functions support, and at most 8.
constexpr int MIN_MERGED = 4;

struct MergedAxes {
  int count = 0;
  int64_t shape[DNNOPS_MAX_NDIM];
  bool marked[DNNOPS_MAX_NDIM];  // axes that are reduced or broadcast
};

// Adjacent axes that are both marked or both unmarked become one axis; axes of length 1 are dropped.
inline MergedAxes merge_axes(const int64_t *shape, int64_t ndim, const bool *marked) {
  MergedAxes merged;
  for (int64_t i = 0; i < ndim; ++i) {
    if (shape[i] == 1) continue;
    if (merged.count && merged.marked[merged.count - 1] == marked[i]) {
      merged.shape[merged.count - 1] *= shape[i];
    } else {
      merged.shape[merged.count] = shape[i];
      merged.marked[merged.count++] = marked[i];
    }
  }
  return merged;
}

// Describes the contiguous array with these axes; with `squeezed`, the marked axes have length 1.
inline void set_merged_descriptor(legacy::Descriptor descriptor, const MergedAxes &axes, bool squeezed, int64_t dtype) {
  int shape[DNNOPS_MAX_NDIM], strides[DNNOPS_MAX_NDIM];
  const int count = axes.count < MIN_MERGED ? MIN_MERGED : axes.count, unit = count - axes.count;
  int64_t step = 1;
  for (int i = count - 1; i >= 0; --i) {
    const int64_t length = i < unit || (squeezed && axes.marked[i - unit]) ? 1 : axes.shape[i - unit];
    strides[i] = static_cast<int>(step);
    step *= length;
    if (step > INT_MAX)
      fail(DNNOPS_NOT_SUPPORTED, "cuDNN's legacy API takes arrays of less than 2**31 elements, got shape %s merged",
           list_of(axes.shape, axes.count).c_str());
    shape[i] = static_cast<int>(length);
  }
  DNNOPS_LEGACY(cudnnSetTensorNdDescriptor, descriptor, cudnn_dtype(dtype), count, shape, strides);
}

inline void require_contiguous(const dnnops_tensor &array) {
  int64_t stride = item_size(array.dtype);
  if (!element_count(array.shape, array.ndim)) return;
  for (int64_t i = array.ndim - 1; i >= 0; --i) {
    if (array.shape[i] != 1 && array.strides[i] != stride)
      fail(DNNOPS_NOT_SUPPORTED, "expected contiguous arrays, got %s", describe(array).c_str());
    stride *= array.shape[i];
  }
}

}  // namespace dnnops
#endif
