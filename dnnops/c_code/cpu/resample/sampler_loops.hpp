// Bilinear sampling of images at the points of a grid, and its gradients, one image at a time.
//
// A point's coordinates, x before y, run from -1 to 1 between the centers of the corner pixels. Pixels
// outside of the image are zero.
#ifndef DNNOPS_ONEDNN_SAMPLER_LOOPS_HPP
#define DNNOPS_ONEDNN_SAMPLER_LOOPS_HPP

#include <algorithm>
#include <cmath>
#include <limits>

#include "../base/views.hpp"

namespace dnnops {

// One image or its gradient. Strides are in elements.
template <class T>
struct Pixels {
  T *data;
  int64_t channels, rows, columns, channel_step, row_step, column_step;
};

// The points of one image. Strides are in elements.
template <class T>
struct Points {
  const T *data;
  int64_t point_step, axis_step;
};

// The values of one image at the points, or their gradient, as (channel, point). Strides are in elements.
template <class T>
struct Samples {
  T *data;
  int64_t channel_step, point_step;
};

constexpr int64_t kTile = 64;

// The four pixels around each point of a tile: top left, top right, bottom left, bottom right.
template <class T, class Offset>
struct Taps {
  alignas(64) Offset offset[4][kTile];  // of the pixel in its plane; -1 if it lies outside
  T weight[4][kTile];
  T across[kTile], down[kTile];  // the distance of the point from the left and top pixels
  int32_t column[kTile], row[kTile];
  int64_t count;
};

// The pixel before each point along one axis, and the distance of the point from it.
template <class T>
void place(const T *at, int64_t step, int64_t size, int64_t count, int32_t *before, T *distance) {
  const double half = 0.5 * (double)(size - 1), end = (double)size;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    // In double, since float32 would lose the fractional part.
    const double given = ((double)at[i * step] + 1) * half;
    // Clamp points that are far away, so that they fit an integer; NaN becomes a position without a pixel.
    // std::floor would be a function call.
    double safe = given >= -2 ? given : -2;
    safe = safe > end ? end : safe;
    int32_t whole = (int32_t)safe;
    whole -= safe < (double)whole;
    before[i] = whole;
    double near = given < -2 ? -2 : given;  // NaN is kept
    near = near > end ? end : near;
    distance[i] = (T)(near - (double)whole);
  }
}

// With skip_zeros, pixels of weight zero count as outside, so that an infinite or NaN neighbor has no effect.
template <bool skip_zeros, class T, class Offset, class Pixel>
void find_taps(const Pixels<Pixel> &image, const Points<T> &points, int64_t begin, int64_t count,
               Taps<T, Offset> &taps) {
  taps.count = count;
  const T *at = points.data + begin * points.point_step;
  place(at, points.point_step, image.columns, count, taps.column, taps.across);
  place(at + points.axis_step, points.point_step, image.rows, count, taps.row, taps.down);
  const int32_t columns = (int32_t)image.columns, rows = (int32_t)image.rows;
  const Offset row_step = (Offset)image.row_step, column_step = (Offset)image.column_step;
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const int32_t below = k / 2, right = k % 2;
    Offset *offset = taps.offset[k];
    T *weight = taps.weight[k];
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T across = taps.across[i], down = taps.down[i];
      const int32_t column = taps.column[i] + right, row = taps.row[i] + below;
      const T by = (right ? across : 1 - across) * (below ? down : 1 - down);
      const Offset found = (Offset)row * row_step + (Offset)column * column_step;
      const bool met = (uint32_t)column < (uint32_t)columns && (uint32_t)row < (uint32_t)rows;
      weight[i] = by;
      offset[i] = met && (!skip_zeros || by != 0) ? found : -1;
    }
  }
}

template <class T, class Offset>
inline T pixel(const T *plane, Offset offset) {
  return offset >= 0 ? plane[offset] : T(0);
}

// -- the values --------------------------------------------------------------------------------

// For images with any strides, one plane at a time.
template <class T, class Offset>
void sample_planes(const Pixels<const T> &image, const Taps<T, Offset> &taps, const Samples<T> &to, int64_t begin) {
  const Offset *const o0 = taps.offset[0], *const o1 = taps.offset[1], *const o2 = taps.offset[2],
               *const o3 = taps.offset[3];
  const T *const w0 = taps.weight[0], *const w1 = taps.weight[1], *const w2 = taps.weight[2],
          *const w3 = taps.weight[3];
  for (int64_t c = 0; c < image.channels; ++c) {
    const T *plane = image.data + c * image.channel_step;
    T *values = to.data + c * to.channel_step + begin;
#pragma omp simd
    for (int64_t i = 0; i < taps.count; ++i)
      values[i] = pixel(plane, o0[i]) * w0[i] + pixel(plane, o1[i]) * w1[i] + pixel(plane, o2[i]) * w2[i] +
                  pixel(plane, o3[i]) * w3[i];
  }
}

// For images with dense channels, all channels of a point at a time. zeros has one element per channel; room
// holds a tile of points.
template <class T, class Offset>
void sample_pixels(const Pixels<const T> &image, const Taps<T, Offset> &taps, const T *zeros, T *room,
                   const Samples<T> &to, int64_t begin) {
  const int64_t channels = image.channels;
  for (int64_t i = 0; i < taps.count; ++i) {
    const T *from[4], *const data = image.data;
    for (int k = 0; k < 4; ++k) from[k] = taps.offset[k][i] >= 0 ? data + taps.offset[k][i] : zeros;
    const T w0 = taps.weight[0][i], w1 = taps.weight[1][i], w2 = taps.weight[2][i], w3 = taps.weight[3][i];
    T *values = room + i * channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c)
      values[c] = from[0][c] * w0 + from[1][c] * w1 + from[2][c] * w2 + from[3][c] * w3;
  }
  for (int64_t c = 0; c < channels; ++c) {
    T *values = to.data + c * to.channel_step + begin;
    for (int64_t i = 0; i < taps.count; ++i) values[i] = room[i * channels + c];
  }
}

