// Pooling as plain loops over contiguous arrays, one image plane a task.
#ifndef DNNOPS_ONEDNN_POOL_LOOPS_HPP
#define DNNOPS_ONEDNN_POOL_LOOPS_HPP

#include <algorithm>
#include <cstring>

#include "../common/pool_problem.hpp"

namespace dnnops {

// The part of one window that lies inside the image, along one axis, and what it counts as.
struct WindowSpan {
  int64_t begin, end, padded_length;
};

// A pooling's three spatial axes (missing ones in front with size 1).
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
    // The window counts what lies in the image and its padding, not beyond.
    const int64_t last = std::min(first + window[axis], image[axis] + pad[axis]);
    return {std::max<int64_t>(first, 0), std::min(last, image[axis]), last - first};
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

// Calls touch(index in the image's plane) for each element of a window, in C order; stops when
// it returns true.
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

template <class T>
void pool_forward(const PoolProblem &problem, const T *image, T *top) {
  const PoolAxes axes(problem);
#pragma omp parallel for
  for (int64_t plane = 0; plane < axes.planes; ++plane) {
    const T *from = image + plane * axes.image_plane;
    T *to = top + plane * axes.top_plane;
    for_windows(axes, [&](int64_t at, const WindowSpan &depth, const WindowSpan &height, const WindowSpan &width) {
      if (problem.mode == POOL_MAX) {
        T best = from[(depth.begin * axes.image[1] + height.begin) * axes.image[2] + width.begin];
        for_elements(axes, depth, height, width, [&](int64_t i) {
          if (from[i] > best || from[i] != from[i]) best = from[i];
          return best != best;  // a NaN is the maximum
        });
        to[at] = best;
      } else {
        T sum = 0;
        for_elements(axes, depth, height, width, [&](int64_t i) {
          sum += from[i];
          return false;
        });
        to[at] = sum / (T)divisor(problem, depth, height, width);
      }
    });
  }
}

// The position of a window's maximum: of the first one, if there are several.
template <class T>
inline int64_t first_maximum(const PoolAxes &axes, const T *image, T maximum, const WindowSpan &depth,
                             const WindowSpan &height, const WindowSpan &width) {
  int64_t found = -1;
  for_elements(axes, depth, height, width, [&](int64_t i) {
    const bool hit = image[i] == maximum || image[i] != image[i];
    if (hit) found = i;
    return hit;
  });
  return found;
}

template <class T>
void max_pool_grad(const PoolProblem &problem, const T *image, const T *maximum, const T *top_grad, T *image_grad) {
  const PoolAxes axes(problem);
#pragma omp parallel for
  for (int64_t plane = 0; plane < axes.planes; ++plane) {
    const T *from = image + plane * axes.image_plane;
    T *to = image_grad + plane * axes.image_plane;
    const int64_t top_offset = plane * axes.top_plane;
    std::memset(to, 0, axes.image_plane * sizeof(T));
    for_windows(axes, [&](int64_t at, const WindowSpan &depth, const WindowSpan &height, const WindowSpan &width) {
      const int64_t i = first_maximum(axes, from, maximum[top_offset + at], depth, height, width);
      if (i >= 0) to[i] += top_grad[top_offset + at];
    });
  }
}

template <class T>
void max_pool_grad_grad(const PoolProblem &problem, const T *image, const T *maximum, const T *direction, T *top) {
  const PoolAxes axes(problem);
#pragma omp parallel for
  for (int64_t plane = 0; plane < axes.planes; ++plane) {
    const T *from = image + plane * axes.image_plane, *along = direction + plane * axes.image_plane;
    const int64_t top_offset = plane * axes.top_plane;
    for_windows(axes, [&](int64_t at, const WindowSpan &depth, const WindowSpan &height, const WindowSpan &width) {
      const int64_t i = first_maximum(axes, from, maximum[top_offset + at], depth, height, width);
      top[top_offset + at] = i >= 0 ? along[i] : T(0);
    });
  }
}

template <class T>
void average_pool_grad(const PoolProblem &problem, const T *top_grad, T *image_grad) {
  const PoolAxes axes(problem);
#pragma omp parallel for
  for (int64_t plane = 0; plane < axes.planes; ++plane) {
    const T *from = top_grad + plane * axes.top_plane;
    T *to = image_grad + plane * axes.image_plane;
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
