// Vectors of 16 floats, and 16 x 16 transposes between rows in memory and vectors.
#ifndef DNNOPS_ONEDNN_WINOGRAD_SIMD_HPP
#define DNNOPS_ONEDNN_WINOGRAD_SIMD_HPP

#include <immintrin.h>

#include "winograd_sizes.hpp"

namespace dnnops::winograd {

using Vec = __m512;

inline Vec load(const float *from) { return _mm512_loadu_ps(from); }
inline void store(float *to, Vec value) { _mm512_storeu_ps(to, value); }
inline void prefetch(const float *at) { _mm_prefetch(reinterpret_cast<const char *>(at), _MM_HINT_T0); }
inline Vec broadcast(float value) { return _mm512_set1_ps(value); }
// a * b + c with a single rounding, made explicit rather than left to the compiler. GCC contracts operators
// by default, also with -std=c++17 (-ffp-contract=fast in C++); Clang does so only within one expression.
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec fma(float a, Vec b, Vec c) { return fma(broadcast(a), b, c); }

inline __mmask16 first_lanes(int64_t count) { return (__mmask16)((1u << count) - 1); }

// Loads columns 4 * Quarters of a 16 x 16 matrix, each as a vector. Only half of the work is shuffles, which
// have a single port; the loads do the rest by gathering four rows each.
template <int Quarters = 4>
inline void load_columns(const float *rows, int64_t stride, Vec *columns) {
#pragma GCC unroll 4
  for (int quarter = 0; quarter < Quarters; ++quarter) {
    Vec piece[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const float *at = rows + i * stride + 4 * quarter;
      Vec gathered = _mm512_castps128_ps512(_mm_loadu_ps(at));
      gathered = _mm512_insertf32x4(gathered, _mm_loadu_ps(at + 4 * stride), 1);
      gathered = _mm512_insertf32x4(gathered, _mm_loadu_ps(at + 8 * stride), 2);
      piece[i] = _mm512_insertf32x4(gathered, _mm_loadu_ps(at + 12 * stride), 3);
    }
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(piece[0], piece[1]));
    const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(piece[0], piece[1]));
    const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(piece[2], piece[3]));
    const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(piece[2], piece[3]));
    columns[4 * quarter + 0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
    columns[4 * quarter + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
    columns[4 * quarter + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
    columns[4 * quarter + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
  }
}

// Like above, for a partial matrix: missing rows and columns are not read and become zeros.
template <int Quarters = 4>
inline void load_columns(const float *rows, int64_t stride, int64_t row_count, int64_t column_count, Vec *columns) {
  alignas(64) float padded[kLanes * kLanes];
  const __mmask16 mask = first_lanes(column_count);
  for (int64_t i = 0; i < kLanes; ++i)
    store(padded + i * kLanes, _mm512_maskz_loadu_ps(i < row_count ? mask : (__mmask16)0, rows + i * stride));
  load_columns<Quarters>(padded, kLanes, columns);
}

}  // namespace dnnops::winograd
#endif
