// Views of arrays of any rank with three axes, each merged from adjacent ones.
#ifndef DNNOPS_ONEDNN_VIEWS_HPP
#define DNNOPS_ONEDNN_VIEWS_HPP

#include "plan.hpp"

namespace dnnops {

// Strides are in elements.
struct View {
  int64_t shape[3], strides[3];
};

// Axis i of a view merges the array's axes [bounds[i], bounds[i + 1]).
inline View contiguous_view(const int64_t *bounds, const dnnops_tensor &tensor) {
  View view{{1, 1, 1}, {0, 0, 0}};
  for (int part = 0; part < 3; ++part)
    for (int64_t i = bounds[part]; i < bounds[part + 1]; ++i) view.shape[part] *= tensor.shape[i];
  contiguous_strides(3, view.shape, view.strides);
  return view;
}

// Views an array without copying it. Returns false if axes to be merged are not adjacent in memory.
inline bool strided_view(const int64_t *bounds, const dnnops_tensor &tensor, View &view) {
  view = contiguous_view(bounds, tensor);
  if (is_contiguous(tensor)) return true;
  int64_t strides[DNNOPS_MAX_NDIM];
  if (!addressable_strides(tensor, strides)) return false;
  for (int part = 0; part < 3; ++part) {
    int64_t merged = 0, next = 0;  // counts only axes longer than 1
    for (int64_t i = bounds[part + 1] - 1; i >= bounds[part]; --i) {
      if (tensor.shape[i] == 1) continue;
      if (merged == 0)
        merged = strides[i];
      else if (strides[i] != next)
        return false;
      next = strides[i] * tensor.shape[i];
    }
    if (merged) view.strides[part] = merged;
  }
  return nest_strides(3, view.shape, view.strides);
}

}  // namespace dnnops
#endif
