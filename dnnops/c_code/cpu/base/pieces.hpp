// Reads and writes the elements of an array with any strides in C order, piece by piece.
#ifndef DNNOPS_ONEDNN_PIECES_HPP
#define DNNOPS_ONEDNN_PIECES_HPP

#include <algorithm>
#include <cstring>

#include "plan.hpp"

namespace dnnops {

template <class T>
class Pieces {
 public:
  explicit Pieces(const dnnops_tensor &tensor) : tensor_(tensor), is_contiguous_(is_contiguous(tensor)) {}

  // The elements from begin on, in place or copied to the buffer.
  const T *read(int64_t begin, int64_t count, T *buffer) const {
    if (is_contiguous_) return data() + begin;
    each(begin, count, [&](int64_t i, char *at) { std::memcpy(buffer + i, at, sizeof(T)); });
    return buffer;
  }

  // Where to write the elements from begin on. finish() copies them from the buffer, if it is used.
  T *target(int64_t begin, T *buffer) const { return is_contiguous_ ? data() + begin : buffer; }
  void finish(int64_t begin, int64_t count, const T *buffer) const {
    if (!is_contiguous_) each(begin, count, [&](int64_t i, char *at) { std::memcpy(at, buffer + i, sizeof(T)); });
  }

 private:
  T *data() const { return static_cast<T *>(tensor_.data); }

  // Calls body(i, address) for i of [0, count).
  template <class Body>
  void each(int64_t begin, int64_t count, Body &&body) const {
    if (count == 0) return;
    if (tensor_.ndim == 0) return body(0, static_cast<char *>(tensor_.data));
    const int64_t last = tensor_.ndim - 1;
    int64_t index[DNNOPS_MAX_NDIM], rest = begin;
    for (int64_t axis = last; axis >= 0; --axis) {
      index[axis] = rest % tensor_.shape[axis];
      rest /= tensor_.shape[axis];
    }
    for (int64_t done = 0; done < count;) {
      char *row = static_cast<char *>(tensor_.data);
      for (int64_t axis = 0; axis <= last; ++axis) row += index[axis] * tensor_.strides[axis];
      const int64_t left = tensor_.shape[last] - index[last], length = std::min(left, count - done);
      for (int64_t i = 0; i < length; ++i) body(done + i, row + i * tensor_.strides[last]);
      done += length;
      index[last] = 0;
      for (int64_t axis = last - 1; axis >= 0; --axis) {
        if (++index[axis] < tensor_.shape[axis]) break;
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
  const int64_t pieces = (count + kPiece - 1) / kPiece;
#pragma omp parallel for if (count > 16384)
  for (int64_t piece = 0; piece < pieces; ++piece) body(piece * kPiece, std::min(kPiece, count - piece * kPiece));
}

}  // namespace dnnops
#endif
