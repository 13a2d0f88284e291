#include "check.hpp"

namespace dnnops {

namespace {

// cuDNN 9 numbers its statuses by category: 2xxx bad parameters, 3xxx not supported.
int status_of(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ||
      status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED)
    return DNNOPS_OUT_OF_MEMORY;
  const int category = static_cast<int>(status) / 1000;
  return category == 3 ? DNNOPS_NOT_SUPPORTED : DNNOPS_LIBRARY_ERROR;
}

}  // namespace

void fail_cudnn(cudnnStatus_t status, const char *call) {
  char words[2048] = "";
  cudnnGetLastErrorString(words, sizeof words);
  std::string message = std::string(call) + " returned " + cudnnGetErrorString(status);
  if (words[0]) message += std::string(" (") + words + ")";
  throw Error(status_of(status), message);
}

void fail_cuda(cudaError_t status, const char *call) {
  cudaGetLastError();  // clears the error, which the next call would otherwise report
  throw Error(status == cudaErrorMemoryAllocation ? DNNOPS_OUT_OF_MEMORY : DNNOPS_LIBRARY_ERROR,
              std::string(call) + " returned " + cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ")");
}

}  // namespace dnnops
