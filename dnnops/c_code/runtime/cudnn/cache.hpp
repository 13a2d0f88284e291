// Work before what is timed.
#ifndef DNNOPS_CUDNN_CACHE_HPP
#define DNNOPS_CUDNN_CACHE_HPP

#include <memory>

#include "kernel_loader.hpp"
#include "workspace.hpp"

namespace dnnops {

class Event {
 public:
  Event() { DNNOPS_CHECK(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event &) = delete;
  Event &operator=(const Event &) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Milliseconds from one event to a later one, which is waited for.
double milliseconds_between(cudaEvent_t start, cudaEvent_t stop);

// Keeps the device busy, and leaves its cache without anything that a plan has used or that has yet to be written.
// Without memory for it, it does nothing.
class CacheFiller {
 public:
  explicit CacheFiller(const Handle &handle);
  // For at least so long; the device's cache is passed through at least twice.
  void run(double milliseconds);

 private:
  void fill(int64_t times);

  cudaStream_t stream_;
  int64_t bytes_ = 0;
  std::unique_ptr<Workspace> memory_;
  Kernel read_;
  unsigned blocks_ = 0;
  double fill_milliseconds_ = 0;
};

}  // namespace dnnops
#endif
