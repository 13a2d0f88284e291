// The common parts of local response normalization and divisive normalization: x * s^-beta with s = k + scale * (a
// sum of squares), and sums over windows.
#ifndef DNNOPS_ONEDNN_WINDOW_NORM_HPP
#define DNNOPS_ONEDNN_WINDOW_NORM_HPP

#include <algorithm>
#include <cmath>
#include <limits>

#include "../../common/shapes.hpp"
#include "../base/elementary.hpp"

namespace dnnops {

struct WindowNorm {
  int64_t n, behind, ahead;
  double scale, beta, k;  // scale: alpha divided by the number of elements in a window
};

struct WindowNormParams {
  int64_t n;
  double alpha, beta, k;
};

// Windows span axis_count axes.
inline WindowNorm window_norm(const WindowNormParams &params, int64_t axis_count) {
  const int64_t n = params.n;
  if (n < 1 || n > 16) fail(DNNOPS_VALUE_ERROR, "windows have to have 1 to 16 elements, not %lld", (long long)n);
  const double scale = params.alpha / std::pow((double)n, (double)axis_count);
  return {n, (n - 1) / 2, n / 2, scale, params.beta, params.k};
}

// -- powers, in forms that compilers vectorize ---------------------------------------------------

// s^-beta for a positive float, as 2^(-beta log2 s): the C library's method without its special cases.
inline float negative_power(float s, double beta) {
  const int32_t bits = bits_as<int32_t>(s);
  // s = m 2^e with m between sqrt(1/2) and sqrt(2), and log m = 2 artanh((m - 1) / (m + 1)).
  const int32_t e = (bits - 0x3f3504f3) >> 23, m_bits = bits - (int32_t)((uint32_t)e << 23);
  const float m = bits_as<float>(m_bits), t = (m - 1) / (m + 1), t2 = t * t;
  const float series = 1 + t2 * (1 / 3.f + t2 * (1 / 5.f + t2 * (1 / 7.f + t2 * (1 / 9.f))));
  // -beta log2 s = first + second + x / log 2, where first and second are integers and x / log 2 is the
  // remainder. Adding and subtracting rounder rounds to an integer.
  const float beta_high = (float)beta, beta_low = (float)(beta - beta_high), whole_e = (float)e, rounder = 12582912;
  const float first = (-beta_high * whole_e + rounder) - rounder;
  const float rest = (-beta_high * whole_e - first) - (beta_low * whole_e + beta_high * (t * series * 2.885390082f));
  const float second = (rest + rounder) - rounder, x = (rest - second) * 0.6931471806f;
  const float fraction =
      1 + x * (1 + x * (1 / 2.f + x * (1 / 6.f + x * (1 / 24.f + x * (1 / 120.f + x * (1 / 720.f))))));
  const float exponent = first + second;
  const bool is_large = exponent > 127, is_small = exponent < -126;
  const int32_t power_bits = ((int32_t)(is_large || is_small ? 0 : exponent) + 127) << 23;
  const float scaled = bits_as<float>(power_bits) * fraction;
  const float power = is_large ? std::numeric_limits<float>::infinity() : is_small ? 0 : scaled;
  return s <= std::numeric_limits<float>::max() ? power : 1 / s;  // 0 for infinity, NaN for NaN
}
inline double negative_power(double s, double beta) { return std::pow(s, -beta); }
inline long double negative_power(long double s, double beta) { return std::pow(s, -(long double)beta); }

struct PowerOne {
  template <class T>
  T power(T s) const {
    return 1 / s;
  }
  template <class T>  // s^(-beta - 1)
  T next(T, T power) const {
    return power * power;
  }
};
struct PowerHalf {
  template <class T>
  T power(T s) const {
    return 1 / std::sqrt(s);
  }
  template <class T>
  T next(T s, T power) const {
    return power / s;
  }
};
struct PowerThreeQuarters {
  template <class T>
  T power(T s) const {
    const T root = 1 / std::sqrt(s);
    return root * std::sqrt(root);
  }
  template <class T>
  T next(T s, T power) const {
    return power / s;
  }
};
struct PowerAny {
  double beta;
  template <class T>
  T power(T s) const {
    return negative_power(s, beta);
  }
  template <class T>
  T next(T s, T power) const {
    return power / s;
  }
};

struct PowerLarge {  // for betas that could overflow in the steps above
  double beta;
  template <class T>
  T power(T s) const {
    return (T)std::pow(s * 1.0, -beta);
  }
  template <class T>
  T next(T s, T power) const {
    return power / s;
  }
};

// Calls body(power).
template <class Body>
void with_power(double beta, Body &&body) {
  if (beta == 0.75)
    body(PowerThreeQuarters{});
  else if (beta == 0.5)
    body(PowerHalf{});
  else if (beta == 1)
    body(PowerOne{});
  else if (beta <= 64)
    body(PowerAny{beta});
  else
    body(PowerLarge{beta});
}

// -- rows ----------------------------------------------------------------------------------------

template <class T>
inline void set_squares(const T *from, T *to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] * from[i];
}

