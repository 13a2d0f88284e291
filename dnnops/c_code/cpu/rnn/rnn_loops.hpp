// The parts of a recurrent network's passes besides matrix products: cells, dropout, sums.
#ifndef DNNOPS_ONEDNN_RNN_LOOPS_HPP
#define DNNOPS_ONEDNN_RNN_LOOPS_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "../conv/conv_blas.hpp"
#include "../base/plan.hpp"

namespace dnnops::rnn {

// -- matrix products ---------------------------------------------------------------------------

// Row-major C (m x n) = op(A) op(B) + beta C.
inline void gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                 int64_t ldb, float beta, float *c, int64_t ldc) {
  DNNL_CHECK(dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, 1, a, lda, b, ldb, beta, c, ldc));
}
inline void gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const double *a, int64_t lda,
                 const double *b, int64_t ldb, double beta, double *c, int64_t ldc) {
  blas_gemm(trans_a, trans_b, m, n, k, a, lda, b, ldb, beta, c, ldc);
}

template <class T>
void multiply(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const T *a, int64_t lda, const T *b,
              int64_t ldb, T beta, T *c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k > 0) return gemm(trans_a, trans_b, m, n, k, a, lda, b, ldb, beta, c, ldc);
  if (beta == 0)
    for (int64_t i = 0; i < m; ++i) std::fill_n(c + i * ldc, n, (T)0);
}

// C (m x n) = A transposed (m x k) B for a long k, in pieces, which makes dnnl_sgemm a sixth faster.
template <class T>
void multiply_in_pieces(int64_t m, int64_t n, int64_t k, const T *a, int64_t lda, const T *b, int64_t ldb, T *c,
                      int64_t ldc) {
  constexpr int64_t kPiece = 512;
  if (k == 0) return multiply<T>(true, false, m, n, 0, a, lda, b, ldb, 0, c, ldc);
  for (int64_t done = 0; done < k; done += kPiece)
    multiply<T>(true, false, m, n, std::min(kPiece, k - done), a + done * lda, lda, b + done * ldb, ldb, done ? 1 : 0, c,
                ldc);
}

template <class T>
void transpose(int64_t rows, int64_t columns, const T *from, T *to, int64_t pitch) {
  constexpr int64_t kBlock = 16;
#pragma omp parallel for if (rows * columns > 16384)
  for (int64_t begin = 0; begin < columns; begin += kBlock)
    for (int64_t i = 0; i < rows; i += kBlock)
      for (int64_t column = begin; column < std::min(columns, begin + kBlock); ++column)
        for (int64_t row = i; row < std::min(rows, i + kBlock); ++row)
          to[column * pitch + row] = from[row * columns + column];
}

// The functions below divide a lot. Whole AVX-512 vectors, which GCC avoids by default, save a quarter of the time.
#ifdef __AVX512F__
#pragma GCC push_options
#pragma GCC target("prefer-vector-width=512")
#endif

// -- branch-free functions: loops of the float versions become vectors -----------------------------

template <class To, class From>
inline To as_bits(From from) {
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// 2^n times a polynomial of the remainder. NaN is kept.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which ends up in the lowest bits
  const float shifted = x * 1.44269504f + shift, n = shifted - shift;
  const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691e-4f;
  p = p * r + 1.3981999e-3f;
  p = p * r + 8.3334519e-3f;
  p = p * r + 4.1665796e-2f;
  p = p * r + 1.6666665e-1f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  return p * as_bits<float>((as_bits<uint32_t>(shifted) << 23) + 0x3F800000u);
}
inline float logistic(float x) { return 1.0f / (1.0f + exponential(-x)); }
inline float hyperbolic_tangent(float x) {
  const float size = std::fabs(x), square = x * x;
  float p = -5.70498873e-3f;
  p = p * square + 2.06390888e-2f;
  p = p * square - 5.37397155e-2f;
  p = p * square + 1.33314422e-1f;
  p = p * square - 3.33332819e-1f;
  const float small = p * square * x + x;
  const float large = std::copysign(1.0f - 2.0f / (exponential(2.0f * size) + 1.0f), x);
  return size < 0.625f ? small : large;
}
inline double logistic(double x) { return 1 / (1 + std::exp(-x)); }
inline double hyperbolic_tangent(double x) { return std::tanh(x); }

// -- one step of one sequence ------------------------------------------------------------------

// `kept`: on entry, the gate sums; on return, the gates i, f, c, o, and the cell.
template <class T>
void lstm_step(int64_t size, const T *__restrict bias, const T *__restrict c_before, T *__restrict kept,
               T *__restrict out) {
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) {
    const T i = logistic(kept[j] + bias[j]), f = logistic(kept[size + j] + bias[size + j]);
    const T g = hyperbolic_tangent(kept[2 * size + j] + bias[2 * size + j]);
    const T o = logistic(kept[3 * size + j] + bias[3 * size + j]);
    const T c = f * c_before[j] + i * g;
    kept[j] = i;
    kept[size + j] = f;
    kept[2 * size + j] = g;
    kept[3 * size + j] = o;
    kept[4 * size + j] = c;
    out[j] = o * hyperbolic_tangent(c);
  }
}

