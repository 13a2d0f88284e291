// One cuDNN handle per thread and device.
#ifndef DNNOPS_CUDNN_HANDLE_HPP
#define DNNOPS_CUDNN_HANDLE_HPP

#include "workspace.hpp"

namespace dnnops {

struct Handle {
  cudnnHandle_t cudnn = nullptr;
  int64_t number = 0;  // unique in the process: plans made with one handle are not used with another
  int device = 0;
  void *stream = nullptr;
  Arena *arena = nullptr;  // the arena of this device and stream
};

// This thread's handle for a device, created on first use and set to the stream.
Handle &handle_for(int64_t device, void *stream);

// Whether work on this stream is being captured into a CUDA graph.
bool is_capturing(void *stream);

// Makes a device current, and restores the previous one at the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int64_t device) {
    DNNOPS_CHECK(cudaGetDevice(&former_));
    if (former_ != device) {
      DNNOPS_CHECK(cudaSetDevice(static_cast<int>(device)));
      changed_ = true;
    }
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(former_);
  }
  DeviceGuard(const DeviceGuard &) = delete;
  DeviceGuard &operator=(const DeviceGuard &) = delete;

 private:
  int former_ = 0;
  bool changed_ = false;
};

}  // namespace dnnops
#endif
