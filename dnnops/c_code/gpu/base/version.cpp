// Queries that need no GPU.
#include "check.hpp"

DNNOPS_EXPORT int64_t dnnops_cudnn_version(void) { return static_cast<int64_t>(cudnnGetVersion()); }

DNNOPS_EXPORT int64_t dnnops_cudnn_header_version(void) { return CUDNN_VERSION; }

DNNOPS_EXPORT int64_t dnnops_cudnn_cudart_version(void) {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

// Creates the handle of a device, to test whether cuDNN works there.
#include "handle.hpp"
DNNOPS_EXPORT int dnnops_cudnn_probe(int64_t device) {
  return dnnops::guarded("cuDNN", nullptr, 0, [&] {
    const dnnops::DeviceGuard guard(device);
    dnnops::handle_for(device, nullptr);
  });
}
