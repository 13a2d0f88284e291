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
  std::string options;
  unsigned grid;
  int64_t workspace;   // bytes
  int64_t zero_bytes;  // of the workspace's end, that are zero before
};

// `blocks` is how many run at once.  Throws DNNOPS_NOT_SUPPORTED for arrays that are too large.
BatchNormWork batchnorm_work(const BatchNormCase &of, int64_t blocks);

}  // namespace dnnops
#endif
