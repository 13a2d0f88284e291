// Pooling in loops over contiguous arrays, with one image plane per task.
#ifndef DNNOPS_ONEDNN_POOL_LOOPS_HPP
#define DNNOPS_ONEDNN_POOL_LOOPS_HPP

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <omp.h>

#include "../../common/pool_problem.hpp"

namespace dnnops {

// The part of a window that lies inside the image along one axis, and the length that averages count.
struct WindowSpan {
  int64_t begin, end, padded_length;
};

// The three spatial axes of a pooling; missing leading axes have size 1.
struct PoolAxes {
  int64_t image[3] = {1, 1, 1}, top[3] = {1, 1, 1}, window[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, pad[3] = {0, 0, 0};
  int64_t planes, image_plane = 1, top_plane = 1;

  explicit PoolAxes(const PoolProblem &problem) : planes(problem.image[0] * problem.image[1]) {
    for (int64_t i = 0; i < problem.spatial_ndim; ++i) {
      const int64_t at = 3 - problem.spatial_ndim + i;
      image[at] = problem.image[2 + i];
      top[at] = problem.top[2 + i];
      window[at] = problem.window[i];
      stride[at] = problem.stride[i];
      pad[at] = problem.pad[i];
    }
    for (int i = 0; i < 3; ++i) {
      image_plane *= image[i];
      top_plane *= top[i];
    }
  }

  WindowSpan span(int axis, int64_t position) const {
    const int64_t first = position * stride[axis] - pad[axis];
    // The counted length includes the image and its padding, but nothing beyond.
    const int64_t last = std::min(first + window[axis], image[axis] + pad[axis]);
    return {std::max<int64_t>(first, 0), std::min(last, image[axis]), last - first};
  }

  // Whether a single window covers the whole image.
  bool is_whole() const {
    if (top_plane != 1) return false;
    for (int axis = 0; axis < 3; ++axis) {
      const WindowSpan all = span(axis, 0);
      if (all.begin != 0 || all.end != image[axis]) return false;
    }
    return true;
  }
};

// Calls visit(output index in the plane, spans of the three axes) for each window.
template <class Visit>
void for_windows(const PoolAxes &axes, Visit &&visit) {
  int64_t at = 0;
  for (int64_t d = 0; d < axes.top[0]; ++d) {
    const WindowSpan depth = axes.span(0, d);
    for (int64_t h = 0; h < axes.top[1]; ++h) {
      const WindowSpan height = axes.span(1, h);
      for (int64_t w = 0; w < axes.top[2]; ++w) visit(at++, depth, height, axes.span(2, w));
    }
  }
}

// Calls touch(index in the image plane) for each element of a window, in C order, until it returns true.
template <class Touch>
inline void for_elements(const PoolAxes &axes, const WindowSpan &depth, const WindowSpan &height,
                         const WindowSpan &width, Touch &&touch) {
  for (int64_t d = depth.begin; d < depth.end; ++d)
    for (int64_t h = height.begin; h < height.end; ++h) {
      const int64_t row = (d * axes.image[1] + h) * axes.image[2];
      for (int64_t w = width.begin; w < width.end; ++w)
        if (touch(row + w)) return;
    }
}

inline int64_t divisor(const PoolProblem &problem, const WindowSpan &depth, const WindowSpan &height,
                       const WindowSpan &width) {
  if (problem.mode == POOL_SUM) return 1;
  if (problem.mode == POOL_AVERAGE_INC_PAD)
    return depth.padded_length * height.padded_length * width.padded_length;
  return (depth.end - depth.begin) * (height.end - height.begin) * (width.end - width.begin);
}

// The outputs [first, last) of a row for which element `tap` of the window lies inside the image. Output w reads
// pixel w * stride + offset.
struct Tap {
  int64_t first, last, offset;
};

// The taps of the last axis that read pixels. Computed once for all rows, since divisions are slow.
inline std::vector<Tap> row_taps(const PoolAxes &axes) {
  std::vector<Tap> taps;
  const int64_t stride = axes.stride[2];
  for (int64_t tap = 0; tap < axes.window[2]; ++tap) {
    const int64_t offset = tap - axes.pad[2], room = axes.image[2] - offset;
    const int64_t first = offset >= 0 ? 0 : (stride - 1 - offset) / stride;
    const int64_t last = std::min(room <= 0 ? 0 : (room + stride - 1) / stride, axes.top[2]);
    if (first < last) taps.push_back({first, last, offset});
  }
  return taps;
}

// Arrays of the threads of a parallel region, allocated before it because no exception may leave a thread. They
// are far enough apart that no cache line belongs to two threads, each of which would wait for the other's writes.
template <class T>
class ThreadArrays {
 public:
  explicit ThreadArrays(int64_t size) : apart_(size + 128 / sizeof(T)), all_(omp_get_max_threads() * apart_) {}
  T *own() { return all_.data() + omp_get_thread_num() * apart_; }

