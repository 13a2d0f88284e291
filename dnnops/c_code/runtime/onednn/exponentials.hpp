// Exponentials and maxima as vector code.
#ifndef DNNOPS_ONEDNN_EXPONENTIALS_HPP
#define DNNOPS_ONEDNN_EXPONENTIALS_HPP

#include <algorithm>
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
template <class T>
T largest_of(const T *values, int64_t count) {
  constexpr int kLanes = 32;
  T lanes[kLanes], largest = -std::numeric_limits<T>::infinity();
  std::fill(lanes, lanes + kLanes, largest);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
  for (; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
  for (const T lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

// Likewise, exact to 4e-16; the whole part is in the lowest bits once 1.5 * 2^52 is added.
inline double exponential(double x) {
  const bool is_small = !(x >= -708);
  const double y = is_small ? 0 : x, rounder = 6755399441055744.0, shifted = y * 1.4426950408889634074 + rounder;
  const double whole = shifted - rounder;
  const double r = (y - whole * 0.693145751953125) - whole * 1.42860682030941723212e-6;
  double p = 1 / 6227020800.0;
  p = p * r + 1 / 479001600.0;
  p = p * r + 1 / 39916800.0;
  p = p * r + 1 / 3628800.0;
  p = p * r + 1 / 362880.0;
  p = p * r + 1 / 40320.0;
  p = p * r + 1 / 5040.0;
  p = p * r + 1 / 720.0;
  p = p * r + 1 / 120.0;
  p = p * r + 1 / 24.0;
  p = p * r + 1 / 6.0;
  p = p * r + 0.5;
  p = p * r * r + r + 1;
  uint64_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 52) + 0x3FF0000000000000u;
  double power;
  std::memcpy(&power, &bits, sizeof power);
  power = is_small ? 0 : power * p;
  return x == x ? power : x;
}


}  // namespace dnnops
#endif
