// Sums over the channels' elements, in float64, and what batch normalization makes of them.
#ifndef DNNOPS_ONEDNN_BATCHNORM_LOOPS_HPP
#define DNNOPS_ONEDNN_BATCHNORM_LOOPS_HPP

#include <algorithm>
#include <type_traits>
#include <vector>

#include "huge_pages.hpp"
#include "views.hpp"

namespace dnnops {

// How the elements of arrays are shared out among threads: in slices of rows, or with channels in blocks where that
// is too few.  A row is a part of an inner axis that is dense, or else one position with all channels.
struct Partition {
  static constexpr int64_t kRow = 4096;
  int64_t channels, inner, threads, pieces, rows, slices, blocks;
  bool along_inner;

  Partition(const View &view, bool along_inner) : channels(view.shape[1]), inner(view.shape[2]), along_inner(along_inner) {
    threads = view.shape[0] * channels * inner > 16384 ? thread_count() : 1;
    pieces = along_inner ? (inner + kRow - 1) / kRow : inner;
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
        const int64_t piece = row % pieces, begin = along_inner ? piece * kRow : piece;
        const int64_t end = along_inner ? std::min(inner, begin + kRow) : begin + 1;
        body(slice, row / pieces, begin, end, channels * block / blocks, channels * (block + 1) / blocks);
      }
    }
  }
};

inline bool is_along_inner(const View &view) { return view.strides[2] == 1 && view.shape[2] > 1; }

inline const float *element(const View &view, const float *data, int64_t n, int64_t channel, int64_t i) {
  return data + n * view.strides[0] + channel * view.strides[1] + i * view.strides[2];
}

// Sums for each channel, of each slice apart: rounding depends on the number of threads only.
template <int count>
struct Sums {
  std::vector<double> of[count];
  explicit Sums(const Partition &partition) {
    for (auto &sums : of) sums.resize(partition.slices * partition.channels);
  }
  // Over the slices; they end in the first ones.
  void add_up(const Partition &partition) {
    for (auto &sums : of)
      for (int64_t i = partition.channels; i < (int64_t)sums.size(); ++i) sums[i % partition.channels] += sums[i];
  }
};

// Calls body with a constant that says whether channels are dense: so their loop is compiled for that, too.
template <class Body>
void by_channel(bool is_dense, Body &&body) {
  if (is_dense)
    body(std::true_type());
  else
    body(std::false_type());
}

struct Statistics {
  std::vector<double> mean, variance;
};

// By one pass: from the sums of what a channel's values differ from its first one, and of the squares of that.
inline Statistics take_statistics(const View &view, const float *data) {
  const Partition partition(view, is_along_inner(view));
  const int64_t channels = view.shape[1];
  Sums<2> sums(partition);
  std::vector<double> origin(channels);
  for (int64_t c = 0; c < channels; ++c) origin[c] = *element(view, data, 0, c, 0);
  partition.run([&](int64_t slice, int64_t n, int64_t begin, int64_t end, int64_t first, int64_t last) {
    double *totals = sums.of[0].data() + slice * channels, *all_squares = sums.of[1].data() + slice * channels;
    if (!partition.along_inner) {
      const float *values = element(view, data, n, 0, begin);
      const int64_t step = view.strides[1];
      by_channel(step == 1, [&](auto is_dense) {
        for (int64_t c = first; c < last; ++c) {
          const double away = values[is_dense ? c : c * step] - origin[c];
          totals[c] += away;
          all_squares[c] += away * away;
        }
      });
      return;
    }
    for (int64_t c = first; c < last; ++c) {
      const float *values = element(view, data, n, c, begin);
      const double from = origin[c];
      double total = 0, squares = 0;
#pragma omp simd reduction(+ : total, squares)
      for (int64_t i = 0; i < end - begin; ++i) {
        const double away = values[i] - from;
        total += away;
        squares += away * away;
      }
      totals[c] += total;
      all_squares[c] += squares;
    }
  });
  sums.add_up(partition);
  const double count = (double)(view.shape[0] * view.shape[2]);
  Statistics found;
  for (int64_t c = 0; c < channels; ++c) {
    const double mean = sums.of[0][c] / count, variance = sums.of[1][c] / count - mean * mean;
    found.mean.push_back(origin[c] + mean);
    found.variance.push_back(variance < 0 ? 0 : variance);  // NaN stays
  }
  return found;
}

// What each channel becomes: (x - center) * factor + bias.
struct Normalization {
  std::vector<float> center, factor, bias;
  explicit Normalization(int64_t channels) : center(channels), factor(channels), bias(channels) {}
};

