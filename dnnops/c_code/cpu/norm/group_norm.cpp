// Group normalization and its gradient, in float32 and float64, with sums in float64.
//
// The elements of a group are adjacent: a contiguous array is viewed as (batch, group, channel of the group,
// position). A thread takes a group's statistics and then normalizes it, while it is in the cache.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "../../common/op.hpp"
#include "../base/contiguous.hpp"
#include "batchnorm_loops.hpp"
#include "moments.hpp"

namespace dnnops {
namespace {

template <bool kBackward>
struct Params {
  int64_t groups;
  double epsilon;
  static const char *op() { return kBackward ? "OneDnnGroupNormGrad" : "OneDnnGroupNorm"; }
  static int input_count() { return 3; }
};

struct Layout {
  int64_t channels, per_group, inner, groups;  // groups: in all samples

  Layout(const dnnops_tensor &x, int64_t in_sample)
      : channels(x.shape[1]), per_group(x.shape[1] / in_sample), inner(1), groups(x.shape[0] * in_sample) {
    for (int64_t i = 2; i < x.ndim; ++i) inner *= x.shape[i];
  }
  int64_t size() const { return per_group * inner; }
  int64_t first_channel(int64_t group) const { return group * per_group % channels; }
};

// Calls body(slice, begin, end) for slices of the groups, in all threads.
template <class Body>
void by_slices(const Layout &layout, int64_t slices, Body &&body) {
#pragma omp parallel for if (slices > 1)
  for (int64_t slice = 0; slice < slices; ++slice)
    body(slice, layout.groups * slice / slices, layout.groups * (slice + 1) / slices);
}

int64_t slice_count(const Layout &layout) {
  return layout.groups * layout.size() > 16384 ? std::min(thread_count(), layout.groups) : 1;
}

// Calls body(inner), with a constant if it is 1, so that the loops over channels become the innermost ones.
template <class Body>
void by_inner(const Layout &layout, Body &&body) {
  if (layout.inner == 1)
    body(std::integral_constant<int64_t, 1>());
  else
    body(layout.inner);
}

template <class T>
void normalize_group(const Moments &of, double epsilon, const Layout &layout, const T *x, const T *gamma, const T *beta,
                     T *y) {
  const double deviation = std::sqrt(of.variance + epsilon);
  const T center = (T)of.mean;
  const double error = (center - of.mean) - of.rest;
  by_inner(layout, [&](auto inner) {
    for (int64_t c = 0; c < layout.per_group; ++c) {
      const double factor = gamma[c] / deviation;  // one rounding fewer than with the inverse
      const T times = (T)factor, plus = (T)(beta[c] + error * factor);
#pragma omp simd
      for (int64_t i = c * inner; i < (c + 1) * inner; ++i) y[i] = (x[i] - center) * times + plus;
    }
  });
}

// Like normalize_group(), for numbers of any magnitude.
template <class T>
void normalize_scaled(double epsilon, const Layout &layout, const T *x, const T *gamma, const T *beta, T *y) {
  const int64_t size = layout.size();
  const ScaledGroup scaled(x, size);
  const std::vector<double> scale(gamma, gamma + layout.per_group), bias(beta, beta + layout.per_group);
  std::vector<double> result(size);
  normalize_group(take_moments(scaled.x.data(), size), scaled.epsilon(epsilon), layout, scaled.x.data(), scale.data(),
                  bias.data(), result.data());
  std::copy(result.begin(), result.end(), y);
}

// The sums of a channel of a sample: of the output's gradient, and of its products with the data less the center.
template <class T>
struct ChannelSums {
  double total, product;

