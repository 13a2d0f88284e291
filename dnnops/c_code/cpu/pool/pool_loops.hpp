// Pooling in plain loops over contiguous arrays, with one image plane per task.
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

// The range of outputs along the last axis for which element `tap` of the window lies inside the image.
inline std::pair<int64_t, int64_t> reached(const PoolAxes &axes, int64_t tap) {
  const int64_t stride = axes.stride[2], offset = tap - axes.pad[2];  // output w reads w * stride + offset
  const int64_t first = offset >= 0 ? 0 : (stride - 1 - offset) / stride;
  const int64_t room = axes.image[2] - offset;
  const int64_t last = room <= 0 ? 0 : (room + stride - 1) / stride;
  return {first, std::min(last, axes.top[2])};
}

// to[w] = combine(to[w], from[w * stride]). Known strides let the compiler vectorize it.
template <class T, class Combine>
inline void combine_row(T *to, const T *from, int64_t stride, int64_t count, Combine combine) {
  if (stride == 1)
    for (int64_t w = 0; w < count; ++w) to[w] = combine(to[w], from[w]);
  else if (stride == 2)
    for (int64_t w = 0; w < count; ++w) to[w] = combine(to[w], from[2 * w]);
  else
    for (int64_t w = 0; w < count; ++w) to[w] = combine(to[w], from[w * stride]);
}

// Walks the windows of a plane, one row of outputs at a time. Calls begin_row(index of its first output),
// then visit(index of an output, index of the pixel it reads, count) for each tap, in C order: the next count
// outputs read pixels one stride apart.
template <class Begin, class Visit>
void for_rows(const PoolAxes &axes, int64_t plane, Begin &&begin_row, Visit &&visit) {
  int64_t row = plane * axes.top_plane;
  for (int64_t d = 0; d < axes.top[0]; ++d) {
    const WindowSpan depth = axes.span(0, d);
    for (int64_t h = 0; h < axes.top[1]; ++h, row += axes.top[2]) {
      const WindowSpan height = axes.span(1, h);
      begin_row(row);
      for (int64_t i = depth.begin; i < depth.end; ++i)
        for (int64_t j = height.begin; j < height.end; ++j) {
          const int64_t line = plane * axes.image_plane + (i * axes.image[1] + j) * axes.image[2] - axes.pad[2];
          // Taps outside of this range read no pixel.
          const int64_t first_tap = std::max<int64_t>(0, axes.pad[2] - (axes.top[2] - 1) * axes.stride[2]);
          const int64_t end_tap = std::min(axes.window[2], axes.image[2] + axes.pad[2]);
          for (int64_t tap = first_tap; tap < end_tap; ++tap) {
            const auto [first, last] = reached(axes, tap);
            visit(row + first, line + tap + first * axes.stride[2], last - first);
          }
        }
    }
  }
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
#pragma omp parallel for
  for (int64_t plane = 0; plane < axes.planes; ++plane)
    for_rows(
        axes, plane, [&](int64_t row) { std::fill(top + row, top + row + axes.top[2], start); },
        [&](int64_t top_at, int64_t image_at, int64_t count) {
          combine_row(top + top_at, image + image_at, axes.stride[2], count, combine);
        });
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

// The gradient goes to the first maximum: each window's gradient is added to the first element that equals
// its maximum, and then set to zero.
template <class T>
void max_pool_grad(const PoolProblem &problem, const T *image, const T *maximum, const T *top_grad, T *image_grad) {
  const PoolAxes axes(problem);
  std::memset(image_grad, 0, axes.planes * axes.image_plane * sizeof(T));
  std::vector<T> buffers(omp_get_max_threads() * axes.top[2]);  // allocated here because no exception may leave a
                                                                // thread
#pragma omp parallel
  {
    T *const to_give = buffers.data() + omp_get_thread_num() * axes.top[2];
#pragma omp for
    for (int64_t plane = 0; plane < axes.planes; ++plane) {
      int64_t row = 0;
      for_rows(
          axes, plane,
          [&](int64_t begin) {
            row = begin;
            std::copy(top_grad + begin, top_grad + begin + axes.top[2], to_give);
          },
          [&](int64_t top_at, int64_t image_at, int64_t count) {
            const T *x = image + image_at, *best = maximum + top_at;
            T *to = image_grad + image_at, *rest = to_give + (top_at - row);
            const int64_t stride = axes.stride[2];
            for (int64_t w = 0; w < count; ++w) {
              const T value = x[w * stride];
              const bool hit = (value == best[w]) | (value != value);
              to[w * stride] += hit ? rest[w] : T(0);
              rest[w] = hit ? T(0) : rest[w];
            }
          });
    }
  }
}

template <class T>
void max_pool_grad_grad(const PoolProblem &problem, const T *image, const T *maximum, const T *direction, T *top) {
  const PoolAxes axes(problem);
  std::vector<char> buffers(omp_get_max_threads() * axes.top[2]);
#pragma omp parallel
  {
    char *const found = buffers.data() + omp_get_thread_num() * axes.top[2];
#pragma omp for
    for (int64_t plane = 0; plane < axes.planes; ++plane) {
      int64_t row = 0;
      for_rows(
          axes, plane,
          [&](int64_t begin) {
            row = begin;
            std::fill(found, found + axes.top[2], 0);
            std::fill(top + begin, top + begin + axes.top[2], T(0));
          },
          [&](int64_t top_at, int64_t image_at, int64_t count) {
            const T *x = image + image_at, *best = maximum + top_at, *along = direction + image_at;
            T *to = top + top_at;
            char *done = found + (top_at - row);
            const int64_t stride = axes.stride[2];
            for (int64_t w = 0; w < count; ++w) {
              const T value = x[w * stride];
              const bool hit = ((value == best[w]) | (value != value)) & !done[w];
              to[w] = hit ? along[w * stride] : to[w];
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