 private:
  int64_t apart_;
  std::vector<T> all_;
};

// to[w] = combine(to[w], from[w * stride]). Known strides let the compiler vectorize it.
template <class T, class Combine>
inline void combine_row(T *__restrict to, const T *__restrict from, int64_t stride, int64_t count, Combine combine) {
  if (stride == 1)
    for (int64_t w = 0; w < count; ++w) to[w] = combine(to[w], from[w]);
  else if (stride == 2)
    for (int64_t w = 0; w < count; ++w) to[w] = combine(to[w], from[2 * w]);
  else
    for (int64_t w = 0; w < count; ++w) to[w] = combine(to[w], from[w * stride]);
}

// Calls visit(index of the first output of a row, depth, height) for each row of outputs in a plane; depth and
// height are the spans of the row's windows.
template <class Visit>
void for_rows(const PoolAxes &axes, int64_t plane, Visit &&visit) {
  int64_t row = plane * axes.top_plane;
  for (int64_t d = 0; d < axes.top[0]; ++d) {
    const WindowSpan depth = axes.span(0, d);
    for (int64_t h = 0; h < axes.top[1]; ++h, row += axes.top[2]) visit(row, depth, axes.span(1, h));
  }
}

// Calls visit(index of its first pixel) for each line of an image that the windows of a row of outputs contain.
template <class Visit>
void for_lines(const PoolAxes &axes, int64_t plane, const WindowSpan &depth, const WindowSpan &height, Visit &&visit) {
  for (int64_t i = depth.begin; i < depth.end; ++i)
    for (int64_t j = height.begin; j < height.end; ++j)
      visit(plane * axes.image_plane + (i * axes.image[1] + j) * axes.image[2]);
}

// Combines the elements of a plane in lanes, which the compiler vectorizes.
template <class T, class Combine>
T combine_plane(const T *from, int64_t count, T start, Combine combine) {
  constexpr int LANES = 64 / sizeof(T);
  T lanes[LANES];
  std::fill(lanes, lanes + LANES, start);
  int64_t at = 0;
  for (; at + LANES <= count; at += LANES)
    for (int i = 0; i < LANES; ++i) lanes[i] = combine(lanes[i], from[at + i]);
  T rest = start;
  for (; at < count; ++at) rest = combine(rest, from[at]);
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = combine(lanes[i], lanes[half + i]);
  return combine(lanes[0], rest);
}

// Combines each window's elements, starting from `start`, in whole rows.
template <class T, class Combine>
void combine_windows(const PoolAxes &axes, const T *image, T *top, T start, Combine combine) {
  if (axes.is_whole()) {
#pragma omp parallel for
    for (int64_t plane = 0; plane < axes.planes; ++plane)
      top[plane] = combine_plane(image + plane * axes.image_plane, axes.image_plane, start, combine);
    return;
  }
  const std::vector<Tap> taps = row_taps(axes);
  const int64_t width = axes.image[2];
  ThreadArrays<T> buffers(width);
#pragma omp parallel
  {
    T *const line = buffers.own();
#pragma omp for
    for (int64_t plane = 0; plane < axes.planes; ++plane)
      for_rows(axes, plane, [&](int64_t row, const WindowSpan &depth, const WindowSpan &height) {
        // First the lines of the windows, whose pixels are adjacent, then the taps of the result.
        std::fill(line, line + width, start);
        for_lines(axes, plane, depth, height,
                  [&](int64_t at) { combine_row(line, image + at, 1, width, combine); });
        T *const to = top + row;
        std::fill(to, to + axes.top[2], start);
        for (const Tap &tap : taps)
          combine_row(to + tap.first, line + tap.first * axes.stride[2] + tap.offset, axes.stride[2],
                      tap.last - tap.first, combine);
      });
  }
}

template <class T>
void pool_forward(const PoolProblem &problem, const T *image, T *top) {
  const PoolAxes axes(problem);
  if (problem.mode == POOL_MAX) {
    // NaN propagates: it counts as the maximum.
    combine_windows(axes, image, top, -std::numeric_limits<T>::infinity(),
                    [](T best, T x) { return (x > best) | (x != x) ? x : best; });
    return;
  }
  combine_windows(axes, image, top, T(0), [](T sum, T x) { return sum + x; });
  if (problem.mode == POOL_SUM) return;
#pragma omp parallel for
  for (int64_t plane = 0; plane < axes.planes; ++plane) {
    T *to = top + plane * axes.top_plane;
    for_windows(axes, [&](int64_t at, const WindowSpan &depth, const WindowSpan &height, const WindowSpan &width) {
      to[at] /= (T)divisor(problem, depth, height, width);
    });
  }
}

// A plane whose pixels are sorted by their place in a stride of the last axis, so that each tap reads and writes
// adjacent elements.
struct Phases {
  int64_t stride, length, lines, width;  // length: of a line of one phase, padded

