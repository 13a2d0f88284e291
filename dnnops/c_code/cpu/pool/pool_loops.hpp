// Gradients of pooling in loops over contiguous arrays, with one image plane per task.
#ifndef DNNOPS_ONEDNN_POOL_LOOPS_HPP
#define DNNOPS_ONEDNN_POOL_LOOPS_HPP

#include <algorithm>
#include <cstring>
#include <vector>

#include "max_pool_grad.hpp"
#include "pool_axes.hpp"

namespace dnnops {

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
    for_lines(axes, depth, height, [&](int64_t line) {
      for (const Tap &tap : taps) body(row, tap, phases.at(tap, line));
    });
  });
}

// The gradient goes to the first maximum: each window's gradient is added to the first element that equals
// its maximum, and then set to zero.
template <class T>
void max_pool_grad(const PoolProblem &problem, const T *image, const T *maximum, const T *top_grad, T *image_grad) {
  const PoolAxes axes(problem);
  const bool is_usual = with_usual_window(axes, [&](auto window, auto stride) {
    MaxPoolGrad<window, stride, T>(axes).run(image, maximum, top_grad, image_grad);
  });
  if (is_usual) return;
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
