// Mean and variance of adjacent elements, also where their squares leave the range of numbers.
#ifndef DNNOPS_ONEDNN_MOMENTS_HPP
#define DNNOPS_ONEDNN_MOMENTS_HPP

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "batchnorm_loops.hpp"

namespace dnnops {

// How many terms are added without compensation. A group's channels may differ, so that terms of one sign, which
// leave larger rounding errors, come together.
template <class T>
constexpr int64_t kTerms = std::is_same_v<T, double> ? 16 : kRun<T>;

// A sum in float64, which keeps what rounding took if the terms are float64, too.
template <class T>
struct Sum {
  double sum = 0, lost = 0;
  void add(double term) { accumulate<T>(sum, lost, term); }
  double value() const { return lost == lost ? sum + lost : sum; }  // an infinite sum has lost nothing
};

// rest: the rounding error of the mean.
struct Moments {
  double mean, rest, variance;
};

template <class T>
Moments moments_from(double origin, const T *x, int64_t count) {
  Sum<T> totals, all_squares;
  for (int64_t run = 0; run < count; run += kTerms<T>) {
    const int64_t stop = std::min(count, run + kTerms<T>);
    double total = 0, squares = 0;
#pragma omp simd reduction(+ : total, squares)
    for (int64_t i = run; i < stop; ++i) {
      const double away = x[i] - origin;
      total += away;
      squares += away * away;
    }
    totals.add(total);
    all_squares.add(squares);
  }
  const double shift = totals.value() / count, variance = all_squares.value() / count - shift * shift;
  const double mean = origin + shift;
  return {mean, (origin - mean) + shift, variance < 0 ? 0 : variance};  // NaN is kept
}

// The first element is the origin. If it is far from the mean, the squares lose digits that float64 data have
// (but float32 data do not), so for float64 a second pass starts from the mean.
template <class T>
Moments take_moments(const T *x, int64_t count) {
  const Moments found = moments_from<T>(x[0], x, count);
  return std::is_same_v<T, float> ? found : moments_from<T>(found.mean, x, count);
}

// Whether squares of differences from the mean, and the numbers computed from them, stay in the range of normal T.
template <class T>
bool is_ordinary(double variance) {
  constexpr double most = std::is_same_v<T, double> ? 0x1p500 : 0x1p80;
  return variance < most && variance > 1 / most;
}

// A group in float64, times a power of 2 for which its largest element is about 1. With epsilon times the square of
// the factor, the normalized group is the same.
struct ScaledGroup {
  std::vector<double> x;
  double most = 0, factor = 1;

  template <class T>
  ScaledGroup(const T *from, int64_t count) : x(from, from + count) {
    for (const double element : x) most = std::max(most, std::abs(element));
    int exponent = 0;
    if (most > 0 && std::isfinite(most)) std::frexp(most, &exponent);
    factor = std::ldexp(1.0, std::min(-exponent, 1000));
    for (double &element : x) element *= factor;
  }
  double epsilon(double given) const { return std::sqrt(given) * factor * (std::sqrt(given) * factor); }
};

}  // namespace dnnops
#endif
