// The gradient of max pooling for the usual windows: a line of an image is read once, kept while windows contain it,
// and its gradient is written once.
#ifndef DNNOPS_ONEDNN_MAX_POOL_GRAD_HPP
#define DNNOPS_ONEDNN_MAX_POOL_GRAD_HPP

#include <cstring>
#include <limits>

#include "pool_axes.hpp"

namespace dnnops {

// The integer of a float's or a double's size.
template <class T>
using WordOf = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

// Words that are the same if the numbers are equal or both NaN, which one operation then tells.
template <class T>
inline WordOf<T> comparable(T x) {
  x = x != x ? std::numeric_limits<T>::quiet_NaN() : x + T(0);  // -0 becomes 0
  WordOf<T> word;
  std::memcpy(&word, &x, sizeof x);
  return word;
}

// The word of -0, which no number has after comparable().
template <class T>
constexpr WordOf<T> kOutside = std::numeric_limits<WordOf<T>>::min();

template <class To, class From, class Convert>
inline void convert_row(To *__restrict to, const From *__restrict from, int64_t count, Convert convert) {
  for (int64_t i = 0; i < count; ++i) to[i] = convert(from[i]);
}

template <class To, class From, class Convert>
inline void split_pairs(To *__restrict first, To *__restrict second, const From *__restrict from, int64_t pairs,
                        Convert convert) {
  for (int64_t k = 0; k < pairs; ++k) {
    first[k] = convert(from[2 * k]);
    second[k] = convert(from[2 * k + 1]);
  }
}

template <class T>
inline void join_pairs(T *__restrict to, const T *__restrict first, const T *__restrict second, int64_t pairs) {
  for (int64_t k = 0; k < pairs; ++k) {
    to[2 * k] = first[k];
    to[2 * k + 1] = second[k];
  }
}

// A line's pixels, padding included, are sorted by their place in a stride: pixel p of the padded line is element
// p / stride of phase p % stride. So tap t of output w is element w + t / stride of phase t % stride.
//
// Loops over outputs take whole vectors, since outputs beyond the last one have nothing to give. Their bounds are
// written as multiples of kLanes so that the compiler leaves out code for the rest of a vector.
template <int64_t kWindow, int64_t kStride, class T>
class MaxPoolGrad {
  static_assert(kStride == 1 || kStride == 2, "lines are split into single pixels or pairs");
  using Word = WordOf<T>;
  static constexpr int64_t kLanes = 64 / sizeof(T), kReach = (kWindow - 1) / kStride;

 public:
  explicit MaxPoolGrad(const PoolAxes &axes) : axes_(axes), lines_(axes.image[0] * axes.image[1]) {
    outputs_ = rounded(axes.top[2] + kReach);
    phase_ = std::max(rounded((axes.pad[2] + axes.image[2]) / kStride + 1), outputs_ + kLanes);
    // Going down a single slice, windows leave its lines behind them.
    const int64_t needed = is_flat() ? std::min(axes.window[1], axes.image[1]) : lines_;
    while (kept_ < needed) kept_ *= 2;
    for (int i = 0; i < 3; ++i) is_disjoint_ = is_disjoint_ && axes.window[i] <= axes.stride[i];
  }

  void run(const T *image, const T *maximum, const T *top_grad, T *image_grad) const {
    ThreadArrays<Word> pixels(kept_ * line_size(), kOutside<T>), best(outputs_);
    ThreadArrays<T> sums(kept_ * line_size()), rest(outputs_), given(kLanes + kWindow * given_size());
#pragma omp parallel
    {
      const Buffers own{pixels.own(), best.own(), sums.own(), rest.own(), given.own() + kLanes};
#pragma omp for
      for (int64_t plane = 0; plane < axes_.planes; ++plane)
        run_plane(plane, image + plane * axes_.image_plane, maximum, top_grad, image_grad + plane * axes_.image_plane,
                  own);
    }
  }

 private:
  struct Buffers {
    Word *pixels, *best;  // of the lines that are kept, and of a row of outputs
    T *sums, *rest;       // the gradient of these lines, and what a row of outputs still has to give
    T *given;             // what it gives to each tap of a line, with zeros around
  };

