// The loops of depthwise convolutions. A task is a band: some rows of the result of one plane, which is one channel
// of one image. The rows that it reads are copied into a buffer with the zeros around the image, which stays in the
// first-level cache, so the loops themselves have no edges.
#ifndef DNNOPS_ONEDNN_DEPTHWISE_PLANES_HPP
#define DNNOPS_ONEDNN_DEPTHWISE_PLANES_HPP

#include <algorithm>
#include <type_traits>
#include <utility>

#include <omp.h>

#include "../../base/rounding.hpp"
#include "depthwise_simd.hpp"

namespace dnnops::depthwise {

// A depthwise convolution as a correlation: top(y, x) is the sum of taps(i, j) * image(y * stride + i - pad[0],
// x * stride + j - pad[1]). Each array is contiguous; the image or the top may be the one that is computed.
struct Planes {
  int64_t batch, channels, kernel, stride, threads;
  int64_t image_shape[2], top_shape[2], pad[2];
  float *image, *taps, *top;  // taps: kernel * kernel floats for each channel

  int64_t count() const { return batch * channels; }
  int64_t tap_count() const { return kernel * kernel; }
  int64_t image_size() const { return image_shape[0] * image_shape[1]; }
  int64_t top_size() const { return top_shape[0] * top_shape[1]; }
};

// The length of the longest rows.
inline int64_t widest(const Planes &planes) { return std::max(planes.image_shape[1], planes.top_shape[1]); }

// The top from the image and the taps.
void correlate(const Planes &planes, float *scratch);
// The gradient with respect to the image, for stride 2.
void spread(const Planes &planes, float *scratch);
// The gradient with respect to the taps.
void sum_products(const Planes &planes, float *scratch);

// Scratch memory in floats.
int64_t correlate_scratch(const Planes &planes);
int64_t spread_scratch(const Planes &planes);
int64_t sum_products_scratch(const Planes &planes);

// The buffer of a thread. With stride 2, the even columns of a row come first, then the odd ones, so that the pixels
// which a tap reads for a row of outputs are adjacent.
struct Buffer {
  int64_t step;   // from row to row
  int64_t phase;  // from even to odd columns
  int64_t rows;   // rows of the result in a band, the last band of a plane excepted
  int64_t bands;  // of a plane
  int64_t size;   // of the buffer

  // For rows of `width` pixels behind `pad` zeros, of which outputs read up to `read` columns of a phase.
  Buffer(int64_t width, int64_t pad, int64_t read, int64_t kernel, int64_t stride, int64_t result_rows) {
    phase = round_up(std::max(ceil_div(pad, stride) + round_up(ceil_div(width, stride), kLanes), read), kLanes);
    step = phase * stride;
    // Bands of about 12 KiB, in whole blocks of rows, so that two of them fit into the first-level cache.
    constexpr int64_t kFloats = 3072, kBlock = 4;
    rows = std::max<int64_t>(2 * kBlock, (kFloats / step - kernel) / stride / kBlock * kBlock);
    bands = ceil_div(result_rows, rows);
    rows = std::min(round_up(ceil_div(result_rows, bands), kBlock), result_rows);
    bands = ceil_div(result_rows, rows);
    size = round_up(((rows - 1) * stride + kernel) * step, 2 * kLanes);
  }
};

template <int S>
inline void copy_row(const float *from, int64_t count, int64_t pad, int64_t phase, float *to) {
  // With stride 2, the first pixel is in an odd column if the padding is odd.
  float *const first = S == 1 ? to + pad : to + pad % 2 * phase + pad / 2;
  float *const second = pad % 2 ? to + (pad + 1) / 2 : to + phase + pad / 2;
  for (int64_t x = 0; x < count; x += kLanes) {
    const Vec<kLanes> pixels = load_first<kLanes>(from + x, count - x);
    if constexpr (S == 1)
      store(first + x, pixels);
    else
      store_parities(pixels, first + x / 2, second + x / 2);
  }
}

// Copies `count` rows of a plane from row `first` on; rows outside of it are zeros. The buffer starts as zeros, and
// what lies beside the image stays zero, also above and below it if each plane is a single band.
template <int S>
inline void copy_rows(const Buffer &buffer, const float *plane, const int64_t *shape, int64_t pad, int64_t first,
                      int64_t count, float *to) {
  for (int64_t i = 0; i < count; ++i, to += buffer.step) {
    const int64_t row = first + i;
    if (row >= 0 && row < shape[0])
      copy_row<S>(plane + row * shape[1], shape[1], pad, buffer.phase, to);
    else if (buffer.bands > 1)
      std::memset(to, 0, buffer.step * sizeof(float));
  }
}

// A band of one plane.
struct Task {
  int64_t plane, channel, band;
};

// Computes all bands in the threads of a parallel region. The next band is copied before one is computed, because
// loads that overlap two recent stores would wait for them.
template <class Copy, class Compute>
void for_bands(const Planes &planes, const Buffer &buffer, float *scratch, Copy &&copy, Compute &&compute) {
#pragma omp parallel num_threads(planes.threads)
  {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads(), tasks = planes.count() * buffer.bands;
    const int64_t begin = tasks * thread / threads, end = tasks * (thread + 1) / threads;
    float *now = scratch + 2 * thread * buffer.size, *next = now + buffer.size;
    std::fill(now, now + 2 * buffer.size, 0.f);
    const int64_t plane = begin / buffer.bands;
    Task task{plane, plane % planes.channels, begin % buffer.bands};
    if (begin < end) copy(task, now);
    for (int64_t i = begin; i < end; ++i) {
      Task following = task;
      if (++following.band == buffer.bands) {
        following.band = 0;
        ++following.plane;
        if (++following.channel == planes.channels) following.channel = 0;
      }
      if (i + 1 < end) copy(following, next);
      compute(task, now);
      task = following;
      std::swap(now, next);
    }
  }
}

// Calls body(index in the image, index in the top, index of the tap) for all products of a plane, without those of
// zeros around the image. This is slow. The loops with vectors multiply these zeros, which must not turn an infinity
// into NaN.
template <class Body>
void for_products(const Planes &planes, Body &&body) {
  for (int64_t y = 0; y < planes.top_shape[0]; ++y)
    for (int64_t x = 0; x < planes.top_shape[1]; ++x)
      for (int64_t i = 0; i < planes.kernel; ++i)
        for (int64_t j = 0; j < planes.kernel; ++j) {
          const int64_t row = y * planes.stride + i - planes.pad[0], column = x * planes.stride + j - planes.pad[1];
          if (row >= 0 && row < planes.image_shape[0] && column >= 0 && column < planes.image_shape[1])
            body(row * planes.image_shape[1] + column, y * planes.top_shape[1] + x, i * planes.kernel + j);
        }
}

inline bool are_finite(const float *values, int64_t count) {
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    found |= (bits & 0x7f800000) == 0x7f800000;
  }
  return !found;
}

// Calls loops(kernel, stride) with constants.
template <class Loops>
void with_constants(int64_t kernel, int64_t stride, Loops &&loops) {
  const auto strided = [&](auto k) {
    if (stride == 1)
      loops(k, std::integral_constant<int, 1>());
    else
      loops(k, std::integral_constant<int, 2>());
  };
  if (kernel == 3)
    strided(std::integral_constant<int, 3>());
  else if (kernel == 5)
    strided(std::integral_constant<int, 5>());
  else
    strided(std::integral_constant<int, 7>());
}

}  // namespace dnnops::depthwise
#endif
