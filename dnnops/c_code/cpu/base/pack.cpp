#include "pack.hpp"

#include "../../common/error.hpp"
#include "pieces.hpp"

namespace dnnops {

namespace {
// The same array with its spatial axes reversed.
dnnops_tensor flipped(dnnops_tensor tensor) {
  for (int64_t axis = 2; axis < tensor.ndim; ++axis) {
    tensor.data = static_cast<char *>(tensor.data) + (tensor.shape[axis] - 1) * tensor.strides[axis];
    tensor.strides[axis] = -tensor.strides[axis];
  }
  return tensor;
}

// Calls copy(pieces of the strided array, begin, count, address of the same elements of the contiguous one).
template <class Copy>
void copy_pieces(const dnnops_tensor &strided, void *contiguous, bool flip_spatial, Copy &&copy) {
  const dnnops_tensor tensor = flip_spatial ? flipped(strided) : strided;
  const auto copy_as = [&](auto zero) {
    using T = decltype(zero);
    const Pieces<T> pieces(tensor);
    by_pieces(element_count(tensor.shape, tensor.ndim), [&](int64_t begin, int64_t count) {
      copy(pieces, begin, count, static_cast<T *>(contiguous) + begin);
    });
  };
  // Bits are copied unchanged, so only the item size matters.
  switch (item_size(tensor.dtype)) {
    case 1: return copy_as(uint8_t{});
    case 2: return copy_as(uint16_t{});
    case 4: return copy_as(uint32_t{});
    default: return copy_as(uint64_t{});
  }
}
}  // namespace

bool is_contiguous(const dnnops_tensor &tensor) {
  int64_t step = item_size(tensor.dtype);
  for (int64_t i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != step) return false;
    step *= tensor.shape[i];
  }
  return reinterpret_cast<uintptr_t>(tensor.data) % item_size(tensor.dtype) == 0;
}

void pack(const dnnops_tensor &from, void *to, bool flip_spatial) {
  copy_pieces(from, to, flip_spatial,
              [](const auto &pieces, int64_t begin, int64_t count, auto *own) { pieces.copy(begin, count, own); });
}

void unpack(const void *from, const dnnops_tensor &to, bool flip_spatial) {
  copy_pieces(to, const_cast<void *>(from), flip_spatial,
              [](const auto &pieces, int64_t begin, int64_t count, auto *own) { pieces.write(begin, count, own); });
}

void copy_matrix(const dnnops_tensor &from, const dnnops_tensor &to) {
  for (int64_t i = 0; i < from.shape[0]; ++i) {
    const char *source = static_cast<const char *>(from.data) + i * from.strides[0];
    char *target = static_cast<char *>(to.data) + i * to.strides[0];
    for (int64_t j = 0; j < from.shape[1]; ++j)
      *reinterpret_cast<float *>(target + j * to.strides[1]) =
          *reinterpret_cast<const float *>(source + j * from.strides[1]);
  }
}

}  // namespace dnnops