template <class T>
inline void add_squares(const T *from, T *to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] += from[i] * from[i];
}

template <class T>
inline void add_row(const T *from, T *to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

// y = x * s^-beta, from the sums of squares.
template <class T, class Power>
inline void normalize_row(const WindowNorm &norm, const Power &power, const T *x, const T *sums, T *y, int64_t count) {
  const T k = (T)norm.k, scale = (T)norm.scale;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * power.power(k + scale * sums[i]);
}

// Computes from the sums of squares s^-beta, and each output's share in the gradients of its window. Both may
// overwrite the sums.
template <class T, class Power>
inline void share_row(const WindowNorm &norm, const Power &power, const T *x, const T *gy, const T *sums, T *powers,
                      T *shares, int64_t count) {
  const T k = (T)norm.k, scale = (T)norm.scale;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const T s = k + scale * sums[i], p = power.power(s);
    powers[i] = p;
    shares[i] = gy[i] * x[i] * power.next(s, p);
  }
}

// -- windows -------------------------------------------------------------------------------------

// An array (outer, length, inner) is summed over windows along its middle axis in independent pieces: rows,
// or lines if there is no inner axis.
inline int64_t piece_count(int64_t outer, int64_t length, int64_t inner) { return inner > 1 ? outer * length : outer; }

// Sums one piece; from and to must differ.
template <class T>
void sum_piece(const T *from, T *to, int64_t piece, int64_t length, int64_t inner, int64_t behind, int64_t ahead) {
  if (inner > 1) {
    const int64_t i = piece % length, first = std::max<int64_t>(0, i - behind), last = std::min(length, i + ahead + 1);
    from += (piece - i) * inner;
    to += piece * inner;
    std::copy(from + first * inner, from + (first + 1) * inner, to);
    for (int64_t j = first + 1; j < last; ++j) add_row(from + j * inner, to, inner);
    return;
  }
  from += piece * length;
  to += piece * length;
  std::copy(from, from + length, to);
  for (int64_t j = 1; j <= behind && j < length; ++j) add_row(from, to + j, length - j);
  for (int64_t j = 1; j <= ahead && j < length; ++j) add_row(from + j, to, length - j);
}

// Checks that all operands have the same shape and dtype, and gives them to the outputs.
inline void same_shapes(const dnnops_tensor *inputs, int input_count, dnnops_tensor *outputs, int output_count) {
  const dnnops_tensor &first = inputs[0];
  for_float_dtype(first.dtype, [](auto) {});
  for (int i = 1; i < input_count; ++i)
    if (inputs[i].dtype != first.dtype || !same_shape(inputs[i], first))
      fail(DNNOPS_VALUE_ERROR, "the operands must have the same shape and dtype");
  for (int i = 0; i < output_count; ++i) set_output(outputs[i], first);
}

}  // namespace dnnops
#endif