  ChannelSums(const T *x, const T *gy, int64_t count, double center) {
    Sum<T> totals, all_products;
    for (int64_t run = 0; run < count; run += kTerms<T>) {
      const int64_t stop = std::min(count, run + kTerms<T>);
      double of_run = 0, products = 0;
#pragma omp simd reduction(+ : of_run, products)
      for (int64_t i = run; i < stop; ++i) {
        of_run += gy[i];
        products += gy[i] * (x[i] - center);
      }
      totals.add(of_run);
      all_products.add(products);
    }
    total = totals.value();
    product = all_products.value();
  }
  ChannelSums(const T *x, const T *gy, std::integral_constant<int64_t, 1>, double center)
      : total(*gy), product(*gy * (*x - center)) {}
};

// In groups of a few elements, the three terms of the gradient nearly cancel: with two elements, only epsilon is left.
constexpr int64_t SHORT_GROUP = 16;

// Adds the sums of a group to those of its channels; writes the gradient with respect to its elements.
template <class T>
void group_gradient(const Moments &of, double epsilon, const Layout &layout, const T *x, const T *gamma, const T *gy,
                    T *dx, Sum<T> *dgamma, Sum<T> *dbeta) {
  const double deviation = std::sqrt(of.variance + epsilon), count = (double)layout.size();
  by_inner(layout, [&](auto inner) {
    Sum<T> total, product;
    for (int64_t c = 0; c < layout.per_group; ++c) {
      const ChannelSums<T> sums(x + c * inner, gy + c * inner, inner, of.mean);
      const double from_center = sums.product - of.rest * sums.total;
      dgamma[c].add(from_center / deviation);
      dbeta[c].add(sums.total);
      total.add(gamma[c] * sums.total);
      product.add(gamma[c] * from_center);
    }
    const double slope = product.value() / count / (of.variance + epsilon) / deviation;
    const auto write = [&](auto zero) {
      using Wide = decltype(zero);
      const Wide center = (Wide)of.mean;
      const double error = (center - of.mean) - of.rest;
      const Wide by = (Wide)slope, minus = (Wide)(total.value() / count / deviation + error * slope);
      for (int64_t c = 0; c < layout.per_group; ++c) {
        const Wide times = (Wide)(gamma[c] / deviation);
#pragma omp simd
        for (int64_t i = c * inner; i < (c + 1) * inner; ++i)
          dx[i] = (T)(gy[i] * times - minus - (x[i] - center) * by);
      }
    };
    if (layout.size() <= SHORT_GROUP)
      write(0.0);
    else
      write(T(0));
  });
}

// Like group_gradient(), for numbers of any magnitude.
template <class T>
void scaled_gradient(double epsilon, const Layout &layout, const T *x, const T *gamma, const T *gy, T *dx,
                     Sum<T> *dgamma, Sum<T> *dbeta) {
  const int64_t size = layout.size();
  const ScaledGroup scaled(x, size);
  const std::vector<double> scale(gamma, gamma + layout.per_group), top(gy, gy + size);
  std::vector<double> result(size);
  std::vector<Sum<double>> sums(2 * layout.per_group);
  group_gradient(take_moments(scaled.x.data(), size), scaled.epsilon(epsilon), layout, scaled.x.data(), scale.data(),
                 top.data(), result.data(), sums.data(), sums.data() + layout.per_group);
  for (int64_t i = 0; i < size; ++i) dx[i] = (T)(result[i] * scaled.factor);
  for (int64_t c = 0; c < layout.per_group; ++c) {
    dgamma[c].add(sums[c].value());
    dbeta[c].add(sums[layout.per_group + c].value());
  }
}

// Inputs: x, gamma, beta. Output: y.
template <class T>
void run_in(const Params<false> &params, const Layout &layout, const void *const *inputs, const dnnops_tensor *outputs) {
  const T *x = static_cast<const T *>(inputs[0]), *gamma = static_cast<const T *>(inputs[1]);
  const T *beta = static_cast<const T *>(inputs[2]);
  T *y = static_cast<T *>(outputs[0].data);
  const int64_t size = layout.size();
  if (size == 0) return;
  prefer_huge_pages(y, layout.groups * size * sizeof(T));
  by_slices(layout, slice_count(layout), [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = layout.first_channel(group);
      const T *from = x + group * size;
      T *const to = y + group * size;
      const Moments of = take_moments(from, size);
      if (is_ordinary<T>(of.variance + params.epsilon))
        normalize_group(of, params.epsilon, layout, from, gamma + first, beta + first, to);
      else
        normalize_scaled(params.epsilon, layout, from, gamma + first, beta + first, to);
    }
  });
}

// Inputs: x, gamma, the gradient with respect to y. Outputs: the gradients with respect to x, gamma and beta.
template <class T>
void run_in(const Params<true> &params, const Layout &layout, const void *const *inputs, const dnnops_tensor *outputs) {
  const T *x = static_cast<const T *>(inputs[0]), *gamma = static_cast<const T *>(inputs[1]);
  const T *gy = static_cast<const T *>(inputs[2]);
  T *dx = static_cast<T *>(outputs[0].data);
  const int64_t size = layout.size(), channels = layout.channels;
  const int64_t slices = size == 0 ? 0 : slice_count(layout);
  // The rounding of the sums depends only on the number of threads.
  std::vector<Sum<T>> sums(slices * 2 * channels);
  if (slices) prefer_huge_pages(dx, layout.groups * size * sizeof(T));
  by_slices(layout, slices, [&](int64_t slice, int64_t begin, int64_t end) {
    Sum<T> *const mine = sums.data() + slice * 2 * channels;
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = layout.first_channel(group), at = group * size;
      const Moments of = take_moments(x + at, size);
      Sum<T> *const dgamma = mine + first, *const dbeta = mine + channels + first;
      if (is_ordinary<T>(of.variance + params.epsilon))
        group_gradient(of, params.epsilon, layout, x + at, gamma + first, gy + at, dx + at, dgamma, dbeta);
      else
        scaled_gradient(params.epsilon, layout, x + at, gamma + first, gy + at, dx + at, dgamma, dbeta);
    }
  });
  for (int which = 0; which < 2; ++which)
    for (int64_t c = 0; c < channels; ++c) {
      Sum<T> all;
      for (int64_t slice = 0; slice < slices; ++slice) all.add(sums[(slice * 2 + which) * channels + c].value());
      static_cast<T *>(outputs[1 + which].data)[c] = (T)all.value();
    }
}

