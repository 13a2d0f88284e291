// How a batch normalization is distributed over the device.
#ifndef DNNOPS_CUDNN_BATCHNORM_WORK_HPP
#define DNNOPS_CUDNN_BATCHNORM_WORK_HPP

#include <algorithm>
#include <string>

#include "batchnorm_params.hpp"
#include "../base/check.hpp"

namespace dnnops {

// Contiguous arrays, viewed as (batch, channel, inner).
struct BatchNormCase {
  int64_t kind, fused, dtype, batch, channels, inner;  // `fused`: bits of BatchNormFused
  int64_t alignment;                                   // the minimum over all addresses, at most 16
};

// How the blocks of a way use a multiprocessor.
struct BatchNormBlocks {
  int64_t threads;
  int64_t blocks;       // blocks per multiprocessor that run at once if shared memory suffices
  int64_t bytes;        // the maximum that a block keeps in shared memory, for all arrays
  int64_t other_bytes;  // approximate further shared memory: tables of sums, and what the device reserves
};

// The fastest settings on an H200: shares taking turns; sweeping over rows; shares of single warps; and those
// for training with 16-bit elements, whose images are half as large.
constexpr BatchNormBlocks BATCHNORM_PLAIN = {256, 4, 48 << 10, 9 << 10};
constexpr BatchNormBlocks BATCHNORM_SWEEPING = {512, 1, 208 << 10, 17 << 10};
constexpr BatchNormBlocks BATCHNORM_WARPS = {512, 1, 216 << 10, 2 << 10};
constexpr BatchNormBlocks BATCHNORM_MORE_WARPS = {1024, 1, 216 << 10, 2 << 10};
// Warps that hold shares in registers, and the maximum number of vectors per thread, by the number of arrays
// read. There is room for two shares in registers and one in shared memory.
constexpr BatchNormBlocks BATCHNORM_HOLDING = {256, 1, 104 << 10, 3 << 10};
constexpr int64_t BATCHNORM_MOST_HELD[] = {0, 25, 13};
// Threads that hold whole channels in registers. They determine how many blocks run at once.
constexpr BatchNormBlocks BATCHNORM_SHORT_CHANNELS = {128, 1, 0, 0};
// If swept: how much of the data read should stay in the level 2 cache, for the whole device.
constexpr int64_t BATCHNORM_CACHED_BYTES = 40 << 20;

struct BatchNormWork {
  BatchNormParams params;  // without addresses and scalars
  int64_t way;             // a BatchNormWay
  std::string options;
  int64_t threads;       // per block
  int64_t grid;          // if the way is BATCHNORM_KEPT or BATCHNORM_BY_WARPS, reduced to what runs at once
  int64_t shared_bytes;  // dynamic shared memory per block
  int64_t workspace;     // in bytes
  int64_t filled_bytes;  // at the end of the workspace, to be filled with `fill` before the launch
  int64_t fill;
  // Whether all blocks must run at once.
  bool is_cooperative() const {
    return way == BATCHNORM_KEPT || way == BATCHNORM_SWEPT || way == BATCHNORM_BY_WARPS || way == BATCHNORM_HELD;
  }
};

// How many blocks run at once: those that do not keep their data, and those of each kind above in a
// cooperative launch (0 if it is not supported). The number for warps is the same for both sizes.
struct BatchNormDevice {
  int64_t streaming, plain, by_warps, sweeping, holding;
};

// Throws DNNOPS_NOT_SUPPORTED if the arrays are too large.
BatchNormWork batchnorm_work(const BatchNormCase &of, const BatchNormDevice &device);

}  // namespace dnnops
#endif
