#include "replay.hpp"

#include <algorithm>
#include <atomic>
#include <string>

#include "../../common/lru_cache.hpp"
#include "../base/descriptor.hpp"

namespace dnnops {

namespace {

// The limits for all plans and threads together. A training step needs a few recordings, since its arrays
// take turns. Each takes some KiB per kernel, of which a long network has thousands.
constexpr size_t KEPT_SHORT = 256, KEPT_LONG = 24;
// Recording takes as long as several launches. A plan whose addresses keep changing stops recording.
constexpr int64_t FREE_RECORDINGS = 8, REPLAYS_PER_RECORDING = 8;

thread_local int64_t replays_of_thread = 0;
thread_local std::string failure_of_thread;

struct RecordingKey {
  int64_t plan;
  Addresses addresses;
  bool operator==(const RecordingKey &other) const { return plan == other.plan && addresses == other.addresses; }
};

using Recordings = LruCache<RecordingKey, Recording, WordHash<RecordingKey>>;

Recordings &recordings(PassLength length) {
  // Not destroyed with static objects, because the driver may be gone by then.
  static auto *few_kernels = new Recordings(KEPT_SHORT), *many_kernels = new Recordings(KEPT_LONG);
  return length == PassLength::SHORT ? *few_kernels : *many_kernels;
}

// While it exists, work on the handle is recorded on a separate stream: the handle's stream may be the
// default one, which cannot be captured.
class Recorder {
 public:
  explicit Recorder(const Handle &handle) : handle_(handle), redirected_(handle) {
    DNNOPS_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    redirected_.stream = stream_;
    try {
      DNNOPS_CHECK(cudnnSetStream(handle.cudnn, stream_));
      // Fails if this thread does anything but launch, since that would not be replayed. Other threads are
      // not restricted.
      DNNOPS_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    } catch (...) {
      leave();
      throw;
    }
    recording_ = true;
  }
  ~Recorder() {
    if (recording_) {
      cudaGraph_t partial = nullptr;
      cudaStreamEndCapture(stream_, &partial);
      if (partial) cudaGraphDestroy(partial);
      cudaGetLastError();  // otherwise the next launch check would report it
    }
    leave();
  }
  Recorder(const Recorder &) = delete;
  Recorder &operator=(const Recorder &) = delete;

  const Handle &handle() const { return redirected_; }
  cudaGraph_t finish() {
    recording_ = false;
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(stream_, &graph);
    if (status != cudaSuccess) cudaGetLastError();
    DNNOPS_CHECK(status);
    return graph;
  }

 private:
  void leave() {
    cudnnSetStream(handle_.cudnn, static_cast<cudaStream_t>(handle_.stream));
    cudaStreamDestroy(stream_);
  }

  const Handle &handle_;
  Handle redirected_;
  cudaStream_t stream_ = nullptr;
  bool recording_ = false;
};

}  // namespace

Recording::Recording(const Handle &handle, const LaunchPass &launch, std::shared_ptr<const void> owner)
    : owner_(std::move(owner)) {
  Recorder recorder(handle);
  launch(recorder.handle());
  cudaGraph_t graph = recorder.finish();
  // Keep priorities that cuDNN may have given to its own streams.
  const cudaError_t status =
      cudaGraphInstantiateWithFlags(&executable_, graph, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(graph);
  if (status != cudaSuccess) cudaGetLastError();
  DNNOPS_CHECK(status);
}

// If the graph is still running, it is destroyed when it is done.
Recording::~Recording() {
  if (!process_is_ending) cudaGraphExecDestroy(executable_);
}

void Recording::run(const Handle &handle) const {
  DNNOPS_CHECK(cudaGraphLaunch(executable_, static_cast<cudaStream_t>(handle.stream)));
}

Replays::Replays(bool wanted, PassLength length, std::shared_ptr<const void> owner)
    : wanted_(wanted), length_(length), owner_(std::move(owner)) {
  static std::atomic<int64_t> made{0};
  number_ = ++made;
}

void Replays::forget() {
  if (recorded_) recordings(length_).remove_if([&](const RecordingKey &key) { return key.plan == number_; });
}

// Whether a pass without a recording was seen recently. Recording addresses that never recur would be wasted.
bool Replays::recurs(size_t hash) {
  if (std::find(seen_.begin(), seen_.end(), hash) != seen_.end()) return true;
  seen_[next_++ % seen_.size()] = hash;
  return false;
}

void Replays::run(const Handle &handle, const Addresses &addresses, const LaunchPass &launch) {
  // If another capture is in progress, launch the work into it.
  if (!wanted_ || is_capturing(handle.stream)) return launch(handle);
  const RecordingKey key{number_, addresses};
  std::shared_ptr<Recording> recording = recordings(length_).find(key);
  if (!recording) {
    const bool worthwhile = recorded_ < FREE_RECORDINGS + replayed_ / REPLAYS_PER_RECORDING;
    if (!worthwhile || !recurs(WordHash<RecordingKey>()(key))) return launch(handle);
    try {
      recording = std::make_shared<Recording>(handle, launch, owner_);
    } catch (const Error &error) {
      set_replay_failure(error.message);
      wanted_ = false;
      return launch(handle);
    }
    ++recorded_;
    recordings(length_).put(key, recording);
  }
  recording->run(handle);
  ++replayed_;
  ++replays_of_thread;
}

int64_t replay_count() { return replays_of_thread; }
const char *replay_failure() { return failure_of_thread.c_str(); }
void set_replay_failure(const std::string &message) { failure_of_thread = message; }

}  // namespace dnnops

DNNOPS_EXPORT int64_t dnnops_cudnn_replays(void) { return dnnops::replay_count(); }
DNNOPS_EXPORT const char *dnnops_cudnn_replay_failure(void) { return dnnops::replay_failure(); }
