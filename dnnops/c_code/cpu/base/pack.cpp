#include "pack.hpp"

#include "../../common/error.hpp"

namespace dnnops {

namespace {
template <class T>
void pack_rows(const dnnops_tensor &from, T *to, bool flip_spatial) {
  const int64_t ndim = from.ndim, rows = from.shape[0];
  int64_t row_size = 1;
  for (int64_t i = 1; i < ndim; ++i) row_size *= from.shape[i];
#pragma omp parallel for if (rows * row_size > 16384)
  for (int64_t row = 0; row < rows; ++row) {
    T *target = to + row * row_size;
    int64_t index[DNNOPS_MAX_NDIM] = {0};
    for (int64_t done = 0; done < row_size;) {
      const char *source = static_cast<const char *>(from.data) + row * from.strides[0];
      for (int64_t i = 1; i < ndim - 1; ++i) {
        int64_t at = flip_spatial && i >= 2 ? from.shape[i] - 1 - index[i] : index[i];
        source += at * from.strides[i];
      }
      const int64_t length = ndim > 1 ? from.shape[ndim - 1] : 1;
      int64_t step = ndim > 1 ? from.strides[ndim - 1] : 0;
      if (flip_spatial && ndim > 2) {
        source += (length - 1) * step;
        step = -step;
      }
      for (int64_t k = 0; k < length; ++k) target[done + k] = *reinterpret_cast<const T *>(source + k * step);
      done += length;
      for (int64_t i = ndim - 2; i >= 1; --i) {
        if (++index[i] < from.shape[i]) break;
        index[i] = 0;
      }
    }
  }
}
}  // namespace

void pack(const dnnops_tensor &from, void *to, bool flip_spatial) {
  for (int64_t i = 0; i < from.ndim; ++i)
    if (from.shape[i] == 0) return;
  // Bits are copied unchanged, so only the item size matters.
  switch (item_size(from.dtype)) {
    case 1: return pack_rows(from, static_cast<uint8_t *>(to), flip_spatial);
    case 2: return pack_rows(from, static_cast<uint16_t *>(to), flip_spatial);
    case 4: return pack_rows(from, static_cast<uint32_t *>(to), flip_spatial);
    default: return pack_rows(from, static_cast<uint64_t *>(to), flip_spatial);
  }
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
