#include "narrow_product.hpp"

#include <algorithm>
#include <cstring>

namespace dnnops {
namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16, kVectors = 4;  // 24 of 32 registers hold sums
#elif defined(__AVX__)
constexpr int kLanes = 8, kVectors = 2;  // 12 of 16 registers hold sums
#else
constexpr int kLanes = 4, kVectors = 2;
#endif
constexpr int kRows = 6, kColumns = kVectors * kLanes;

using Vec = float __attribute__((vector_size(kLanes * sizeof(float))));

template <int Rows>
void multiply_tile(int64_t depth, const float *a, const float *b, int64_t ldb, float *c, int64_t ldc) {
  Vec sums[Rows][kVectors] = {};
  for (int64_t k = 0; k < depth; ++k, b += ldb) {
    Vec right[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) std::memcpy(&right[j], b + j * kLanes, sizeof(Vec));
#pragma GCC unroll 6
    for (int i = 0; i < Rows; ++i) {
      const float left = a[i * depth + k];
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sums[i][j] += left * right[j];
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) std::memcpy(c + i * ldc + j * kLanes, &sums[i][j], sizeof(Vec));
}

using Tile = void (*)(int64_t, const float *, const float *, int64_t, float *, int64_t);
constexpr Tile kTiles[kRows] = {multiply_tile<1>, multiply_tile<2>, multiply_tile<3>,
                                multiply_tile<4>, multiply_tile<5>, multiply_tile<6>};

}  // namespace

void narrow_product(int64_t rows, int64_t columns, int64_t depth, const float *a, const float *b, int64_t ldb, float *c,
                    int64_t ldc) {
  // The columns of B that are read for all rows should stay in the level 1 cache, with the rows of A.
  constexpr int64_t kBlock = 256 / kColumns * kColumns;
  for (int64_t begin = 0; begin < columns; begin += kBlock)
    for (int64_t row = 0; row < rows; row += kRows) {
      const int64_t count = std::min<int64_t>(kRows, rows - row);
      for (int64_t column = begin; column < std::min(columns, begin + kBlock); column += kColumns) {
        // The last tile overlaps the one before it, and computes the same sums.
        const int64_t at = std::min(column, columns - kColumns);
        kTiles[count - 1](depth, a + row * depth, b + at, ldb, c + row * ldc + at, ldc);
      }
    }
}

}  // namespace dnnops
