#include "double_product.hpp"

#include <algorithm>
#include <cstring>

namespace dnnops {
namespace {

#ifdef __AVX512F__
constexpr int kLanes = 8, kTileRows = 12;  // 24 of 32 registers hold sums
#elif defined(__AVX__)
constexpr int kLanes = 4, kTileRows = 6;  // 12 of 16 registers hold sums
#else
constexpr int kLanes = 2, kTileRows = 6;
#endif
constexpr int kTileColumns = 2 * kLanes;
// A block of A should stay in the level 2 cache (288 kB), the columns of B for a tile in the level 1 cache,
// and a block of B in any cache (1 MB).
constexpr int64_t kBlockRows = 12 * kTileRows, kBlockColumns = 512, kBlockDepth = 256;

using Vec = double __attribute__((vector_size(kLanes * sizeof(double))));

inline Vec load(const double *from) {
  Vec value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

int64_t up_to_whole(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

// Packs groups of `width` rows of op(A), or columns of op(B), as [group][k][width], padded with zeros.
// Elements are `step` apart along `width` and `deep` apart along k.
template <int width>
void pack_groups(const double *from, int64_t step, int64_t deep, int64_t count, int64_t k, double *to) {
  for (int64_t begin = 0; begin < count; begin += width, to += width * k) {
    const double *first = from + begin * step;
    const int64_t there = std::min<int64_t>(width, count - begin);
    if (there < width) std::fill_n(to, width * k, 0.0);
    if (there == width && step == 1) {
      for (int64_t i = 0; i < k; ++i) std::memcpy(to + i * width, first + i * deep, width * sizeof(double));
    } else if (there == width) {
      for (int64_t i = 0; i < k; ++i)
        for (int j = 0; j < width; ++j) to[i * width + j] = first[j * step + i * deep];
    } else {
      for (int64_t i = 0; i < k; ++i)
        for (int64_t j = 0; j < there; ++j) to[i * width + j] = first[j * step + i * deep];
    }
  }
}

// c (rows x columns of a tile) = alpha * the product of two groups; with `adds`, the product is added to c.
void multiply_tile(int64_t k, const double *a, const double *b, double alpha, bool adds, double *c, int64_t ldc,
                   int64_t rows, int64_t columns) {
  Vec sums[kTileRows][2] = {};
  for (int64_t i = 0; i < k; ++i, a += kTileRows, b += kTileColumns) {
    const Vec left = load(b), right = load(b + kLanes);
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; ++row) {
      sums[row][0] += a[row] * left;
      sums[row][1] += a[row] * right;
    }
  }
  if (rows == kTileRows && columns == kTileColumns) {
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; ++row)
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part) {
        double *to = c + row * ldc + part * kLanes;
        Vec value = alpha * sums[row][part];
        if (adds) value += load(to);
        std::memcpy(to, &value, sizeof value);
      }
    return;
  }
  double whole[kTileRows][kTileColumns];
  std::memcpy(whole, sums, sizeof whole);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      double &to = c[i * ldc + j];
      to = alpha * whole[i][j] + (adds ? to : 0);
    }
}

}  // namespace

void DoubleProduct::operator()(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double alpha,
                               const double *a, int64_t lda, const double *b, int64_t ldb, double beta, double *c,
                               int64_t ldc) {
  const int64_t a_row = trans_a ? 1 : lda, a_deep = trans_a ? lda : 1;
  const int64_t b_column = trans_b ? ldb : 1, b_deep = trans_b ? 1 : ldb;
  const int64_t a_size = std::min(k, kBlockDepth) * std::min(up_to_whole(m, kTileRows), kBlockRows);
  const int64_t b_size = std::min(k, kBlockDepth) * std::min(up_to_whole(n, kTileColumns), kBlockColumns);
  if ((int64_t)packed_.size() < a_size + b_size) packed_.resize(a_size + b_size);
  double *const a_block = packed_.data(), *const b_block = a_block + a_size;
  for (int64_t column = 0; column < n; column += kBlockColumns) {
    const int64_t columns = std::min(kBlockColumns, n - column);
    for (int64_t deep = 0; deep < k; deep += kBlockDepth) {
      const int64_t depth = std::min(kBlockDepth, k - deep);
      const bool adds = beta != 0 || deep > 0;
      pack_groups<kTileColumns>(b + column * b_column + deep * b_deep, b_column, b_deep, columns, depth, b_block);
      for (int64_t row = 0; row < m; row += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, m - row);
        pack_groups<kTileRows>(a + row * a_row + deep * a_deep, a_row, a_deep, rows, depth, a_block);
        for (int64_t j = 0; j < columns; j += kTileColumns)
          for (int64_t i = 0; i < rows; i += kTileRows)
            multiply_tile(depth, a_block + i * depth, b_block + j * depth, alpha, adds,
                          c + (row + i) * ldc + column + j, ldc, std::min<int64_t>(kTileRows, rows - i),
                          std::min<int64_t>(kTileColumns, columns - j));
      }
    }
  }
}

}  // namespace dnnops
