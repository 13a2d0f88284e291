// The operands of conv_product(): arrays of any strides as matrices.
#ifndef DNNOPS_ONEDNN_PRODUCT_OPERANDS_HPP
#define DNNOPS_ONEDNN_PRODUCT_OPERANDS_HPP

#include <algorithm>

#include "../own_scratch.hpp"

namespace dnnops::product {

// Images as matrices of channels by pixels for dnnl_sgemm, which reads them transposed if channels come last.
struct Matrices {
  float *data;
  int64_t image, channel, pixel;  // strides in elements

  float *at(int64_t n, int64_t c, int64_t p) const { return data + n * image + c * channel + p * pixel; }
  bool transposed() const { return pixel != 1; }
  int64_t leading() const { return transposed() ? pixel : channel; }
};

// Describes an array without a copy. Returns false if it is not a matrix for each image.
inline bool as_matrices(const dnnops_tensor &tensor, Matrices &matrices) {
  int64_t strides[5];
  if (!addressable_strides(tensor, strides)) return false;
  matrices = {static_cast<float *>(tensor.data), strides[0], strides[1], 0};
  int64_t next = 0;
  for (int64_t axis = tensor.ndim - 1; axis >= 2; --axis) {
    if (tensor.shape[axis] == 1) continue;
    if (!matrices.pixel)
      matrices.pixel = strides[axis];
    else if (strides[axis] != next)
      return false;
    next = strides[axis] * tensor.shape[axis];
  }
  if (!matrices.pixel) matrices.pixel = 1;  // a single pixel
  if (tensor.shape[1] == 1) matrices.channel = matrices.pixel == 1 ? std::max<int64_t>(next, 1) : 1;
  return matrices.pixel == 1 || matrices.channel == 1;
}

// An array that is used in place if its strides permit, and otherwise as a contiguous copy.
struct Array {
  const dnnops_tensor &tensor;
  bool in_place;
  Matrices matrices;
  int64_t offset = 0;

  // Results are written with adjacent pixels; filters are read and written as one contiguous matrix.
  enum Use { IMAGES_READ, IMAGES_WRITTEN, FILTERS };

  Array(const dnnops_tensor &tensor, Use use, Layout &layout) : tensor(tensor) {
    in_place = use == FILTERS ? is_contiguous(tensor)
                              : as_matrices(tensor, matrices) && (use == IMAGES_READ || matrices.pixel == 1);
    if (in_place) {
      matrices.data = static_cast<float *>(tensor.data);
      return;
    }
    const int64_t plane = element_count(tensor.shape + 2, tensor.ndim - 2);
    matrices = {nullptr, tensor.shape[1] * plane, plane, 1};
    offset = layout.add(size());
  }
  int64_t size() const { return element_count(tensor.shape, tensor.ndim); }
  void place(float *scratch) {
    if (!in_place) matrices.data = scratch + offset;
  }
  void read(float *scratch) {
    place(scratch);
    if (!in_place) pack(tensor, matrices.data, false);
  }
  void write() const {
    if (!in_place) unpack(matrices.data, tensor, false);
  }
};

}  // namespace dnnops::product
#endif
