// Work to run before the plan that is timed.
#ifndef DNNOPS_CUDNN_CACHE_HPP
#define DNNOPS_CUDNN_CACHE_HPP

#include <memory>

#include "kernel_loader.hpp"
#include "../base/workspace.hpp"

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

// The milliseconds between two events. Waits for the later one.
double milliseconds_between(cudaEvent_t start, cudaEvent_t stop);

// Keeps the device busy, and evicts from its cache everything that a plan has used and all pending writes.
// Does nothing if there is no memory for it.
class CacheFiller {
 public:
  explicit CacheFiller(const Handle &handle);
  // Runs for at least this long, and passes through the device's cache at least twice.
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
