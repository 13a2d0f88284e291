// Elementary functions as vector code. Errors are at most about two units in the last place over the whole
// range of float and double, including subnormal results, infinities and NaNs.
#ifndef DNNOPS_ONEDNN_ELEMENTARY_HPP
#define DNNOPS_ONEDNN_ELEMENTARY_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace dnnops {

template <class T>
struct Format;
template <>
struct Format<float> {
  using Bits = uint32_t;
  using Sum = double;  // the type in which long sums are accumulated
  static constexpr int kShift = 23, kBias = 127, kScaleBits = 64;
  static constexpr double kScale = 18446744073709551616.0;  // 2^kScaleBits, which keeps small terms of a sum normal
  // Adding 1.5 * 2^23 rounds to an integer, which ends up in the lowest bits.
  static constexpr float kRounder = 12582912, kLog2e = 1.44269504f;
  // log(2) in two parts: products of the first part with an exponent are exact.
  static constexpr float kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f;
  // Below kLeast, e^x is 0; below kLeastFactor, so is its product with almost any number; above kMost, it is infinite.
  static constexpr float kLeast = -105, kLeastFactor = -174, kMost = 89;
};
template <>
struct Format<double> {
  using Bits = uint64_t;
  using Sum = double;
  static constexpr int kShift = 52, kBias = 1023, kScaleBits = 128;
  static constexpr double kScale = 340282366920938463463374607431768211456.0;
  static constexpr double kRounder = 6755399441055744.0, kLog2e = 1.4426950408889634074;
  static constexpr double kLog2High = 0.693147180369123816490, kLog2Low = 1.90821492927058770002e-10;
  static constexpr double kLeast = -746, kLeastFactor = -1416, kMost = 710;
};

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "one is read as the other");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// 2^n for an integer n that is the exponent of a normal number.
template <class T>
inline T power_of_two(T n) {
  using F = Format<T>;
  using Bits = typename F::Bits;
  return bits_as<T>((bits_as<Bits>(n + F::kRounder) << F::kShift) + ((Bits)F::kBias << F::kShift));
}

inline float first_of(float x) { return x; }
inline double first_of(double x) { return x; }
template <class V>
inline auto first_of(V x) {
  return x[0];
}

// (e^r - 1 - r) / r^2 for |r| <= log(2) / 2, where r is a number or a vector.
template <class V>
inline V float_tail(V r) {
  return 0.5f +
         r * (1.66666667e-1f + r * (4.16666667e-2f + r * (8.33333333e-3f + r * (1.38888889e-3f + r * 1.98412698e-4f))));
}
// kShortened: accurate enough for float32 data.
template <bool kShortened = false, class V>
inline V double_tail(V r) {
  V p = r * (1 / 3628800.0) + 1 / 362880.0;
  if constexpr (!kShortened) {
    p = r * (1 / 6227020800.0) + 1 / 479001600.0;
    p = p * r + 1 / 39916800.0;
    p = p * r + 1 / 3628800.0;
    p = p * r + 1 / 362880.0;
  }
  p = p * r + 1 / 40320.0;
  p = p * r + 1 / 5040.0;
  p = p * r + 1 / 720.0;
  p = p * r + 1 / 120.0;
  p = p * r + 1 / 24.0;
  p = p * r + 1 / 6.0;
  return p * r + 0.5;
}
template <class V>
inline V exponential_tail(V r) {
  if constexpr (std::is_same_v<std::decay_t<decltype(first_of(r))>, float>)
    return float_tail(r);
  else
    return double_tail(r);
}

// e^(x + low) as 2^n (1 + change), for x from kLeastFactor to kMost. `low` is the rounding error of x.
template <class T>
struct Exponential {
  T n, change;

  explicit Exponential(T x, T low = 0) {
    using F = Format<T>;
    n = (x * F::kLog2e + F::kRounder) - F::kRounder;
    const T first = x - n * F::kLog2High, second = low - n * F::kLog2Low, r = first + second;
    change = r + (r * r * exponential_tail(r) + ((first - r) + second));
  }
  // factor * e^x. Only the result can be subnormal, infinite or 0.
  T times(T factor) const {
    const T half = (n * (T)0.5 + Format<T>::kRounder) - Format<T>::kRounder;
    return ((factor + factor * change) * power_of_two(half)) * power_of_two(n - half);
  }
};

template <class T>
inline T exponential(T x) {
  using F = Format<T>;
  const T above = x < F::kLeast ? F::kLeast : x, bounded = above > F::kMost ? F::kMost : above;  // NaN is kept
  return Exponential<T>(bounded).times(1);
}

// The rounding error of x - y.
template <class T>
inline T difference_error(T x, T y, T difference) {
  const T taken = x - difference;
  return (x - (difference + taken)) + (taken - y);
}