// `kept`: on entry, the input's part; on return, the gates r, i, h, and the recurrent part of h.
template <class T>
void gru_step(int64_t size, const T *__restrict bias, const T *__restrict recurrent, const T *__restrict h_before,
              T *__restrict kept, T *__restrict out) {
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) {
    const T r = logistic(kept[j] + recurrent[j] + bias[j]);
    const T z = logistic(kept[size + j] + recurrent[size + j] + bias[size + j]);
    const T part = recurrent[2 * size + j] + bias[3 * size + j];
    const T n = hyperbolic_tangent(kept[2 * size + j] + bias[2 * size + j] + r * part);
    kept[j] = r;
    kept[size + j] = z;
    kept[2 * size + j] = n;
    kept[3 * size + j] = part;
    out[j] = n + z * (h_before[j] - n);
  }
}

template <class T>
void plain_step(int64_t size, bool relu, const T *__restrict bias, T *__restrict out) {
  if (relu) {
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) {
      const T sum = out[j] + bias[j];
      out[j] = sum < 0 ? (T)0 : sum;
    }
    return;
  }
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) out[j] = hyperbolic_tangent(out[j] + bias[j]);
}

// `dc`: on entry, the gradient with respect to the cell after the step; on return, before it.
// `dgates`: i, f, c, o.
template <class T>
void lstm_gradient(int64_t size, const T *__restrict kept, const T *__restrict c_before, const T *__restrict dh,
                   T *__restrict dc, T *__restrict dgates) {
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) {
    const T i = kept[j], f = kept[size + j], g = kept[2 * size + j], o = kept[3 * size + j];
    const T tanh_c = hyperbolic_tangent(kept[4 * size + j]);
    const T by_c = dc[j] + dh[j] * o * (1 - tanh_c * tanh_c);
    dgates[j] = by_c * g * i * (1 - i);
    dgates[size + j] = by_c * c_before[j] * f * (1 - f);
    dgates[2 * size + j] = by_c * i * (1 - g * g);
    dgates[3 * size + j] = dh[j] * tanh_c * o * (1 - o);
    dc[j] = by_c * f;
  }
}

// `dgates`: with respect to the input part of h, r, i and the recurrent part of h.
// `direct`: with respect to the previous output, without the paths through the gates.
template <class T>
void gru_gradient(int64_t size, const T *__restrict kept, const T *__restrict h_before, const T *__restrict dh,
                  T *__restrict direct, T *__restrict dgates) {
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) {
    const T r = kept[j], z = kept[size + j], n = kept[2 * size + j], part = kept[3 * size + j];
    const T dn = dh[j] * (1 - z) * (1 - n * n);
    dgates[j] = dn;
    dgates[size + j] = dn * part * r * (1 - r);
    dgates[2 * size + j] = dh[j] * (h_before[j] - n) * z * (1 - z);
    dgates[3 * size + j] = dn * r;
    direct[j] = dh[j] * z;
  }
}

template <class T>
void plain_gradient(int64_t size, bool relu, const T *__restrict h, const T *__restrict dh, T *__restrict dgate) {
  if (relu) {
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) dgate[j] = h[j] <= 0 ? (T)0 : dh[j];  // if h is NaN, dh is passed on
    return;
  }
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) dgate[j] = dh[j] * (1 - h[j] * h[j]);
}

#ifdef __AVX512F__
#pragma GCC pop_options
#endif

// -- whole arrays ------------------------------------------------------------------------------

// The output function of SplitMix64 (Steele, Lea and Flood 2014).
inline uint64_t mixed(uint64_t word) {
  word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
  word = (word ^ word >> 27) * 0x94D049BB133111EBu;
  return word ^ word >> 31;
}

// The dropout after a layer, as in keep_mask of dnnops/nnet/rnn/layout.py. `to` may be `from`.
template <class T>
void drop(int64_t seed, int64_t layer, double dropout, int64_t count, const T *from, T *to) {
  constexpr uint64_t kIncrement = 0x9E3779B97F4A7C15u;
  const uint64_t start = mixed((uint64_t)seed + (uint64_t)(layer + 1) * kIncrement);
  const uint64_t threshold = (uint64_t)std::nearbyint(dropout * (1 << 24));
  const T factor = (T)(1 / (1 - dropout));
#pragma omp parallel for simd if (parallel : count > 16384)
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t word = mixed(start + (uint64_t)(i + 1) * kIncrement);
    to[i] = word >> 40 >= threshold ? from[i] * factor : (T)0;
  }
}

// Sums the columns [0, columns) of rows that are `stride` apart.
template <class T>
void sum_rows(int64_t rows, int64_t columns, int64_t stride, const T *from, T *sums) {
  constexpr int64_t kColumns = 64, kRows = 128;
#pragma omp parallel for if (rows * columns > 16384)
  for (int64_t begin = 0; begin < columns; begin += kColumns) {
    const int64_t count = std::min(kColumns, columns - begin);
    // Short sums in T are added up in float64.
    double totals[kColumns] = {};
    for (int64_t row = 0; row < rows; row += kRows) {
      T part[kColumns] = {};
      for (int64_t i = row; i < std::min(rows, row + kRows); ++i) {
        const T *values = from + i * stride + begin;
        if (count == kColumns) {
#pragma omp simd
          for (int64_t j = 0; j < kColumns; ++j) part[j] += values[j];
        } else {
          for (int64_t j = 0; j < count; ++j) part[j] += values[j];
        }
      }
      for (int64_t j = 0; j < count; ++j) totals[j] += part[j];
    }
    for (int64_t j = 0; j < count; ++j) sums[begin + j] = (T)totals[j];
  }
}

}  // namespace dnnops::rnn
#endif
