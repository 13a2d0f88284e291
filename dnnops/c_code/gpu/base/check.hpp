// Turns the statuses of cuDNN and of the CUDA runtime into dnnops::Error.
#ifndef DNNOPS_CUDNN_CHECK_HPP
#define DNNOPS_CUDNN_CHECK_HPP

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "../../abi/python/dnnops_cudnn.h"
#include "../../common/error.hpp"

namespace dnnops {

// Throws an error with the call, the name of the status and cuDNN's error text.
[[noreturn]] void fail_cudnn(cudnnStatus_t status, const char *call);
[[noreturn]] void fail_cuda(cudaError_t status, const char *call);

inline void check(cudnnStatus_t status, const char *call) {
  if (__builtin_expect(status != CUDNN_STATUS_SUCCESS, 0)) fail_cudnn(status, call);
}
inline void check(cudaError_t status, const char *call) {
  if (__builtin_expect(status != cudaSuccess, 0)) fail_cuda(status, call);
}

#define DNNOPS_CHECK(call) ::dnnops::check((call), #call)

}  // namespace dnnops
#endif
