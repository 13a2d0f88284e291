#include "pack.hpp"

#include "../../common/error.hpp"

namespace dnnops {

namespace {
// Calls copy(element of the strided array, element of the contiguous one) for each of them.
template <class T, class Copy>
void for_each_element(const dnnops_tensor &strided, T *contiguous, bool flip_spatial, Copy copy) {
  const int64_t ndim = strided.ndim, rows = strided.shape[0];
  int64_t row_size = 1;
  for (int64_t i = 1; i < ndim; ++i) row_size *= strided.shape[i];
#pragma omp parallel for if (rows * row_size > 16384)
  for (int64_t row = 0; row < rows; ++row) {
    T *const own = contiguous + row * row_size;
    int64_t index[DNNOPS_MAX_NDIM] = {0};
    for (int64_t done = 0; done < row_size;) {
      char *other = static_cast<char *>(strided.data) + row * strided.strides[0];
      for (int64_t i = 1; i < ndim - 1; ++i) {
        int64_t at = flip_spatial && i >= 2 ? strided.shape[i] - 1 - index[i] : index[i];
        other += at * strided.strides[i];
      }
      const int64_t length = ndim > 1 ? strided.shape[ndim - 1] : 1;
      int64_t step = ndim > 1 ? strided.strides[ndim - 1] : 0;
      if (flip_spatial && ndim > 2) {
        other += (length - 1) * step;
        step = -step;
      }
      for (int64_t k = 0; k < length; ++k) copy(*reinterpret_cast<T *>(other + k * step), own[done + k]);
      done += length;
      for (int64_t i = ndim - 2; i >= 1; --i) {
        if (++index[i] < strided.shape[i]) break;
        index[i] = 0;
      }
    }
  }
}

template <class Copy>
void copy_elements(const dnnops_tensor &strided, void *contiguous, bool flip_spatial, Copy copy) {
  for (int64_t i = 0; i < strided.ndim; ++i)
    if (strided.shape[i] == 0) return;
  // Bits are copied unchanged, so only the item size matters.
  switch (item_size(strided.dtype)) {
    case 1: return for_each_element(strided, static_cast<uint8_t *>(contiguous), flip_spatial, copy);
    case 2: return for_each_element(strided, static_cast<uint16_t *>(contiguous), flip_spatial, copy);
    case 4: return for_each_element(strided, static_cast<uint32_t *>(contiguous), flip_spatial, copy);
    default: return for_each_element(strided, static_cast<uint64_t *>(contiguous), flip_spatial, copy);
  }
}
}  // namespace

void pack(const dnnops_tensor &from, void *to, bool flip_spatial) {
  copy_elements(from, to, flip_spatial, [](const auto &strided, auto &contiguous) { contiguous = strided; });
}

void unpack(const void *from, const dnnops_tensor &to, bool flip_spatial) {
  copy_elements(to, const_cast<void *>(from), flip_spatial,
                [](auto &strided, const auto &contiguous) { strided = contiguous; });
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
