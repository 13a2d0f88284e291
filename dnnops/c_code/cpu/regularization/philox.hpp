// Philox4x32-10 random numbers, as described in dnnops/nnet/regularization/dropout.py.
#ifndef DNNOPS_ONEDNN_PHILOX_HPP
#define DNNOPS_ONEDNN_PHILOX_HPP

#include <cstdint>
#include <cstring>

#include "../../common/dropout_problem.hpp"

namespace dnnops {

// The number of elements, and of blocks of random numbers, that are drawn together.
constexpr int64_t kGroup = DROPOUT_GROUP, kBlocks = DROPOUT_BLOCKS;

// The four words of 16 blocks, ordered by word, then by block.
inline void draw(uint64_t seed, uint64_t block, uint32_t *words) {
  uint32_t a[kBlocks], b[kBlocks], c[kBlocks] = {0}, d[kBlocks] = {0};
  uint32_t first = (uint32_t)seed, second = (uint32_t)(seed >> 32);
  for (int64_t lane = 0; lane < kBlocks; ++lane) {
    a[lane] = (uint32_t)(block + lane);
    b[lane] = (uint32_t)((block + lane) >> 32);
  }
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t lane = 0; lane < kBlocks; ++lane) {
      const uint64_t low = (uint64_t)0xD2511F53u * a[lane], high = (uint64_t)0xCD9E8D57u * c[lane];
      a[lane] = (uint32_t)(high >> 32) ^ b[lane] ^ first;
      b[lane] = (uint32_t)high;
      c[lane] = (uint32_t)(low >> 32) ^ d[lane] ^ second;
      d[lane] = (uint32_t)low;
    }
    first += 0x9E3779B9u;
    second += 0xBB67AE85u;
  }
  const uint32_t *const rows[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) std::memcpy(words + i * kBlocks, rows[i], sizeof a);
}

}  // namespace dnnops
#endif