  explicit Phases(const PoolAxes &axes)
      : stride(axes.stride[2]), length((axes.image[2] + stride - 1) / stride),
        lines(axes.image[0] * axes.image[1]), width(axes.image[2]) {}

  int64_t size() const { return stride * lines * length; }

  // The index of the pixel that the first output of a tap reads, on a line of the plane.
  int64_t at(const Tap &tap, int64_t line) const {
    const int64_t pixel = tap.first * stride + tap.offset;
    return pixel % stride * lines * length + line * length + pixel / stride;
  }

  // Calls move(index of a pixel, its index here) for all pixels. Strides of 2 are known to the compiler, and if
  // they divide the width, all lines are one loop.
  template <class Move>
  void for_pixels(Move &&move) const {
    const bool is_dense = stride * length == width;
    const int64_t rows = is_dense ? 1 : lines, pixels = is_dense ? lines * width : width;
    const int64_t phase = lines * length;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t from = row * width, to = row * length;
      if (stride == 2) {
        const int64_t pairs = pixels / 2;
        for (int64_t k = 0; k < pairs; ++k) {
          move(from + 2 * k, to + k);
          move(from + 2 * k + 1, to + phase + k);
        }
        if (pixels % 2) move(from + pixels - 1, to + pairs);
      } else {
        for (int64_t p = 0; p < stride; ++p)
          for (int64_t k = 0, pixel = p; pixel < pixels; ++k, pixel += stride)
            move(from + pixel, to + p * phase + k);
      }
    }
  }
};

template <class T>
void sort_pixels(const Phases &phases, const T *__restrict plane, T *__restrict sorted) {
  phases.for_pixels([=](int64_t pixel, int64_t at) { sorted[at] = plane[pixel]; });
}

// Calls body(index of the first output of a row, plane's pixels, tap, index of the tap's first pixel there) for
// each tap of each row of outputs, in C order.
template <class Begin, class Body>
void for_taps(const PoolAxes &axes, const Phases &phases, const std::vector<Tap> &taps, int64_t plane,
              Begin &&begin, Body &&body) {
  for_rows(axes, plane, [&](int64_t row, const WindowSpan &depth, const WindowSpan &height) {
    begin(row);
    for_lines(axes, 0, depth, height, [&](int64_t line) {
      for (const Tap &tap : taps) body(row, tap, phases.at(tap, line / phases.width));
    });
  });
}

// The gradient goes to the first maximum: each window's gradient is added to the first element that equals
// its maximum, and then set to zero.
template <class T>
void max_pool_grad(const PoolProblem &problem, const T *image, const T *maximum, const T *top_grad, T *image_grad) {
  const PoolAxes axes(problem);
  const Phases phases(axes);
  const std::vector<Tap> taps = row_taps(axes);
  const int64_t size = phases.size(), width = axes.top[2];
  ThreadArrays<T> buffers(2 * size + width);
#pragma omp parallel
  {
    T *const pixels = buffers.own(), *const sums = pixels + size;
    T *const to_give = sums + size;
#pragma omp for
    for (int64_t plane = 0; plane < axes.planes; ++plane) {
      sort_pixels(phases, image + plane * axes.image_plane, pixels);
      std::fill(sums, sums + size, T(0));
      for_taps(
          axes, phases, taps, plane,
          [&](int64_t row) { std::copy(top_grad + row, top_grad + row + width, to_give); },
          [&](int64_t row, const Tap &tap, int64_t at) {
            const T *__restrict x = pixels + at, *__restrict best = maximum + row + tap.first;
            T *__restrict to = sums + at, *__restrict rest = to_give + tap.first;
            for (int64_t w = 0; w < tap.last - tap.first; ++w) {
              const bool hit = (x[w] == best[w]) | (x[w] != x[w]);
              to[w] += hit ? rest[w] : T(0);
              rest[w] = hit ? T(0) : rest[w];
            }
          });
      T *__restrict to = image_grad + plane * axes.image_plane;
      const T *__restrict from = sums;
      phases.for_pixels([=](int64_t pixel, int64_t at) { to[pixel] = from[at]; });
    }
  }
}

template <class T>
void max_pool_grad_grad(const PoolProblem &problem, const T *image, const T *maximum, const T *direction, T *top) {
  const PoolAxes axes(problem);
  const Phases phases(axes);
  const std::vector<Tap> taps = row_taps(axes);
  const int64_t size = phases.size(), width = axes.top[2];
  ThreadArrays<T> buffers(2 * size);
  ThreadArrays<char> flags(width);
#pragma omp parallel
  {
    T *const pixels = buffers.own(), *const slopes = pixels + size;
    char *const found = flags.own();
#pragma omp for
    for (int64_t plane = 0; plane < axes.planes; ++plane) {
      sort_pixels(phases, image + plane * axes.image_plane, pixels);
      sort_pixels(phases, direction + plane * axes.image_plane, slopes);
      for_taps(
          axes, phases, taps, plane,
          [&](int64_t row) {
            std::fill(found, found + width, 0);
            std::fill(top + row, top + row + width, T(0));
          },
          [&](int64_t row, const Tap &tap, int64_t at) {
            const T *__restrict x = pixels + at, *__restrict best = maximum + row + tap.first;
            const T *__restrict along = slopes + at;
            T *__restrict to = top + row + tap.first;
            char *__restrict done = found + tap.first;
            for (int64_t w = 0; w < tap.last - tap.first; ++w) {
              const bool hit = ((x[w] == best[w]) | (x[w] != x[w])) & !done[w];
              to[w] = hit ? along[w] : to[w];
              done[w] |= (char)hit;
            }
          });
    }
  }
}

template <class T>
void average_pool_grad(const PoolProblem &problem, const T *top_grad, T *image_grad) {
  const PoolAxes axes(problem);
  const bool is_whole = axes.is_whole();
#pragma omp parallel for
  for (int64_t plane = 0; plane < axes.planes; ++plane) {
    const T *from = top_grad + plane * axes.top_plane;
    T *to = image_grad + plane * axes.image_plane;
    if (is_whole) {
      const T share = from[0] / (T)divisor(problem, axes.span(0, 0), axes.span(1, 0), axes.span(2, 0));
      std::fill(to, to + axes.image_plane, share);
      continue;
    }
    std::memset(to, 0, axes.image_plane * sizeof(T));
    for_windows(axes, [&](int64_t at, const WindowSpan &depth, const WindowSpan &height, const WindowSpan &width) {
      const T share = from[at] / (T)divisor(problem, depth, height, width);
      for_elements(axes, depth, height, width, [&](int64_t i) {
        to[i] += share;
        return false;
      });
    });
  }
}

}  // namespace dnnops
#endif