  static int64_t rounded(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }
  bool is_flat() const { return axes_.image[0] == 1 && axes_.top[0] == 1; }
  int64_t line_size() const { return kStride * phase_; }
  int64_t given_size() const { return outputs_ + kLanes; }
  int64_t slot(int64_t line) const { return (line & (kept_ - 1)) * line_size(); }
  // Where the pixel is after the padding.
  int64_t place(int64_t pixel) const {
    const int64_t padded = pixel + axes_.pad[2];
    return padded % kStride * phase_ + padded / kStride;
  }

  void run_plane(int64_t plane, const T *image, const T *maximum, const T *top_grad, T *image_grad,
                 const Buffers &own) const {
    const int64_t width = axes_.image[2];
    int64_t read = 0, written = 0;
    const auto write_until = [&](int64_t line) {
      for (; written < line; ++written) write_line(image_grad + written * width, own.sums + slot(written));
    };
    for_rows(axes_, plane, [&](int64_t row, const WindowSpan &depth, const WindowSpan &height) {
      if (is_flat()) {
        write_until(height.begin);
        read = std::max(read, height.begin);
      }
      for (const int64_t end = is_flat() ? height.end : lines_; read < end; ++read)
        read_line(own.pixels + slot(read), image + read * width);
      convert_row(own.best, maximum + row, axes_.top[2], comparable<T>);
      // Sums start from 0, and 0 + -0 is 0.
      convert_row(own.rest, top_grad + row, axes_.top[2], [](T x) { return x + T(0); });
      for_lines(axes_, depth, height, [&](int64_t line) { give_line(own, slot(line)); });
    });
    write_until(lines_);
  }

  void read_line(Word *to, const T *line) const {
    const int64_t width = axes_.image[2];
    if (kStride == 1) return convert_row(to + place(0), line, width, comparable<T>);
    split_pairs(to + place(0), to + place(1), line, width / 2, comparable<T>);
    if (width % 2) to[place(width - 1)] = comparable(line[width - 1]);
  }

  void write_line(T *line, T *sums) const {
    const int64_t width = axes_.image[2];
    if (kStride == 1) {
      std::copy(sums + place(0), sums + place(0) + width, line);
    } else {
      join_pairs(line, sums + place(0), sums + place(1), width / 2);
      if (width % 2) line[width - 1] = sums[place(width - 1)];
    }
    std::fill(sums, sums + line_size(), T(0));
  }

  // A window gives its gradient to its first maximum, which for NaN is the first NaN. Windows that share no pixels
  // give it at once. Others add it tap by tap, since neighboring outputs give to the same pixel.
  void give_line(const Buffers &own, int64_t at) const {
    if (is_disjoint_) return give(own.pixels + at, phase_, own.best, own.rest, own.sums + at, phase_, outputs_);
    give(own.pixels + at, phase_, own.best, own.rest, own.given, given_size(), outputs_);
    add(own.sums + at, phase_, own.given, given_size(), outputs_);
  }

  static void give(const Word *__restrict pixels, int64_t phase, const Word *__restrict best, T *__restrict rest,
                   T *__restrict given, int64_t apart, int64_t outputs) {
    for (int64_t w = 0; w < outputs / kLanes * kLanes; ++w) {
      T left = rest[w];
#pragma GCC unroll 3
      for (int64_t tap = 0; tap < kWindow; ++tap) {
        const bool is_hit = pixels[tap % kStride * phase + w + tap / kStride] == best[w];
        given[tap * apart + w] = is_hit ? left : T(0);
        left = is_hit ? T(0) : left;
      }
      rest[w] = left;
    }
  }

  static void add(T *__restrict sums, int64_t phase, const T *__restrict given, int64_t apart, int64_t outputs) {
    for (int64_t q = 0; q < kStride; ++q)
      for (int64_t w = 0; w < outputs / kLanes * kLanes; ++w) {
        T sum = sums[q * phase + w];
#pragma GCC unroll 3
        for (int64_t tap = q; tap < kWindow; tap += kStride) sum += given[tap * apart + w - tap / kStride];
        sums[q * phase + w] = sum;
      }
  }

  const PoolAxes &axes_;
  int64_t lines_, outputs_, phase_, kept_ = 1;
  bool is_disjoint_ = true;
};

}  // namespace dnnops
#endif
