// Passes that are recorded as CUDA graphs, and launched as these when they come again.
#ifndef DNNOPS_CUDNN_REPLAY_HPP
#define DNNOPS_CUDNN_REPLAY_HPP

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "handle.hpp"

namespace dnnops {

// Every address that a pass reads or writes.  What it launches depends on nothing else.
using Addresses = std::array<int64_t, 24>;
// Launches a pass on the stream of a handle.
using LaunchPass = std::function<void(const Handle &)>;

// A recorded pass.
class Recording {
 public:
  // Records what is launched, which is not run.  Throws if it can't be recorded.  What has the kernels lives as long.
  Recording(const Handle &handle, const LaunchPass &launch, std::shared_ptr<const void> owner = nullptr);
  ~Recording();
  Recording(const Recording &) = delete;
  Recording &operator=(const Recording &) = delete;
  void run(const Handle &handle) const;

 private:
  std::shared_ptr<const void> owner_;
  cudaGraphExec_t executable_ = nullptr;
};

// How many kernels a pass has: a few, or some for each step of a network, of which less recordings are kept.
enum class PassLength { SHORT, LONG };

// The recordings of one plan, by addresses.  They are kept with those of all plans, and the one that was not used for
// longest is forgotten first.
class Replays {
 public:
  // Without wanted none is made.  owner is what has the kernels, if that may go.
  Replays(bool wanted, PassLength length, std::shared_ptr<const void> owner = nullptr);
  // Runs a pass; launch is called unless there is a recording of these addresses.
  void run(const Handle &handle, const Addresses &addresses, const LaunchPass &launch);

 private:
  bool recurs(size_t hash);

  bool wanted_;
  PassLength length_;
  std::shared_ptr<const void> owner_;
  int64_t number_;  // unique in the process
  std::array<size_t, 8> seen_{};
  size_t next_ = 0;
  int64_t recorded_ = 0, replayed_ = 0;
};

// How many passes of this thread were launched as recordings.
int64_t replay_count();
// Why this thread's last recording failed; empty if none did.
const char *replay_failure();
void set_replay_failure(const std::string &message);

}  // namespace dnnops
#endif
