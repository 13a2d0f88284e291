// Planes whose rows fit into a vector: taps read shifted copies of a row, which are made in registers. For small
// planes, copying a plane with a border takes longer than the convolution.
#ifndef DNNOPS_ONEDNN_DEPTHWISE_SHIFT_HPP
#define DNNOPS_ONEDNN_DEPTHWISE_SHIFT_HPP

#include "depthwise_planes.hpp"

namespace dnnops::depthwise {

#ifdef __AVX2__
constexpr int kMostNarrow = kLanes;

// Lane x of M becomes lane x * stride + offset of N, or zero if there is no such pixel.
template <int N, int M = N>
class Shift {
 public:
  Shift() = default;
  Shift(int64_t stride, int64_t offset, int64_t width) {
    int32_t from[N], used[N];
    for (int x = 0; x < N; ++x) {
      const int64_t at = x * stride + offset;
      const bool is_used = at >= 0 && at < width;
      from[x] = is_used ? (int32_t)at : 0;
      used[x] = is_used ? -1 : 0;
      mask_ |= is_used << x;
    }
    std::memcpy(&from_, from, sizeof from_);
    std::memcpy(&used_, used, sizeof used_);
  }
  inline Vec<M> operator()(Vec<N> row) const {
#ifdef __AVX512F__
    if constexpr (N == 16) {
      const __m512 shifted = _mm512_maskz_permutexvar_ps((__mmask16)mask_, (__m512i)from_, (__m512)row);
      if constexpr (M == N)
        return (Vec<M>)shifted;
      else
        return (Vec<M>)_mm512_castps512_ps256(shifted);
    }
#endif
    if constexpr (N == 8) {
#ifdef __AVX512VL__
      return (Vec<N>)_mm256_maskz_permutexvar_ps((__mmask8)mask_, (__m256i)from_, (__m256)row);
#else
      return (Vec<N>)_mm256_and_ps((__m256)used_, _mm256_permutevar8x32_ps((__m256)row, (__m256i)from_));
#endif
    }
  }

 private:
  typedef int32_t Lanes __attribute__((vector_size(N * sizeof(int32_t))));
  Lanes from_, used_;  // used_: all bits of a lane
  int32_t mask_ = 0;   // the same, one bit for each lane
};

// Calls loops(N, M) with constants: vectors of N floats hold a row of the image, those of M a row of the top.
template <int S, class Loops>
inline void with_lanes(const Planes &planes, Loops &&loops) {
  constexpr std::integral_constant<int, 8> half{};
  constexpr std::integral_constant<int, kLanes> whole{};
  if (widest(planes) <= 8) return loops(half, half);
  if constexpr (S == 2)
    if (planes.top_shape[1] <= 8) return loops(whole, half);
  loops(whole, whole);
}
#else
constexpr int kMostNarrow = 0;
#endif

}  // namespace dnnops::depthwise
#endif
