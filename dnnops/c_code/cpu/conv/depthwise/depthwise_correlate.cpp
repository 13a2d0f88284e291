// Depthwise convolution forward, which is also the gradient with respect to the image for stride 1.
#include "depthwise_shift.hpp"

namespace dnnops::depthwise {
namespace {

Buffer buffer_of(const Planes &planes) {
  const int64_t read = std::max<int64_t>(planes.top_shape[1], kLanes) + (planes.kernel - 1) / planes.stride;
  return Buffer(planes.image_shape[1], planes.pad[1], read, planes.kernel, planes.stride, planes.top_shape[0]);
}

// R rows of outputs of N columns. A row of pixels is loaded once for all outputs that it belongs to.
template <int K, int S, int N, int R>
inline void correlate_block(const float *rows, const Buffer &buffer, const Vec<N> (&taps)[K * K], Vec<N> (&sums)[R]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sums[r] = Vec<N>{};
#pragma GCC unroll 16
  for (int row = 0; row < (R - 1) * S + K; ++row)
#pragma GCC unroll 8
    for (int j = 0; j < K; ++j) {
      const Vec<N> pixels = load<N>(rows + row * buffer.step + j % S * buffer.phase + j / S);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
        if (row - r * S >= 0 && row - r * S < K) sums[r] += taps[(row - r * S) * K + j] * pixels;
    }
}

// R rows of outputs. Vectors at the end of a row overlap, or reach into the next row, which is written later, but not
// beyond `end`.
template <int K, int S, int N, int R>
inline void correlate_rows(const float *rows, const Buffer &buffer, const Vec<N> (&taps)[K * K], int64_t width,
                           float *top, const float *end) {
  for (int64_t x = 0;;) {
    Vec<N> sums[R];
    correlate_block<K, S, N, R>(rows + x, buffer, taps, sums);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      float *const to = top + r * width + x;
      if (to + N <= end)
        store(to, sums[r]);
      else
        store_first(to, sums[r], width);
    }
    if (x + N >= width) return;
    x = std::min(x + N, width - N);
  }
}

template <int K, int S, int N>
void correlate_band(const float *rows, const Buffer &buffer, const float *channel_taps, int64_t count, int64_t width,
                    float *top) {
  constexpr int R = 4;
  Vec<N> taps[K * K];
  for (int i = 0; i < K * K; ++i) taps[i] = broadcast<N>(channel_taps[i]);
  const float *const end = top + count * width;
  for (; count >= R; count -= R, rows += R * S * buffer.step, top += R * width)
    correlate_rows<K, S, N, R>(rows, buffer, taps, width, top, end);
  if (count == 3) correlate_rows<K, S, N, 3>(rows, buffer, taps, width, top, end);
  if (count == 2) correlate_rows<K, S, N, 2>(rows, buffer, taps, width, top, end);
  if (count == 1) correlate_rows<K, S, N, 1>(rows, buffer, taps, width, top, end);
}

void correlate_inside(const Planes &planes, const float *image, const float *taps, float *top) {
  std::fill(top, top + planes.top_size(), 0.f);
  for_products(planes, [&](int64_t i, int64_t o, int64_t tap) { top[o] += image[i] * taps[tap]; });
}

#ifdef __AVX2__
// Rows that are computed at a time.
constexpr int kRows = kLanes == 16 ? 7 : 4;

template <int K, int S, int N, int M>
inline void correlate_plane(const Planes &planes, const float *image, const Shift<N, M> (&shifts)[K],
                            const float *channel_taps, float *top) {
  const int64_t size = planes.image_size(), width = planes.image_shape[1], columns = planes.top_shape[1];
  int64_t left = planes.top_size();  // outputs to store
  Vec<M> taps[K * K];
#pragma GCC unroll 64
  for (int i = 0; i < K * K; ++i) taps[i] = broadcast<M>(channel_taps[i]);
  for (int64_t y = 0; left > 0; y += kRows) {
    Vec<M> sums[kRows] = {};
    int64_t at = (y * S - planes.pad[0]) * width;
#pragma GCC unroll 32
    for (int i = 0; i < (kRows - 1) * S + K; ++i, at += width) {
      if (at < 0 || at >= size) continue;
      const Vec<N> pixels = load_first<N>(image + at, width);
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j) {
        const Vec<M> shifted = shifts[j](pixels);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
          if (i - r * S >= 0 && i - r * S < K) sums[r] += taps[(i - r * S) * K + j] * shifted;
      }
    }
    // A vector may reach into the next row, which is written later.
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r, top += columns, left -= columns) {
      if (left >= M) {
        store(top, sums[r]);
      } else {
        if (left <= 0) break;
        store_first(top, sums[r], columns);
      }
    }
  }
}