void check_vector(const char *name, const dnnops_tensor &vector, const dnnops_tensor &x) {
  if (vector.ndim != 1 || vector.shape[0] != x.shape[1])
    fail(DNNOPS_VALUE_ERROR, "%s must have one element for each of the %lld channels of x, got shape %s", name,
         (long long)x.shape[1], list_of(vector.shape, vector.ndim).c_str());
  if (vector.dtype != x.dtype)
    fail(DNNOPS_TYPE_ERROR, "%s must have the dtype of x, %s, got %s", name, dtype_name(x.dtype),
         dtype_name(vector.dtype));
}

template <bool kBackward>
void shape(const OpCall<Params<kBackward>> &call) {
  const dnnops_tensor &x = call.inputs[0];
  const int64_t groups = call.params.groups;
  for_float_dtype(x.dtype, [](auto) {});
  if (x.ndim < 2) fail(DNNOPS_TYPE_ERROR, "x must have 2 or more dimensions (batch, channels, spatial...)");
  if (groups < 1 || x.shape[1] % groups)
    fail(DNNOPS_VALUE_ERROR, "num_groups must divide the %lld channels of x, got %lld", (long long)x.shape[1],
         (long long)groups);
  check_vector("gamma", call.inputs[1], x);
  set_output(call.outputs[0], x);
  if (!kBackward) return check_vector("beta", call.inputs[2], x);
  if (call.inputs[2].dtype != x.dtype || !same_shape(call.inputs[2], x))
    fail(DNNOPS_VALUE_ERROR, "gy must have the shape and dtype of x");
  for (int i = 1; i < 3; ++i) set_output(call.outputs[i], call.inputs[1]);
}

template <bool kBackward>
void run(const OpCall<Params<kBackward>> &call) {
  const dnnops_tensor &x = call.inputs[0];
  const void *data[3];
  contiguous_inputs(call.inputs, 3, data);
  const Layout layout(x, call.params.groups);
  for_float_dtype(x.dtype, [&](auto zero) { run_in<decltype(zero)>(call.params, layout, data, call.outputs); });
}

}  // namespace

DNNOPS_OP(onednn_group_norm, Params<false>, shape, run)
DNNOPS_OP(onednn_group_norm_grad, Params<true>, shape, run)

}  // namespace dnnops
