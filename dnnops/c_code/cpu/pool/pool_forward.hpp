// Pooling in loops over contiguous arrays, with one image plane per task: first the lines of a row of windows are
// combined, whose pixels are adjacent, then the taps of the result.
#ifndef DNNOPS_ONEDNN_POOL_FORWARD_HPP
#define DNNOPS_ONEDNN_POOL_FORWARD_HPP

#include <limits>

#include "pool_axes.hpp"

namespace dnnops {

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

// to[w] = combine(...combine(start, line 0)..., last line). The lines are `apart` from each other.
template <int64_t kLines, class T, class Combine>
inline void combine_first(T *__restrict to, const T *__restrict from, int64_t apart, int64_t count, T start,
                          Combine combine) {
  for (int64_t w = 0; w < count; ++w) {
    T all = combine(start, from[w]);
    if constexpr (kLines > 1) all = combine(all, from[apart + w]);
    if constexpr (kLines > 2) all = combine(all, from[2 * apart + w]);
    to[w] = all;
  }
}

// Combines the lines of an image that the windows of a row of outputs contain.
template <class T, class Combine>
void combine_lines(const PoolAxes &axes, const T *image, const WindowSpan &depth, const WindowSpan &height, T *to,
                   T start, Combine combine) {
  const int64_t width = axes.image[2], together = std::min<int64_t>(height.end - height.begin, 3);
  const T *const from = image + (depth.begin * axes.image[1] + height.begin) * width;
  in_vectors<T>(width, [&](int64_t w, auto count) {
    if (together == 1) combine_first<1>(to + w, from + w, width, count, start, combine);
    if (together == 2) combine_first<2>(to + w, from + w, width, count, start, combine);
    if (together == 3) combine_first<3>(to + w, from + w, width, count, start, combine);
  });
  int64_t done = 0;
  for_lines(axes, depth, height, [&](int64_t line) {
    if (done++ >= together) combine_row(to, image + line * width, 1, width, combine);
  });
}

// Combines the taps of a line that includes the padding. finish(result, output) returns the output.
template <int64_t kWindow, int64_t kStride, class T, class Combine, class Finish>
inline void combine_taps(T *__restrict to, const T *__restrict line, int64_t first, int64_t count, Combine combine,
                         Finish finish) {
  for (int64_t w = first; w < first + count; ++w) {
    T all = combine(line[kStride * w], line[kStride * w + 1]);
    if constexpr (kWindow == 3) all = combine(all, line[kStride * w + 2]);
    to[w] = finish(all, w);
  }
}

// Calls take_taps(row of outputs, line, depth, height) for each row of windows. The line has `length` elements: the
// windows' lines combined, after `padding` elements.
template <class T, class Combine, class Taps>
void combine_rows(const PoolAxes &axes, int64_t padding, int64_t length, const T *image, T *top, T start,
                  Combine combine, Taps take_taps) {
  ThreadArrays<T> buffers(length, start);
#pragma omp parallel
  {
    T *const line = buffers.own();
#pragma omp for
    for (int64_t plane = 0; plane < axes.planes; ++plane)
      for_rows(axes, plane, [&](int64_t row, const WindowSpan &depth, const WindowSpan &height) {
        combine_lines(axes, image + plane * axes.image_plane, depth, height, line + padding, start, combine);
        take_taps(top + row, line, depth, height);
      });
  }
}

// Combines each window's elements, starting from `start`, which must not change what it is combined with.
// finish_of(depth, height) returns a function of the result and the output's place in a row, which returns the output.
template <class T, class Combine, class FinishOf>
void combine_windows(const PoolAxes &axes, const T *image, T *top, T start, Combine combine, FinishOf finish_of) {
  const int64_t outputs = axes.top[2], width = axes.image[2];
  if (axes.is_whole()) {
    const auto finish = finish_of(axes.span(0, 0), axes.span(1, 0));
#pragma omp parallel for
    for (int64_t plane = 0; plane < axes.planes; ++plane)
      top[plane] = finish(combine_plane(image + plane * axes.image_plane, axes.image_plane, start, combine), 0);
    return;
  }
  const bool is_usual = with_usual_window(axes, [&](auto window, auto stride) {
    constexpr int64_t kWindow = window, kStride = stride;
    const auto take_taps = [&](T *to, const T *line, const WindowSpan &depth, const WindowSpan &height) {
      const auto finish = finish_of(depth, height);
      in_vectors<T>(outputs, [&](int64_t first, auto count) {
        combine_taps<kWindow, kStride>(to, line, first, count, combine, finish);
      });
    };
    const int64_t padding = axes.pad[2], length = std::max(padding + width, (outputs - 1) * kStride + kWindow);
    combine_rows(axes, padding, length, image, top, start, combine, take_taps);
  });
  if (is_usual) return;
  const std::vector<Tap> taps = row_taps(axes);
  const auto take_taps = [&](T *to, const T *line, const WindowSpan &depth, const WindowSpan &height) {
    std::fill(to, to + outputs, start);
    for (const Tap &tap : taps)
      combine_row(to + tap.first, line + tap.first * axes.stride[2] + tap.offset, axes.stride[2],
                  tap.last - tap.first, combine);
    const auto finish = finish_of(depth, height);
    for (int64_t w = 0; w < outputs; ++w) to[w] = finish(to[w], w);
  };
  combine_rows(axes, 0, width, image, top, start, combine, take_taps);
}

// The length by which averages divide along an axis.
inline int64_t counted(const PoolProblem &problem, const WindowSpan &span) {
  return problem.mode == POOL_AVERAGE_INC_PAD ? span.padded_length : span.end - span.begin;
}

template <class T>
void pool_forward(const PoolProblem &problem, const T *image, T *top) {
  const PoolAxes axes(problem);
  // NaN propagates: it counts as the maximum.
  const auto larger = [](T best, T x) {
    const T largest = x > best ? x : best;
    return x != x ? x : largest;
  };
  const auto add = [](T sum, T x) { return sum + x; };
  const auto keep = [](const WindowSpan &, const WindowSpan &) { return [](T result, int64_t) { return result; }; };
  if (problem.mode == POOL_MAX)
    return combine_windows(axes, image, top, -std::numeric_limits<T>::infinity(), larger, keep);
  if (problem.mode == POOL_SUM) return combine_windows(axes, image, top, T(0), add, keep);
  std::vector<T> widths(axes.top[2]);
  for (int64_t w = 0; w < axes.top[2]; ++w) widths[w] = (T)counted(problem, axes.span(2, w));
  const auto average = [&](const WindowSpan &depth, const WindowSpan &height) {
    const T rest = (T)(counted(problem, depth) * counted(problem, height));
    return [rest, widths = widths.data()](T sum, int64_t w) { return sum / (rest * widths[w]); };
  };
  combine_windows(axes, image, top, T(0), add, average);
}

}  // namespace dnnops
#endif
