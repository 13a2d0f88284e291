// Per-channel sums in float64, and the batch normalization computed from them.
#ifndef DNNOPS_ONEDNN_BATCHNORM_LOOPS_HPP
#define DNNOPS_ONEDNN_BATCHNORM_LOOPS_HPP

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "../base/huge_pages.hpp"
#include "../base/views.hpp"

namespace dnnops {

// How elements are distributed over threads: in slices of rows and, if there are too few rows, also in blocks
// of channels. A row is a part of a dense inner axis, or otherwise a few positions with all their channels.
struct Partition {
  static constexpr int64_t kRow = 4096, kPositions = 4;
  int64_t channels, inner, threads, pieces, rows, slices, blocks;
  bool along_inner;

  Partition(const View &view, bool along_inner) : channels(view.shape[1]), inner(view.shape[2]), along_inner(along_inner) {
    threads = view.shape[0] * channels * inner > 16384 ? thread_count() : 1;
    const int64_t row = along_inner ? kRow : kPositions;
    pieces = (inner + row - 1) / row;
    rows = view.shape[0] * pieces;
    slices = std::min(rows, threads);
    blocks = std::min(channels, (threads + slices - 1) / slices);
  }

  // Calls body(slice, n, begin, end, first, last) for elements [begin, end) of the inner axis of image n and
  // channels [first, last).
  template <class Body>
  void run(Body &&body) const {
#pragma omp parallel for if (threads > 1)
    for (int64_t task = 0; task < slices * blocks; ++task) {
      const int64_t slice = task / blocks, block = task % blocks;
      for (int64_t row = rows * slice / slices; row < rows * (slice + 1) / slices; ++row) {
        const int64_t length = along_inner ? kRow : kPositions, begin = row % pieces * length;
        const int64_t end = std::min(inner, begin + length);
        body(slice, row / pieces, begin, end, channels * block / blocks, channels * (block + 1) / blocks);
      }
    }
  }
};

inline bool is_along_inner(const View &view) { return view.strides[2] == 1 && view.shape[2] > 1; }

// Views many images of one position as one image of many positions, so that positions are processed together.
inline View of_one_image(View view) {
  if (view.shape[2] == 1) {
    std::swap(view.shape[0], view.shape[2]);
    std::swap(view.strides[0], view.strides[2]);
  }
  return view;
}

inline View contiguous(View view) {
  contiguous_strides(3, view.shape, view.strides);
  return view;
}

template <class T>
const T *element(const View &view, const T *data, int64_t n, int64_t channel, int64_t i) {
  return data + n * view.strides[0] + channel * view.strides[1] + i * view.strides[2];
}

// How many terms are added without compensation. Terms of float32 data keep their digits in float64, over a whole row.
template <class T>
constexpr int64_t kRun = std::is_same_v<T, double> ? 64 : Partition::kRow;

// Adds a term computed from float32 or float64 values. For float64, whose precision is that of the sum,
// `lost` collects the rounding errors.
template <class T>
inline void accumulate(double &sum, double &lost, double term) {
  const double next = sum + term, added = next - sum;
  if (std::is_same_v<T, double>) lost += (sum - (next - added)) + (term - added);
  sum = next;
}

// Sums for each channel and slice. Their rounding depends only on the number of threads.
template <class T, int count>
struct Sums {
  std::vector<double> of[count], lost[count];
  explicit Sums(const Partition &partition) {
    for (auto &sums : of) sums.resize(partition.slices * partition.channels);
    for (auto &sums : lost) sums.resize(partition.slices * partition.channels);
  }
  // Adds up the slices into the first one.
  void add_up(const Partition &partition) {
    for (int which = 0; which < count; ++which) {
      std::vector<double> &sums = of[which], &rests = lost[which];
      for (int64_t i = partition.channels; i < (int64_t)sums.size(); ++i) {
        const int64_t channel = i % partition.channels;
        accumulate<T>(sums[channel], rests[channel], sums[i]);
        rests[channel] += rests[i];
      }
      for (int64_t c = 0; c < partition.channels; ++c)
        if (rests[c] == rests[c]) sums[c] += rests[c];  // an infinite sum has no rounding error to add back
    }
  }
};

// Calls body with a constant that says whether channels are dense, so that the loop is also compiled for that case.
template <class Body>
void by_channel(bool is_dense, Body &&body) {
  if (is_dense)
    body(std::true_type());
  else
    body(std::false_type());
}

// Calls body(is_dense, count, from) with two constants: is_dense as above, and count, the number of positions
// to process together, starting at `from`. A channel's sums are then read and written only once per group.
template <class Body>
void by_position(bool is_dense, int64_t count, Body &&body) {
  by_channel(is_dense, [&](auto dense) {
    if (count == Partition::kPositions) return body(dense, std::integral_constant<int, Partition::kPositions>(), 0);
    for (int64_t at = 0; at < count; ++at) body(dense, std::integral_constant<int, 1>(), at);
  });
}

// rest: the rounding error of the mean.
struct Statistics {
  std::vector<double> mean, rest, variance;
};

// Computes the statistics in one pass, from the sums of a channel's differences from its origin and of their squares.
template <class T>
Statistics statistics_from(const std::vector<double> &origin, const View &view, const T *data) {
  const Partition partition(view, is_along_inner(view));
  const int64_t channels = view.shape[1];
  Sums<T, 2> sums(partition);
  partition.run([&](int64_t slice, int64_t n, int64_t begin, int64_t end, int64_t first, int64_t last) {
    const auto part = [&](std::vector<double> &all) { return all.data() + slice * channels; };
    double *totals = part(sums.of[0]), *all_squares = part(sums.of[1]);
    double *lost_totals = part(sums.lost[0]), *lost_squares = part(sums.lost[1]);
    if (!partition.along_inner) {
      const int64_t step = view.strides[1], apart = view.strides[2];
      by_position(step == 1, end - begin, [&](auto is_dense, auto count, int64_t from) {
        const T *values = element(view, data, n, 0, begin + from);
        for (int64_t c = first; c < last; ++c) {
          double total = 0, squares = 0;
          for (int i = 0; i < count; ++i) {
            const double away = values[i * apart + (is_dense ? c : c * step)] - origin[c];
            total += away;
            squares += away * away;
          }
          accumulate<T>(totals[c], lost_totals[c], total);
          accumulate<T>(all_squares[c], lost_squares[c], squares);
        }
      });
      return;
    }
    for (int64_t c = first; c < last; ++c) {
      const T *values = element(view, data, n, c, begin);
      const double from = origin[c];
      for (int64_t run = 0; run < end - begin; run += kRun<T>) {
        const int64_t stop = std::min(end - begin, run + kRun<T>);
        double total = 0, squares = 0;
#pragma omp simd reduction(+ : total, squares)
        for (int64_t i = run; i < stop; ++i) {
          const double away = values[i] - from;
          total += away;
          squares += away * away;
        }
        accumulate<T>(totals[c], lost_totals[c], total);
        accumulate<T>(all_squares[c], lost_squares[c], squares);
      }
    }
  });
  sums.add_up(partition);
  const double count = (double)(view.shape[0] * view.shape[2]);
  Statistics found;
  for (int64_t c = 0; c < channels; ++c) {
    const double mean = sums.of[0][c] / count, variance = sums.of[1][c] / count - mean * mean;
    found.mean.push_back(origin[c] + mean);
    found.rest.push_back((origin[c] - found.mean[c]) + mean);
    found.variance.push_back(variance < 0 ? 0 : variance);  // NaN is kept
  }
  return found;
}

// Takes each channel's first value as its origin. If that is far from the mean, the squares lose digits that
// float64 data have (but float32 data do not), so for float64 a second pass starts from the mean.
template <class T>
Statistics take_statistics(const View &given, const T *data) {
  const View view = of_one_image(given);
  std::vector<double> origin(view.shape[1]);
  for (int64_t c = 0; c < view.shape[1]; ++c) origin[c] = *element(view, data, 0, c, 0);
  const Statistics found = statistics_from(origin, view, data);
  if (std::is_same_v<T, float>) return found;
  Statistics closer = statistics_from(found.mean, view, data);
  for (int64_t c = 0; c < view.shape[1]; ++c)
    if (std::isinf(found.mean[c])) closer.mean[c] = found.mean[c];  // differences from an infinite mean are undefined
  return closer;
}

// Each channel becomes (x - center) * factor + bias.
template <class T>
struct Normalization {
  std::vector<T> center, factor, bias;
  explicit Normalization(int64_t channels) : center(channels), factor(channels), bias(channels) {}
};

// out must be contiguous.
template <class T>
void normalize(const View &given, const T *data, const Normalization<T> &by, T *out) {
  const View view = of_one_image(given), out_view = of_one_image(contiguous(given));
  const Partition partition(view, is_along_inner(view) && is_along_inner(out_view));
  const int64_t step = view.strides[1], out_step = out_view.strides[1];
  prefer_huge_pages(out, element_count(view.shape, 3) * sizeof(T));
  const T *center = by.center.data(), *factor = by.factor.data(), *bias = by.bias.data();
  partition.run([&](int64_t, int64_t n, int64_t begin, int64_t end, int64_t first, int64_t last) {
    if (!partition.along_inner) {
      const bool all_dense = step == 1 && out_step == 1;
      for (int64_t i = begin; i < end; ++i)
        by_channel(all_dense, [&](auto is_dense) {
          const T *values = element(view, data, n, 0, i);
          T *results = const_cast<T *>(element(out_view, out, n, 0, i));
#pragma omp simd
          for (int64_t c = first; c < last; ++c)
            results[is_dense ? c : c * out_step] =
                (values[is_dense ? c : c * step] - center[c]) * factor[c] + bias[c];
        });
      return;
    }
    for (int64_t c = first; c < last; ++c) {
      const T *values = element(view, data, n, c, begin);
      T *results = const_cast<T *>(element(out_view, out, n, c, begin));
      const T from = center[c], times = factor[c], plus = bias[c];
#pragma omp simd
      for (int64_t i = 0; i < end - begin; ++i) results[i] = (values[i] - from) * times + plus;
    }
  });
}

// Operands of the gradient: x and the gradient with respect to the output, viewed as (batch, channel, inner),
// and the parameters.
template <class T>
struct NormalizationGradient {
  View x_view, top_view;
  const T *x, *top, *scale, *mean, *invstd;
};

// The given mean is rounded; its error is computed together with the sums. dx must be contiguous.
template <class T>
void normalization_gradient(const NormalizationGradient<T> &of, T *dx, T *dscale, T *dbias) {
  const View x_view = of_one_image(of.x_view), top_view = of_one_image(of.top_view);
  const View dx_view = of_one_image(contiguous(of.x_view));
  const T *x = of.x, *top = of.top, *mean = of.mean;
  const int64_t channels = x_view.shape[1];
  const bool along_inner = is_along_inner(x_view) && is_along_inner(top_view) && is_along_inner(dx_view);
  const Partition partition(x_view, along_inner);
  const int64_t x_step = x_view.strides[1], top_step = top_view.strides[1], step = dx_view.strides[1];
  const int64_t x_apart = x_view.strides[2], top_apart = top_view.strides[2];
  Sums<T, 3> sums(partition);
  partition.run([&](int64_t slice, int64_t n, int64_t begin, int64_t end, int64_t first, int64_t last) {
    const auto part = [&](std::vector<double> &all) { return all.data() + slice * channels; };
    double *totals = part(sums.of[0]), *all_products = part(sums.of[1]), *all_distances = part(sums.of[2]);
    double *lost_totals = part(sums.lost[0]), *lost_products = part(sums.lost[1]), *lost_distances = part(sums.lost[2]);
    if (!partition.along_inner) {
      by_position(x_step == 1 && top_step == 1, end - begin, [&](auto is_dense, auto count, int64_t at) {
        const T *values = element(x_view, x, n, 0, begin + at);
        const T *gradients = element(top_view, top, n, 0, begin + at);
        for (int64_t c = first; c < last; ++c) {
          double total = 0, products = 0, distances = 0;
          for (int i = 0; i < count; ++i) {
            const double gradient = gradients[i * top_apart + (is_dense ? c : c * top_step)];
            const double away = (double)values[i * x_apart + (is_dense ? c : c * x_step)] - mean[c];
            total += gradient;
            products += gradient * away;
            distances += away;
          }
          accumulate<T>(totals[c], lost_totals[c], total);
          accumulate<T>(all_products[c], lost_products[c], products);
          accumulate<T>(all_distances[c], lost_distances[c], distances);
        }
      });
      return;
    }
    for (int64_t c = first; c < last; ++c) {
      const T *values = element(x_view, x, n, c, begin), *gradients = element(top_view, top, n, c, begin);
      const double center = mean[c];
      for (int64_t run = 0; run < end - begin; run += kRun<T>) {
        const int64_t stop = std::min(end - begin, run + kRun<T>);
        double total = 0, products = 0, distances = 0;
#pragma omp simd reduction(+ : total, products, distances)
        for (int64_t i = run; i < stop; ++i) {
          const double away = values[i] - center;
          total += gradients[i];
          products += gradients[i] * away;
          distances += away;
        }
        accumulate<T>(totals[c], lost_totals[c], total);
        accumulate<T>(all_products[c], lost_products[c], products);
        accumulate<T>(all_distances[c], lost_distances[c], distances);
      }
    }
  });
  sums.add_up(partition);
  const double count = (double)(x_view.shape[0] * x_view.shape[2]);
  // dx = (top - average - (x - mean) * slope) * factor; the average includes the error of the mean, times the slope.
  std::vector<T> average(channels), slope(channels), factor(channels);
  for (int64_t c = 0; c < channels; ++c) {
    const double total = sums.of[0][c], lack = sums.of[2][c] / count;
    const double by_scale = (sums.of[1][c] - lack * total) * of.invstd[c];
    dscale[c] = (T)by_scale;
    dbias[c] = (T)total;
    slope[c] = (T)(by_scale / count * of.invstd[c]);
    average[c] = (T)(total / count - lack * slope[c]);
    factor[c] = of.scale[c] * of.invstd[c];
  }
  prefer_huge_pages(dx, element_count(x_view.shape, 3) * sizeof(T));
  partition.run([&](int64_t, int64_t n, int64_t begin, int64_t end, int64_t first, int64_t last) {
    if (!partition.along_inner) {
      const bool all_dense = x_step == 1 && top_step == 1 && step == 1;
      for (int64_t i = begin; i < end; ++i)
        by_channel(all_dense, [&](auto is_dense) {
          const T *values = element(x_view, x, n, 0, i), *gradients = element(top_view, top, n, 0, i);
          T *results = const_cast<T *>(element(dx_view, dx, n, 0, i));
#pragma omp simd
          for (int64_t c = first; c < last; ++c) {
            const T away = values[is_dense ? c : c * x_step] - mean[c];
            results[is_dense ? c : c * step] =
                (gradients[is_dense ? c : c * top_step] - average[c] - away * slope[c]) * factor[c];
          }
        });
      return;
    }
    for (int64_t c = first; c < last; ++c) {
      const T *values = element(x_view, x, n, c, begin), *gradients = element(top_view, top, n, c, begin);
      T *results = const_cast<T *>(element(dx_view, dx, n, c, begin));
      const T center = mean[c], from = average[c], by = slope[c], times = factor[c];
#pragma omp simd
      for (int64_t i = 0; i < end - begin; ++i) results[i] = (gradients[i] - from - (values[i] - center) * by) * times;
    }
  });
}

}  // namespace dnnops
#endif