// -- the gradient with respect to the image ------------------------------------------------------

// Adds to an image with any strides. Processing several planes at once hides the latency of adding to the
// pixel just written.
template <int planes, class T, class Offset>
void spread_over(const Pixels<T> &image, const Taps<T, Offset> &taps, const Samples<const T> &top, int64_t begin,
                 int64_t channel) {
  T *const to = image.data + channel * image.channel_step;
  const T *from = top.data + channel * top.channel_step + begin * top.point_step;
  for (int64_t i = 0; i < taps.count; ++i, from += top.point_step)
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      if (taps.offset[k][i] < 0) continue;
      T *at = to + taps.offset[k][i];
#pragma GCC unroll 4
      for (int c = 0; c < planes; ++c) at[c * image.channel_step] += from[c * top.channel_step] * taps.weight[k][i];
    }
}

template <class T, class Offset>
void spread_planes(const Pixels<T> &image, const Taps<T, Offset> &taps, const Samples<const T> &top, int64_t begin) {
  int64_t c = 0;
  for (; c + 4 <= image.channels; c += 4) spread_over<4>(image, taps, top, begin, c);
  switch (image.channels - c) {
    case 3: return spread_over<3>(image, taps, top, begin, c);
    case 2: return spread_over<2>(image, taps, top, begin, c);
    case 1: return spread_over<1>(image, taps, top, begin, c);
  }
}

// The values of some points with dense channels, in place or copied to room.
template <class T>
Samples<const T> side_by_side(const Samples<const T> &top, int64_t begin, int64_t count, int64_t channels, T *room) {
  const T *from = top.data + begin * top.point_step;
  if (top.channel_step == 1) return {from, 1, top.point_step};
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t i = 0; i < count; ++i) room[i * channels + c] = from[c * top.channel_step + i * top.point_step];
  return {room, 1, channels};
}

// Adds to an image with dense channels; room holds a tile of points.
template <class T, class Offset>
void spread_pixels(const Pixels<T> &image, const Taps<T, Offset> &taps, const Samples<const T> &top, T *room,
                   int64_t begin) {
  const int64_t channels = image.channels;
  const Samples<const T> dense = side_by_side(top, begin, taps.count, channels, room);
  const T *from = dense.data;
  for (int64_t i = 0; i < taps.count; ++i, from += dense.point_step)
    for (int k = 0; k < 4; ++k) {
      if (taps.offset[k][i] < 0) continue;
      T *at = image.data + taps.offset[k][i];
      const T weight = taps.weight[k][i];
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) at[c] += from[c] * weight;
    }
}

// -- the gradient with respect to the grid -------------------------------------------------------

// For images with any strides, one plane at a time. Adds the derivatives along x and y, in pixels.
template <class T, class Offset>
void slope_planes(const Pixels<const T> &image, const Taps<T, Offset> &taps, const Samples<const T> &top,
                  int64_t begin, T *along_x, T *along_y) {
  const Offset *const o0 = taps.offset[0], *const o1 = taps.offset[1], *const o2 = taps.offset[2],
               *const o3 = taps.offset[3];
  const T *const across = taps.across, *const down = taps.down;
  for (int64_t c = 0; c < image.channels; ++c) {
    const T *plane = image.data + c * image.channel_step;
    const T *from = top.data + c * top.channel_step + begin * top.point_step;
    const int64_t step = top.point_step;
#pragma omp simd
    for (int64_t i = 0; i < taps.count; ++i) {
      const T v0 = pixel(plane, o0[i]), v1 = pixel(plane, o1[i]), v2 = pixel(plane, o2[i]), v3 = pixel(plane, o3[i]);
      const T gradient = from[i * step];
      along_x[i] += gradient * ((v1 - v0) * (1 - down[i]) + (v3 - v2) * down[i]);
      along_y[i] += gradient * ((v2 - v0) * (1 - across[i]) + (v3 - v1) * across[i]);
    }
  }
}

// For images with dense channels.
template <class T, class Offset>
void slope_pixels(const Pixels<const T> &image, const Taps<T, Offset> &taps, const T *zeros,
                  const Samples<const T> &top, T *room, int64_t begin, T *along_x, T *along_y) {
  const int64_t channels = image.channels;
  const Samples<const T> dense = side_by_side(top, begin, taps.count, channels, room);
  const T *from = dense.data;
  for (int64_t i = 0; i < taps.count; ++i, from += dense.point_step) {
    const T *v[4];
    for (int k = 0; k < 4; ++k) v[k] = taps.offset[k][i] >= 0 ? image.data + taps.offset[k][i] : zeros;
    const T across = taps.across[i], down = taps.down[i];
    T x = 0, y = 0;
#pragma omp simd reduction(+ : x, y)
    for (int64_t c = 0; c < channels; ++c) {
      x += from[c] * ((v[1][c] - v[0][c]) * (1 - down) + (v[3][c] - v[2][c]) * down);
      y += from[c] * ((v[2][c] - v[0][c]) * (1 - across) + (v[3][c] - v[1][c]) * across);
    }
    along_x[i] = x;
    along_y[i] = y;
  }
}

}  // namespace dnnops
#endif
