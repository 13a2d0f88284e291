// How a batch normalization is laid out on the device.
#ifndef DNNOPS_CUDNN_BATCHNORM_WORK_HPP
#define DNNOPS_CUDNN_BATCHNORM_WORK_HPP

#include <algorithm>
#include <string>

#include "batchnorm_params.hpp"
#include "check.hpp"

namespace dnnops {

// Contiguous arrays, seen as (batch, channel, inner).
struct BatchNormCase {
  int64_t kind, dtype, batch, channels, inner;
  int64_t alignment;  // of all their addresses, at most 16
};

// How blocks of a way use a multiprocessor.
struct BatchNormBlocks {
  int64_t threads;
  int64_t blocks;       // of a multiprocessor at once, at least, if there is shared memory for them
  int64_t bytes;        // that a block keeps in shared memory, of all arrays, at most
  int64_t other_bytes;  // of shared memory, about: tables of sums, and what the device takes for itself
};

// What was fastest on an H200: one share after the other; along rows, all in one go; shares of single warps, and those
// of 16-bit elements in training, whose images are half as large.
constexpr BatchNormBlocks BATCHNORM_PLAIN = {256, 4, 48 << 10, 9 << 10};
constexpr BatchNormBlocks BATCHNORM_SWEEPING = {512, 1, 208 << 10, 17 << 10};
constexpr BatchNormBlocks BATCHNORM_WARPS = {512, 1, 216 << 10, 2 << 10};
constexpr BatchNormBlocks BATCHNORM_MORE_WARPS = {1024, 1, 216 << 10, 2 << 10};
// Warps that hold shares in registers, of so many vectors a thread at most, by the arrays that are read.  There is room
// for two shares in registers, and one in shared memory.
constexpr BatchNormBlocks BATCHNORM_HOLDING = {256, 1, 104 << 10, 3 << 10};
constexpr int64_t BATCHNORM_MOST_HELD[] = {0, 25, 13};
// If swept: what the level 2 cache is meant to keep of what is read, on the whole device.
constexpr int64_t BATCHNORM_CACHED_BYTES = 40 << 20;

struct BatchNormWork {
  BatchNormParams params;  // without addresses and scalars
  int64_t way;             // a BatchNormWay
  std::string options;
  int64_t threads;       // of a block
  int64_t grid;          // if the way is BATCHNORM_KEPT or BATCHNORM_BY_WARPS, at most: as many as run at once
  int64_t shared_bytes;  // dynamic ones of a block
  int64_t workspace;     // bytes
  int64_t filled_bytes;  // of the workspace's end, that are like this before
  int64_t fill;
  // Whether all blocks have to run at once.
  bool is_cooperative() const {
    return way == BATCHNORM_KEPT || way == BATCHNORM_SWEPT || way == BATCHNORM_BY_WARPS || way == BATCHNORM_HELD;
  }
};

// How many blocks run at once: that don't keep what they read; and as above, by a cooperative launch, 0 if there is none.
// Of either number of warps, those that work by warps are as many.
struct BatchNormDevice {
  int64_t streaming, plain, by_warps, sweeping, holding;
};

// Throws DNNOPS_NOT_SUPPORTED for arrays that are too large.
BatchNormWork batchnorm_work(const BatchNormCase &of, const BatchNormDevice &device);

}  // namespace dnnops
#endif
