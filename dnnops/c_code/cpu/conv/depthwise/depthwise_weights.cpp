// The gradient of a depthwise convolution with respect to its filters.
#include "depthwise_shift.hpp"
#include "depthwise_sums.hpp"

namespace dnnops::depthwise {
namespace {

Buffer buffer_of(const Planes &planes) {
  const int64_t read = round_up(planes.top_shape[1], kLanes) + (planes.kernel - 1) / planes.stride;
  return Buffer(planes.image_shape[1], planes.pad[1], read, planes.kernel, planes.stride, planes.top_shape[0]);
}

// The size of the threads' buffers, before the sums in float64.
int64_t buffers_size(const Planes &planes) {
  return widest(planes) <= kMostNarrow ? 0 : planes.threads * 2 * buffer_of(planes).size;
}

// Adds the products of R rows of output gradients to the sums of filter rows [first, first + rows).
template <int K, int S, int N, int R, int Rows>
inline void add_block(const float *rows, const Buffer &buffer, const float *top, int64_t width, int64_t x,
                      Vec<N> (&sums)[Rows * K]) {
  Vec<N> gradients[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) gradients[r] = load_first<N>(top + r * width + x, width - x);
#pragma GCC unroll 16
  for (int row = 0; row < (R - 1) * S + Rows; ++row)
#pragma GCC unroll 8
    for (int j = 0; j < K; ++j) {
      const Vec<N> pixels = load<N>(rows + row * buffer.step + j % S * buffer.phase + j / S + x);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
        if (row - r * S >= 0 && row - r * S < Rows) sums[(row - r * S) * K + j] += gradients[r] * pixels;
    }
}

// Adds the products of a band to the sums of `Rows` filter rows, as many as registers can hold.
template <int K, int S, int N, int Rows>
void add_filter_rows(const float *rows, const Buffer &buffer, const float *top, int64_t count, int64_t width,
                     Vec<N> *all) {
  constexpr int R = 4;
  Vec<N> sums[Rows * K];
#pragma GCC unroll 32
  for (int i = 0; i < Rows * K; ++i) sums[i] = all[i];
  for (; count >= R; count -= R, rows += R * S * buffer.step, top += R * width)
    for (int64_t x = 0; x < width; x += N) add_block<K, S, N, R, Rows>(rows, buffer, top, width, x, sums);
  for (; count > 0; --count, rows += S * buffer.step, top += width)
    for (int64_t x = 0; x < width; x += N) add_block<K, S, N, 1, Rows>(rows, buffer, top, width, x, sums);
#pragma GCC unroll 32
  for (int i = 0; i < Rows * K; ++i) all[i] = sums[i];
}

template <int K, int S, int N>
inline void add_band(const float *rows, const Buffer &buffer, const float *top, int64_t count, int64_t width,
                     Vec<N> *all) {
  constexpr int Rows = std::min(K, kRegisters / K), Rest = K % Rows;
  for (int i = 0; i + Rows <= K; i += Rows)
    add_filter_rows<K, S, N, Rows>(rows + i * buffer.step, buffer, top, count, width, all + i * K);
  if constexpr (Rest > 0)
    add_filter_rows<K, S, N, Rest>(rows + (K - Rest) * buffer.step, buffer, top, count, width, all + (K - Rest) * K);
}

template <int K, int S>
void sum_task(const Planes &planes, const SumTask &task, float *buffers, double *all) {
  constexpr int N = kLanes;
  const Buffer buffer = buffer_of(planes);
  const int64_t width = planes.top_shape[1], vectors = ceil_div(width, N);
  float *now = buffers, *next = buffers + buffer.size;
  std::fill(now, now + 2 * buffer.size, 0.f);
  Sums<K, N> sums(task.last_channel - task.first_channel);
  const auto add = [&](const Task &band, const float *rows) {
    const int64_t first = band.band * buffer.rows, count = std::min(buffer.rows, planes.top_shape[0] - first);
    add_band<K, S, N>(rows, buffer, planes.top + band.plane * planes.top_size() + first * width, count, width,
                      sums.vectors(band.channel, count * vectors));
  };
  // A band is copied before the previous one is added, as in for_bands().
  Task previous{-1, 0, 0};
  task.for_planes(planes.channels, [&](int64_t plane, int64_t channel) {
    for (int64_t band = 0; band < buffer.bands; ++band) {
      const int64_t first = band * buffer.rows, count = std::min(buffer.rows, planes.top_shape[0] - first);
      copy_rows<S>(buffer, planes.image + plane * planes.image_size(), planes.image_shape, planes.pad[1],
                   first * S - planes.pad[0], (count - 1) * S + K, next);
      if (previous.plane >= 0) add(previous, now);
      previous = {plane, channel, band};
      std::swap(now, next);
    }
  });
  add(previous, now);
  sums.finish(all);
}

#ifdef __AVX2__
// Adds the products of the rows [first, last) of output gradients.
template <int K, int S, int N, int M, int First, int Rows>
inline void add_shifted_rows(const Planes &planes, const float *image, const Shift<N, M> (&shifts)[K], const float *top,
                            int64_t first, int64_t last, Vec<M> *all) {
  const int64_t height = planes.image_shape[0], width = planes.image_shape[1], columns = planes.top_shape[1];
  Vec<M> sums[Rows * K];
#pragma GCC unroll 32
  for (int i = 0; i < Rows * K; ++i) sums[i] = all[First * K + i];
  constexpr int R = 4;
  for (int64_t y = first; y < last; y += R) {
    Vec<M> gradients[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
      gradients[r] = y + r < last ? load_first<M>(top + (y + r) * columns, columns) : Vec<M>{};
#pragma GCC unroll 16
    for (int i = 0; i < (R - 1) * S + Rows; ++i) {
      const int64_t row = y * S + First + i - planes.pad[0];
      if (row < 0 || row >= height) continue;
      const Vec<N> pixels = load_first<N>(image + row * width, width);
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j) {
        const Vec<M> shifted = shifts[j](pixels);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
          if (i - r * S >= 0 && i - r * S < Rows) sums[(i - r * S) * K + j] += gradients[r] * shifted;
      }
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < Rows * K; ++i) all[First * K + i] = sums[i];
}

template <int K, int S, int N, int M, int First = 0>
inline void add_products(const Planes &planes, const float *image, const Shift<N, M> (&shifts)[K], const float *top,
                         int64_t first, int64_t last, Vec<M> *all) {
  constexpr int Rows = std::min(K - First, kRegisters / K);
  add_shifted_rows<K, S, N, M, First, Rows>(planes, image, shifts, top, first, last, all);
  if constexpr (First + Rows < K) add_products<K, S, N, M, First + Rows>(planes, image, shifts, top, first, last, all);
}

template <int K, int S, int N, int M>
void sum_narrow_task(const Planes &planes, const SumTask &task, double *all) {
  Shift<N, M> shifts[K];
  for (int j = 0; j < K; ++j) shifts[j] = Shift<N, M>(S, j - planes.pad[1], planes.image_shape[1]);
  Sums<K, M> sums(task.last_channel - task.first_channel);
  const int64_t rows = planes.top_shape[0];
  task.for_planes(planes.channels, [&](int64_t plane, int64_t channel) {
    for (int64_t first = 0; first < rows; first += kMostProducts) {
      const int64_t last = std::min(first + kMostProducts, rows);
      add_products<K, S, N, M>(planes, planes.image + plane * planes.image_size(), shifts,
                            planes.top + plane * planes.top_size(), first, last, sums.vectors(channel, last - first));
    }
  });
  sums.finish(all);
}
#endif

template <int K, int S>
void sum_any_task(const Planes &planes, const SumTask &task, float *buffers, double *all) {
#ifdef __AVX2__
  if (widest(planes) <= kMostNarrow)
    return with_lanes<S>(planes, [&](auto n, auto m) { sum_narrow_task<K, S, n, m>(planes, task, all); });
#endif
  sum_task<K, S>(planes, task, buffers, all);
}

// Adds the parts of a channel.
void finish(const Planes &planes, int64_t channel, int64_t parts, const double *sums) {
  const int64_t count = planes.tap_count();
  float *const taps = planes.taps + channel * count;
  for (int64_t i = 0; i < count; ++i) {
    double sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += sums[part * planes.channels * count + i];
    taps[i] = (float)sum;
  }
  if (are_finite(taps, count)) return;
  // There may be infinities that were multiplied with zeros.
  std::fill(taps, taps + count, 0.f);
  for (int64_t image = 0; image < planes.batch; ++image) {
    const int64_t plane = image * planes.channels + channel;
    const float *const pixels = planes.image + plane * planes.image_size();
    const float *const top = planes.top + plane * planes.top_size();
    for_products(planes, [&](int64_t i, int64_t o, int64_t tap) { taps[tap] += pixels[i] * top[o]; });
  }
}

}  // namespace

int64_t sum_products_scratch(const Planes &planes) {
  return buffers_size(planes) + 2 * planes.channels * SumTasks(planes).parts * planes.tap_count();
}

void sum_products(const Planes &planes, float *scratch) {
  const SumTasks tasks(planes);
  const int64_t count = planes.tap_count(), size = buffers_size(planes) / planes.threads;
  double *const sums = reinterpret_cast<double *>(scratch + buffers_size(planes));
  with_constants(planes.kernel, planes.stride, [&](auto kernel, auto stride) {
    constexpr int K = kernel, S = stride;
#pragma omp parallel num_threads(planes.threads)
    {
#pragma omp for schedule(static)
      for (int64_t i = 0; i < tasks.count(); ++i) {
        const SumTask task = tasks.task(planes, i);
        double *const own = sums + (i % tasks.parts * planes.channels + task.first_channel) * count;
        sum_any_task<K, S>(planes, task, scratch + omp_get_thread_num() * size, own);
      }
#pragma omp for schedule(static)
      for (int64_t channel = 0; channel < planes.channels; ++channel)
        finish(planes, channel, tasks.parts, sums + channel * count);
    }
  });
}

}  // namespace dnnops::depthwise
