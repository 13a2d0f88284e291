// Exponentials and maxima of float as vector code.
#ifndef DNNOPS_ONEDNN_EXPONENTIALS_HPP
#define DNNOPS_ONEDNN_EXPONENTIALS_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace dnnops {

// e^x of what is not positive, as vector code; 0 below the least normal number.
inline float exponential(float x) {
  const bool is_small = !(x >= -87);  // NaN, too: it is put back below
  const float y = (is_small ? 0 : x) * 1.442695041f, rounder = 12582912, whole = (y + rounder) - rounder;
  // In two steps, of which the first one is exact.
  const float rest = ((is_small ? 0 : x) - whole * 0.693359375f) + whole * 2.12194440e-4f;
  const float fraction =
      1 + rest * (1 + rest * (1 / 2.f + rest * (1 / 6.f + rest * (1 / 24.f + rest * (1 / 120.f + rest * (1 / 720.f))))));
  const int32_t bits = ((int32_t)whole + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  power = is_small ? 0 : power * fraction;
  return x == x ? power : x;
}

// The largest of some numbers that is no NaN, minus infinity if there is none.  By lanes, because compilers make no
// vector code of a maximum that minds NaNs.
inline float largest_of(const float *values, int64_t count) {
  constexpr int kLanes = 32;
  float lanes[kLanes], largest = -std::numeric_limits<float>::infinity();
  std::fill(lanes, lanes + kLanes, largest);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
  for (; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

inline double exponential(double x) { return std::exp(x); }

inline double largest_of(const double *values, int64_t count) {
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
  return largest;
}

}  // namespace dnnops
#endif
