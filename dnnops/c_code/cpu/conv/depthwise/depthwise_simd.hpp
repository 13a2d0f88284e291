// Vectors of floats for depthwise convolutions, as wide as the processor's or half as wide.
#ifndef DNNOPS_ONEDNN_DEPTHWISE_SIMD_HPP
#define DNNOPS_ONEDNN_DEPTHWISE_SIMD_HPP

#include <cstdint>
#include <cstring>

#ifdef __AVX__
#include <immintrin.h>
#endif

namespace dnnops::depthwise {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

template <int N>
struct Vector {
  typedef float Values __attribute__((vector_size(N * sizeof(float))));
};
template <int N>
using Vec = typename Vector<N>::Values;

template <int N>
inline Vec<N> load(const float *from) {
  Vec<N> values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

template <class V>
inline void store(float *to, V values) {
  std::memcpy(to, &values, sizeof values);
}

template <int N>
inline Vec<N> broadcast(float value) {
  return value - Vec<N>{};
}

// Loads `count` floats, or all if there are more. The other lanes are zero, and nothing is read for them.
template <int N>
inline Vec<N> load_first(const float *from, int64_t count) {
  if (count >= N) return load<N>(from);
#ifdef __AVX512F__
  if constexpr (N == 16) return (Vec<N>)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#endif
#ifdef __AVX512VL__
  if constexpr (N == 8) return (Vec<N>)_mm256_maskz_loadu_ps((__mmask8)((1u << count) - 1), from);
#elif defined(__AVX__)
  if constexpr (N == 8) {
    alignas(32) static constexpr int32_t kMasks[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    const __m256i mask = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(kMasks + 8 - count));
    return (Vec<N>)_mm256_maskload_ps(from, mask);
  }
#endif
  float values[N] = {};
  for (int64_t i = 0; i < count; ++i) values[i] = from[i];
  return load<N>(values);
}

// Stores `count` floats, or all if there are more.
template <class V>
inline void store_first(float *to, V values, int64_t count) {
  constexpr int64_t N = sizeof values / sizeof(float);
  if (count >= N) return store(to, values);
#ifdef __AVX512F__
  if constexpr (N == 16) {
    _mm512_mask_storeu_ps(to, (__mmask16)(count > 0 ? (1u << count) - 1 : 0), (__m512)values);
    return;
  }
#endif
#ifdef __AVX512VL__
  if constexpr (N == 8) {
    _mm256_mask_storeu_ps(to, (__mmask8)(count > 0 ? (1u << count) - 1 : 0), (__m256)values);
    return;
  }
#endif
  if (count > 0) std::memcpy(to, &values, count * sizeof(float));
}

// Stores the even lanes of kLanes floats at `even` and the odd ones at `odd`.
inline void store_parities(Vec<kLanes> values, float *even, float *odd) {
#ifdef __AVX512F__
  const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  const __m512d sorted = _mm512_castps_pd(_mm512_permutexvar_ps(order, (__m512)values));
  store(even, _mm512_castpd512_pd256(sorted));
  store(odd, _mm512_extractf64x4_pd(sorted, 1));
#elif defined(__AVX2__)
  const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  const __m256 sorted = _mm256_permutevar8x32_ps((__m256)values, order);
  store(even, _mm256_castps256_ps128(sorted));
  store(odd, _mm256_extractf128_ps(sorted, 1));
#else
  for (int i = 0; i < kLanes; i += 2) {
    even[i / 2] = values[i];
    odd[i / 2] = values[i + 1];
  }
#endif
}

// The lanes of two vectors in turns: those of the first vector in the even lanes of the results.
template <int N>
inline void interleave(Vec<N> first, Vec<N> second, Vec<N> (&both)[2]) {
#ifdef __AVX512F__
  if constexpr (N == 16) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    both[0] = (Vec<N>)_mm512_permutex2var_ps((__m512)first, low, (__m512)second);
    both[1] = (Vec<N>)_mm512_permutex2var_ps((__m512)first, high, (__m512)second);
    return;
  }
#endif
#ifdef __AVX__
  if constexpr (N == 8) {
    const __m256 low = _mm256_unpacklo_ps((__m256)first, (__m256)second);
    const __m256 high = _mm256_unpackhi_ps((__m256)first, (__m256)second);
    both[0] = (Vec<N>)_mm256_permute2f128_ps(low, high, 0x20);
    both[1] = (Vec<N>)_mm256_permute2f128_ps(low, high, 0x31);
    return;
  }
#endif
  for (int i = 0; i < N / 2; ++i) {
    both[0][2 * i] = first[i];
    both[0][2 * i + 1] = second[i];
    both[1][2 * i] = first[N / 2 + i];
    both[1][2 * i + 1] = second[N / 2 + i];
  }
}

}  // namespace dnnops::depthwise
#endif