// 2^kScaleBits e^(x - y) for x <= y; the result is never subnormal. The fractional digits that rounding takes
// from a large difference are restored.
template <class T>
inline T scaled_exponential(T x, T y) {
  const T difference = x - y, low = difference_error(x, y, difference);
  const bool is_zero = difference < Format<T>::kLeast;
  const Exponential<T> e(is_zero ? 0 : difference, is_zero ? 0 : low);
  const T power = power_of_two(e.n + Format<T>::kScaleBits);
  return is_zero ? 0 : power + power * e.change;
}

// e^x - 1 for x <= 0.
template <class T>
inline T negative_expm1(T x) {
  const T least = sizeof(T) == sizeof(float) ? -20 : -40;  // below this, the result is -1
  const Exponential<T> e(x < least ? least : x);
  const T power = power_of_two(e.n);
  return power * e.change + (power - 1);
}

// The rounding error of x * y, given the rounded `product`.
inline float product_error(float x, float y, float product) {
#ifdef __FMA__
  return __builtin_fmaf(x, y, -product);
#else
  return (float)((double)x * y - product);
#endif
}
inline double product_error(double x, double y, double product) {
#ifdef __FMA__
  return __builtin_fma(x, y, -product);
#else
  const double splitter = 134217729;  // 2^27 + 1, as in Veltkamp's and Dekker's splitting
  const double a = x * splitter, b = y * splitter, x_high = a - (a - x), y_high = b - (b - y);
  const double x_low = x - x_high, y_low = y - y_high;
  return ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low;
#endif
}

template <class T>
inline T magnitude(T x) {
  return x < 0 ? -x : x;
}

template <class T>
inline T tanh_of(T x) {
  const T change = negative_expm1(-2 * magnitude(x)), result = -change / (2 + change);
  return x == 0 ? x : x < 0 ? -result : result;
}

// factor / (1 + e^-(x + low)); 0 where that underflows, also for an infinite factor.
template <class T>
inline T sigmoid_times(T factor, T x, T low = 0) {
  const bool is_negative = x < 0;
  const T distance = is_negative ? x : -x, least = Format<T>::kLeastFactor;
  const Exponential<T> e(distance < least ? least : distance, is_negative ? low : -low);
  const T most = std::numeric_limits<T>::max(), finite = factor < -most ? -most : factor > most ? most : factor;
  factor = x < least ? finite * 0 : factor;
  return (is_negative ? e.times(factor) : factor) / (1 + e.times(1));
}

// A sum that stays accurate for any number of terms.
template <class T>
class Accumulator {
 public:
  void add(T term) {
    if (sizeof(T) < sizeof(double)) {
      sum_ += term;
      return;
    }
    const double next = sum_ + term, added = next - sum_;
    lost_ += (sum_ - (next - added)) + (term - added);
    sum_ = next;
  }
  // With infinite terms, there is no rounding error to add back.
  double value() const { return lost_ == lost_ ? sum_ + lost_ : sum_; }

 private:
  double sum_ = 0, lost_ = 0;
};

// The number of terms that are summed before an accumulator takes the sum: in vectors along a row, and one
// after the other.
constexpr int64_t kTerms = 64, kFewTerms = 16;

// The number of columns that are processed together.
constexpr int64_t kColumns = 128;

// For up to kColumns columns with elements `step` apart, computes the largest element and the sum of e^(x -
// largest) without the 1 of one largest element.
template <class T>
void rests_of_columns(const T *x, int64_t step, int64_t length, int64_t width, T *tops, T *rests) {
  T ties[kColumns], sums[kColumns];
  Accumulator<T> totals[kColumns];
  std::fill_n(tops, width, -std::numeric_limits<T>::infinity());
  std::fill_n(ties, width, (T)-1);
  for (int64_t k = 0; k < length; ++k) {
    const T *row = x + k * step;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) tops[j] = row[j] > tops[j] ? row[j] : tops[j];
  }
  for (int64_t begin = 0; begin < length; begin += kFewTerms) {
    const int64_t end = std::min(length, begin + kFewTerms);
    std::fill_n(sums, width, (T)0);
    for (int64_t k = begin; k < end; ++k) {
      const T *row = x + k * step;
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) {
        const T term = scaled_exponential(row[j], tops[j]);
        sums[j] += row[j] == tops[j] ? 0 : term;
        ties[j] += row[j] == tops[j] ? 1 : 0;
      }
    }
    for (int64_t j = 0; j < width; ++j) totals[j].add(sums[j]);
  }
  for (int64_t j = 0; j < width; ++j) rests[j] = (T)(totals[j].value() / Format<T>::kScale + ties[j]);
}

// Rows shorter than this are processed faster as columns of a transposed copy.
constexpr int64_t kShort = 32;

}  // namespace dnnops
#endif
