// Reads and writes the elements of an array with any strides in C order, piece by piece.
#ifndef DNNOPS_ONEDNN_PIECES_HPP
#define DNNOPS_ONEDNN_PIECES_HPP

#include <algorithm>
#include <cstring>

#include "../../common/error.hpp"
#include "pack.hpp"
#include "rounding.hpp"

namespace dnnops {

template <class T>
class Pieces {
 public:
  explicit Pieces(const dnnops_tensor &tensor) : tensor_(tensor), is_contiguous_(is_contiguous(tensor)) {}

  // Copies the elements from begin on to adjacent ones, or back.
  void copy(int64_t begin, int64_t count, T *to) const {
    if (is_contiguous_) return (void)std::memcpy(to, data() + begin, count * sizeof(T));
    each(begin, count, [&](int64_t done, const char *row, int64_t length, int64_t step) {
      if (step == (int64_t)sizeof(T)) return (void)std::memcpy(to + done, row, length * sizeof(T));
      for (int64_t i = 0; i < length; ++i) to[done + i] = *reinterpret_cast<const Unaligned *>(row + i * step);
    });
  }
  void write(int64_t begin, int64_t count, const T *from) const {
    if (is_contiguous_) return (void)std::memcpy(data() + begin, from, count * sizeof(T));
    each(begin, count, [&](int64_t done, char *row, int64_t length, int64_t step) {
      if (step == (int64_t)sizeof(T)) return (void)std::memcpy(row, from + done, length * sizeof(T));
      for (int64_t i = 0; i < length; ++i) *reinterpret_cast<Unaligned *>(row + i * step) = from[done + i];
    });
  }

  // The elements from begin on, in place or copied to the buffer.
  const T *read(int64_t begin, int64_t count, T *buffer) const {
    if (is_contiguous_) return data() + begin;
    copy(begin, count, buffer);
    return buffer;
  }

  // Where to write the elements from begin on. finish() copies them from the buffer, if it is used.
  T *target(int64_t begin, T *buffer) const { return is_contiguous_ ? data() + begin : buffer; }
  void finish(int64_t begin, int64_t count, const T *buffer) const {
    if (!is_contiguous_) write(begin, count, buffer);
  }

 private:
  typedef T Unaligned __attribute__((aligned(1)));  // strides may be any number of bytes

  T *data() const { return static_cast<T *>(tensor_.data); }

  // Calls body(number of elements before, address, length, step) for each part of a row.
  template <class Body>
  void each(int64_t begin, int64_t count, Body &&body) const {
    if (count == 0) return;
    if (tensor_.ndim == 0) return body(0, static_cast<char *>(tensor_.data), 1, 0);
    const int64_t last = tensor_.ndim - 1;
    int64_t index[DNNOPS_MAX_NDIM], rest = begin;
    char *at = static_cast<char *>(tensor_.data);
    for (int64_t axis = last; axis >= 0; --axis) {
      index[axis] = rest % tensor_.shape[axis];
      rest /= tensor_.shape[axis];
      at += index[axis] * tensor_.strides[axis];
    }
    for (int64_t done = 0, length; done < count; done += length) {
      length = std::min(tensor_.shape[last] - index[last], count - done);
      body(done, at, length, tensor_.strides[last]);
      at -= index[last] * tensor_.strides[last];
      index[last] = 0;
      for (int64_t axis = last - 1; axis >= 0; --axis) {
        at += tensor_.strides[axis];
        if (++index[axis] < tensor_.shape[axis]) break;
        at -= tensor_.shape[axis] * tensor_.strides[axis];
        index[axis] = 0;
      }
    }
  }

  const dnnops_tensor &tensor_;
  bool is_contiguous_;
};

// The number of elements that a thread processes at a time.
constexpr int64_t kPiece = 4096;

// Calls body(begin, count) for pieces of the elements, in all threads.
template <class Body>
void by_pieces(int64_t count, Body &&body) {
  const int64_t pieces = ceil_div(count, kPiece);
#pragma omp parallel for if (count > 16384)
  for (int64_t piece = 0; piece < pieces; ++piece) body(piece * kPiece, std::min(kPiece, count - piece * kPiece));
}

}  // namespace dnnops
#endif
