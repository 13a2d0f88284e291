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
  int64_t blocks;  // of a multiprocessor at once, at least, if there is shared memory for them
  int64_t stages;  // shares that a block has room for
  int64_t ahead;   // that it adds up before it waits for the sums of one: 0 or 1, less than `stages`
  int64_t bytes;   // that a block keeps in shared memory, of all stages and arrays, at most
};

// What was fastest on an H200: one share after the other; along channels; along rows, all in one go.
constexpr BatchNormBlocks BATCHNORM_PLAIN = {256, 4, 1, 0, 48 << 10};
constexpr BatchNormBlocks BATCHNORM_PIPELINED = {256, 2, 3, 1, 104 << 10};
constexpr BatchNormBlocks BATCHNORM_SWEEPING = {256, 2, 1, 0, 104 << 10};
// If swept: what the level 2 cache is meant to keep of what is read, on the whole device.
constexpr int64_t BATCHNORM_CACHED_BYTES = 24 << 20;
// Beside what blocks keep: tables of sums, and what the device takes for itself.
constexpr int64_t BATCHNORM_OTHER_SHARED_BYTES = 9 << 10;

struct BatchNormWork {
  BatchNormParams params;  // without addresses and scalars
  int64_t way;             // a BatchNormWay
  std::string options;
  int64_t threads;       // of a block
  int64_t grid;          // if the way is BATCHNORM_KEPT, at most: as many as run at once
  int64_t shared_bytes;  // dynamic ones of a block
  int64_t workspace;     // bytes
  int64_t filled_bytes;  // of the workspace's end, that are like this before
  int64_t fill;
  int64_t ahead;
  // Whether all blocks have to run at once.
  bool is_cooperative() const { return way == BATCHNORM_KEPT || way == BATCHNORM_SWEPT; }
};

// How many blocks run at once: that don't keep what they read; and as above, by a cooperative launch, 0 if there is none.
struct BatchNormDevice {
  int64_t streaming, plain, pipelined, sweeping;
};

// Throws DNNOPS_NOT_SUPPORTED for arrays that are too large.
BatchNormWork batchnorm_work(const BatchNormCase &of, const BatchNormDevice &device);

}  // namespace dnnops
#endif