// out is contiguous.
inline void normalize(const View &view, const float *data, const Normalization &by, float *out) {
  const Partition partition(view, is_along_inner(view));
  const int64_t step = view.strides[1];
  View out_view = view;
  contiguous_strides(3, out_view.shape, out_view.strides);
  const int64_t out_step = out_view.strides[1];
  prefer_huge_pages(out, element_count(view.shape, 3) * sizeof(float));
  const float *center = by.center.data(), *factor = by.factor.data(), *bias = by.bias.data();
  partition.run([&](int64_t, int64_t n, int64_t begin, int64_t end, int64_t first, int64_t last) {
    if (!partition.along_inner) {
      const float *values = element(view, data, n, 0, begin);
      float *results = const_cast<float *>(element(out_view, out, n, 0, begin));
      by_channel(step == 1 && out_step == 1, [&](auto is_dense) {
#pragma omp simd
        for (int64_t c = first; c < last; ++c)
          results[is_dense ? c : c * out_step] =
              (values[is_dense ? c : c * step] - center[c]) * factor[c] + bias[c];
      });
      return;
    }
    for (int64_t c = first; c < last; ++c) {
      const float *values = element(view, data, n, c, begin);
      float *results = const_cast<float *>(element(out_view, out, n, c, begin));
      const float from = center[c], times = factor[c], plus = bias[c];
#pragma omp simd
      for (int64_t i = 0; i < end - begin; ++i) results[i] = (values[i] - from) * times + plus;
    }
  });
}

// The operands of the gradient: x and the output's gradient, as (batch, channel, inner), and parameters.
struct NormalizationGradient {
  View x_view, top_view;
  const float *x, *top, *scale, *mean, *invstd;
};

// The mean is a rounded one: what it lacks is found beside the sums.  dx is contiguous.
inline void normalization_gradient(const NormalizationGradient &of, float *dx, float *dscale, float *dbias) {
  const View &x_view = of.x_view, &top_view = of.top_view;
  const float *x = of.x, *top = of.top, *mean = of.mean;
  const int64_t channels = x_view.shape[1];
  const Partition partition(x_view, is_along_inner(x_view) && is_along_inner(top_view));
  const int64_t x_step = x_view.strides[1], top_step = top_view.strides[1];
  Sums<3> sums(partition);
  partition.run([&](int64_t slice, int64_t n, int64_t begin, int64_t end, int64_t first, int64_t last) {
    double *totals = sums.of[0].data() + slice * channels, *all_products = sums.of[1].data() + slice * channels;
    double *all_distances = sums.of[2].data() + slice * channels;
    if (!partition.along_inner) {
      const float *values = element(x_view, x, n, 0, begin), *gradients = element(top_view, top, n, 0, begin);
      by_channel(x_step == 1 && top_step == 1, [&](auto is_dense) {
        for (int64_t c = first; c < last; ++c) {
          const double gradient = gradients[is_dense ? c : c * top_step];
          const double away = (double)values[is_dense ? c : c * x_step] - mean[c];
          totals[c] += gradient;
          all_products[c] += gradient * away;
          all_distances[c] += away;
        }
      });
      return;
    }
    for (int64_t c = first; c < last; ++c) {
      const float *values = element(x_view, x, n, c, begin), *gradients = element(top_view, top, n, c, begin);
      const double center = mean[c];
      double total = 0, products = 0, distances = 0;
#pragma omp simd reduction(+ : total, products, distances)
      for (int64_t i = 0; i < end - begin; ++i) {
        const double away = values[i] - center;
        total += gradients[i];
        products += gradients[i] * away;
        distances += away;
      }
      totals[c] += total;
      all_products[c] += products;
      all_distances[c] += distances;
    }
  });
  sums.add_up(partition);
  const double count = (double)(x_view.shape[0] * x_view.shape[2]);
  // dx = (top - average - (x - mean) * slope) * factor, where the average has what the mean lacks, times the slope
  std::vector<float> average(channels), slope(channels), factor(channels);
  for (int64_t c = 0; c < channels; ++c) {
    const double total = sums.of[0][c], lack = sums.of[2][c] / count;
    const double by_scale = (sums.of[1][c] - lack * total) * of.invstd[c];
    dscale[c] = (float)by_scale;
    dbias[c] = (float)total;
    slope[c] = (float)(by_scale / count * of.invstd[c]);
    average[c] = (float)(total / count - lack * slope[c]);
    factor[c] = of.scale[c] * of.invstd[c];
  }
  prefer_huge_pages(dx, element_count(x_view.shape, 3) * sizeof(float));
  View dx_view = x_view;
  contiguous_strides(3, dx_view.shape, dx_view.strides);
  partition.run([&](int64_t, int64_t n, int64_t begin, int64_t end, int64_t first, int64_t last) {
    if (!partition.along_inner) {
      const float *values = element(x_view, x, n, 0, begin), *gradients = element(top_view, top, n, 0, begin);
      float *results = const_cast<float *>(element(dx_view, dx, n, 0, begin));
      const int64_t step = dx_view.strides[1];
      by_channel(x_step == 1 && top_step == 1 && step == 1, [&](auto is_dense) {
        for (int64_t c = first; c < last; ++c) {
          const float away = values[is_dense ? c : c * x_step] - mean[c];
          results[is_dense ? c : c * step] =
              (gradients[is_dense ? c : c * top_step] - average[c] - away * slope[c]) * factor[c];
        }
      });
      return;
    }
    for (int64_t c = first; c < last; ++c) {
      const float *values = element(x_view, x, n, c, begin), *gradients = element(top_view, top, n, c, begin);
      float *results = const_cast<float *>(element(dx_view, dx, n, c, begin));
      const float center = mean[c], from = average[c], by = slope[c], times = factor[c];
#pragma omp simd
      for (int64_t i = 0; i < end - begin; ++i) results[i] = (gradients[i] - from - (values[i] - center) * by) * times;
    }
  });
}

}  // namespace dnnops
#endif
