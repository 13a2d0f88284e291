// How a batch normalization is laid out on the device.
#ifndef DNNOPS_CUDNN_BATCHNORM_WORK_HPP
#define DNNOPS_CUDNN_BATCHNORM_WORK_HPP

#include <string>

#include "batchnorm_params.hpp"
#include "check.hpp"

namespace dnnops {

// Contiguous arrays, seen as (batch, channel, inner).
struct BatchNormCase {
  int64_t kind, dtype, batch, channels, inner;
  int64_t alignment;  // of all their addresses, at most 16
};

struct BatchNormWork {
  BatchNormParams params;  // without addresses and scalars
  int64_t way;             // a BatchNormWay
  std::string options;
  int64_t grid;          // if the way is BATCHNORM_KEPT, at most: as many as run at once
  int64_t shared_bytes;  // dynamic ones of a block
  int64_t workspace;     // bytes
  int64_t zero_bytes;    // of the workspace's end, that are zero before
};

// What a block keeps in shared memory at most.
constexpr int64_t BATCHNORM_KEPT_BYTES = 48 << 10;
// Beside that: tables of sums, and what the device takes for itself.
constexpr int64_t BATCHNORM_OTHER_SHARED_BYTES = 9 << 10;

// `blocks` is how many run at once; `kept_blocks` how many do that have BATCHNORM_KEPT_BYTES each, by a cooperative
// launch, 0 if there is none.  Throws DNNOPS_NOT_SUPPORTED for arrays that are too large.
BatchNormWork batchnorm_work(const BatchNormCase &of, int64_t blocks, int64_t kept_blocks);

}  // namespace dnnops
#endif
