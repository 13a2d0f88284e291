// Passes that are recorded as CUDA graphs and replayed when the same arrays recur.
#ifndef DNNOPS_CUDNN_REPLAY_HPP
#define DNNOPS_CUDNN_REPLAY_HPP

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "../base/handle.hpp"

namespace dnnops {

// Every address that a pass reads or writes. Its launches depend on nothing else.
using Addresses = std::array<int64_t, 24>;
// Launches a pass on the stream of a handle.
using LaunchPass = std::function<void(const Handle &)>;

// A recorded pass.
class Recording {
 public:
  // Records the launches without running them. Throws if they cannot be recorded. Keeps `owner`, which holds
  // the kernels, alive.
  Recording(const Handle &handle, const LaunchPass &launch, std::shared_ptr<const void> owner = nullptr);
  ~Recording();
  Recording(const Recording &) = delete;
  Recording &operator=(const Recording &) = delete;
  void run(const Handle &handle) const;

 private:
  std::shared_ptr<const void> owner_;
  cudaGraphExec_t executable_ = nullptr;
};

// The number of kernels in a pass: a few, or several for each step of a network. Fewer recordings of long
// passes are kept.
enum class PassLength { SHORT, LONG };

// The recordings of one plan, by addresses. They are stored with those of all plans; the least recently used
// one is dropped first.
class Replays {
 public:
  // If not wanted, nothing is recorded. owner holds the kernels, if they may be freed otherwise.
  Replays(bool wanted, PassLength length, std::shared_ptr<const void> owner = nullptr);
  // Runs a pass. launch is called unless there is a recording for these addresses.
  void run(const Handle &handle, const Addresses &addresses, const LaunchPass &launch);
  // Drops the recordings.
  void forget();

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

// The number of passes of this thread that were replayed.
int64_t replay_count();
// Why this thread's last recording failed; empty if none did.
const char *replay_failure();
void set_replay_failure(const std::string &message);

}  // namespace dnnops
#endif