void correlate_narrow(const Planes &planes) {
  const bool finite = are_finite(planes.taps, planes.channels * planes.tap_count());
  with_constants(planes.kernel, planes.stride, [&](auto kernel, auto stride) {
    constexpr int K = kernel, S = stride;
    with_lanes<S>(planes, [&](auto image_lanes, auto top_lanes) {
      constexpr int N = image_lanes, M = top_lanes;
      Shift<N, M> shifts[K];
      for (int j = 0; j < K; ++j) shifts[j] = Shift<N, M>(S, j - planes.pad[1], planes.image_shape[1]);
#pragma omp parallel for collapse(2) num_threads(planes.threads) schedule(static)
      for (int64_t image = 0; image < planes.batch; ++image)
        for (int64_t channel = 0; channel < planes.channels; ++channel) {
          const int64_t plane = image * planes.channels + channel;
          const float *const pixels = planes.image + plane * planes.image_size();
          const float *const taps = planes.taps + channel * (K * K);
          float *const top = planes.top + plane * planes.top_size();
          if (finite || are_finite(taps, K * K))
            correlate_plane<K, S, N, M>(planes, pixels, shifts, taps, top);
          else
            correlate_inside(planes, pixels, taps, top);
        }
    });
  });
}
#else
void correlate_narrow(const Planes &) {}
#endif

}  // namespace

int64_t correlate_scratch(const Planes &planes) {
  return widest(planes) <= kMostNarrow ? 0 : planes.threads * 2 * buffer_of(planes).size;
}

void correlate(const Planes &planes, float *scratch) {
  if (widest(planes) <= kMostNarrow) return correlate_narrow(planes);
  const Buffer buffer = buffer_of(planes);
  const bool finite = are_finite(planes.taps, planes.channels * planes.tap_count());
  const int64_t width = planes.top_shape[1];
  with_constants(planes.kernel, planes.stride, [&](auto kernel, auto stride) {
    constexpr int K = kernel, S = stride, N = kLanes;
    const auto rows_of = [&](const Task &task) {
      return std::min(buffer.rows, planes.top_shape[0] - task.band * buffer.rows);
    };
    const auto copy = [&](const Task &task, float *rows) {
      copy_rows<S>(buffer, planes.image + task.plane * planes.image_size(), planes.image_shape, planes.pad[1],
                   task.band * buffer.rows * S - planes.pad[0], (rows_of(task) - 1) * S + K, rows);
    };
    const auto compute = [&](const Task &task, const float *rows) {
      const float *const taps = planes.taps + task.channel * (K * K);
      float *const top = planes.top + task.plane * planes.top_size();
      if (finite || are_finite(taps, K * K)) {
        correlate_band<K, S, N>(rows, buffer, taps, rows_of(task), width, top + task.band * buffer.rows * width);
      } else if (task.band == 0) {
        correlate_inside(planes, planes.image + task.plane * planes.image_size(), taps, top);
      }
    };
    for_bands(planes, buffer, scratch, copy, compute);
  });
}

}  // namespace dnnops::depthwise
