// The axes of a pooling, and how loops go through the rows of its output.
#ifndef DNNOPS_ONEDNN_POOL_AXES_HPP
#define DNNOPS_ONEDNN_POOL_AXES_HPP

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include <omp.h>

#include "../../common/pool_problem.hpp"

namespace dnnops {

// The part of a window that lies inside the image along one axis, and the length that averages count.
struct WindowSpan {
  int64_t begin, end, padded_length;
};

// The three spatial axes of a pooling; missing leading axes have size 1. Axes on which nothing is pooled and that have
// one pixel are left out, so that the last axis is a row.
struct PoolAxes {
  int64_t image[3] = {1, 1, 1}, top[3] = {1, 1, 1}, window[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, pad[3] = {0, 0, 0};
  int64_t planes, image_plane = 1, top_plane = 1;

  explicit PoolAxes(const PoolProblem &problem) : planes(problem.image[0] * problem.image[1]) {
    int at = 2;
    for (int64_t i = problem.spatial_ndim - 1; i >= 0; --i) {
      if (problem.image[2 + i] == 1 && problem.top[2 + i] == 1 && problem.window[i] == 1) continue;
      image[at] = problem.image[2 + i];
      top[at] = problem.top[2 + i];
      window[at] = problem.window[i];
      stride[at] = problem.stride[i];
      pad[at] = problem.pad[i];
      --at;
    }
    for (int i = 0; i < 3; ++i) {
      image_plane *= image[i];
      top_plane *= top[i];
    }
  }

  bool is_row() const { return image[0] == 1 && image[1] == 1 && window[0] == 1 && window[1] == 1; }

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
// start at multiples of two cache lines: vectors then lie within a line, and no line belongs to two threads, each of
// which would wait for the other's writes.
template <class T>
class ThreadArrays {
 public:
  explicit ThreadArrays(int64_t size, T value = T())
      : apart_((size + kAligned - 1) / kAligned * kAligned), all_(omp_get_max_threads() * apart_ + kAligned, value) {
    void *first = all_.data();
    size_t room = all_.size() * sizeof(T);
    first_ = static_cast<T *>(std::align(kAligned * sizeof(T), sizeof(T), first, room));
  }
  T *own() { return first_ + omp_get_thread_num() * apart_; }

 private:
  static constexpr int64_t kAligned = 128 / sizeof(T);
  int64_t apart_;
  std::vector<T> all_;
  T *first_;
};

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

// Calls visit(line) for each line of an image that the windows of a row of outputs contain.
template <class Visit>
void for_lines(const PoolAxes &axes, const WindowSpan &depth, const WindowSpan &height, Visit &&visit) {
  for (int64_t i = depth.begin; i < depth.end; ++i)
    for (int64_t j = height.begin; j < height.end; ++j) visit(i * axes.image[1] + j);
}

// Calls body(window, stride) with constants if the last axis has one of the usual windows, and returns whether it has.
template <class Body>
bool with_usual_window(const PoolAxes &axes, Body &&body) {
  const auto is = [&](auto window, auto stride) {
    if (axes.window[2] != window || axes.stride[2] != stride) return false;
    body(window, stride);
    return true;
  };
  const std::integral_constant<int64_t, 1> one{};
  const std::integral_constant<int64_t, 2> two{};
  const std::integral_constant<int64_t, 3> three{};
  return is(two, two) || is(three, two) || is(three, one) || is(two, one);
}

// Calls loop(first, count) for parts of a row that leave no elements to loops without vectors. The last part may
// overlap the one before it, so the loop must not read what it writes.
template <class T, class Loop>
inline void in_vectors(int64_t count, Loop &&loop) {
  constexpr std::integral_constant<int64_t, 64 / sizeof(T)> lanes{};
  constexpr std::integral_constant<int64_t, lanes / 2> half{};
  if (count >= lanes) {
    loop(0, count / lanes * lanes);
    if (count % lanes) loop(count - lanes, lanes);
  } else if (count >= half) {
    loop(0, half);
    loop(count - half, half);
  } else {
    loop(0, count);
  }
}

}  // namespace dnnops
#endif
