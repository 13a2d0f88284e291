// Which algorithm runs a recurrent network: found by timing, once for each network and shape.
#include <cmath>
#include <unordered_map>

#include "../common/lru_cache.hpp"

#include "cache.hpp"
#include "conv_plan.hpp"
#include "rnn.hpp"

namespace dnnops::rnn {

namespace {

// How many choices there are by timing.  They are never forgotten, since a gradient has to find that of its forward
// call; networks and shapes beyond take the standard algorithm.
constexpr size_t MOST_CHOICES = 1024;
constexpr int RUNS = 3;
// Longer runs hardly vary: one is enough.
constexpr double LONG_MS = 50;
// The others have to be this much faster than the standard algorithm: times vary, and it is the safe one.
constexpr double MARGIN = 0.98;

struct Choices {
  std::mutex mutex;
  std::unordered_map<Key, int64_t, WordHash<Key>> algorithm;
};

Choices &choices() {
  static Choices *all = new Choices;
  return *all;
}

// A training step, or for inference a forward call, on operands of a call and results of its own.
class Trial {
 public:
  Trial(Key key, int64_t algo, const Problem &p, const Handle &handle, const dnnops_tensor *inputs)
      : handle_(handle), training_(key.training) {
    key.handle = handle.number;
    key.algo = algo;
    plan_.emplace(key, handle, std::vector<int64_t>(p.batch, p.steps));
    const int64_t item = item_size(key.dtype), states = p.states() * p.batch * item;
    const int64_t hidden = states * p.outputs, cell = p.has_cell() ? states * p.hidden : 0;
    Pieces pieces;
    const int64_t y = pieces.add(p.positions() * p.width() * item), hy = pieces.add(hidden), cy = pieces.add(cell);
    const int64_t reserve = pieces.add(plan_->reserve()), workspace = pieces.add(plan_->workspace());
    const int64_t generators = pieces.add(plan_->generators());
    const int64_t backward = training_ ? 1 : 0;
    const int64_t dw = pieces.add(backward * plan_->parameters()),
                  dx = pieces.add(backward * p.positions() * p.input * item), dhx = pieces.add(backward * hidden),
                  dcx = pieces.add(backward * cell);
    block_.emplace(*handle.arena, pieces.total());
    const auto at = [&](int64_t place) { return Pieces::at(*block_, place); };
    const bool has_cell = p.has_cell();
    arrays_ = {inputs[0].data, inputs[1].data, inputs[2].data, has_cell ? inputs[p.cx_at()].data : nullptr,
               at(y), at(hy), has_cell ? at(cy) : nullptr, training_ ? at(reserve) : nullptr, at(workspace),
               at(generators), 0};
    // The output stands in for the gradient by it.
    gradients_ = {at(y), at(hy), has_cell ? at(cy) : nullptr, at(dw), at(dx), at(dhx), has_cell ? at(dcx) : nullptr};
  }

  // In milliseconds; the first run also loads kernels.
  double time() {
    run();
    double best = HUGE_VAL;
    for (int i = 0; i < RUNS; ++i) {
      best = std::min(best, run());
      if (best > LONG_MS) break;
    }
    return best;
  }

 private:
  double run() {
    const cudaStream_t stream = static_cast<cudaStream_t>(handle_.stream);
    DNNOPS_CHECK(cudaEventRecord(start_, stream));
    plan_->forward(handle_, arrays_);
    if (training_) plan_->backward(handle_, arrays_, gradients_);
    DNNOPS_CHECK(cudaEventRecord(stop_, stream));
    return milliseconds_between(start_, stop_);
  }

  const Handle &handle_;
  bool training_;
  std::optional<Plan> plan_;
  std::optional<Workspace> block_;
  Plan::Arrays arrays_;
  Plan::Gradients gradients_;
  Event start_, stop_;
};

int64_t find_fastest(const Key &key, const Settings &settings, const Problem &p, const Handle &handle,
                     const dnnops_tensor *inputs) {
  // Not the dynamic one: compiling its kernel takes seconds.  Nor that for small layers, which gave wrong gradients.
  const int64_t candidates[] = {CUDNN_RNN_ALGO_STANDARD, CUDNN_RNN_ALGO_PERSIST_STATIC};
  double times[2] = {HUGE_VAL, HUGE_VAL}, best = HUGE_VAL;
  int64_t fastest = CUDNN_RNN_ALGO_STANDARD;
  for (int i = 0; i < 2; ++i) {
    try {
      times[i] = Trial(key, candidates[i], p, handle, inputs).time();
    } catch (const Error &) {
      // Most often cuDNN doesn't take the network, or there is no memory for another try.  What remains broken breaks
      // the call itself.
      DNNOPS_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(handle.stream)));
      continue;
    }
    if (times[i] < best) {
      best = times[i] * (i ? 1 : MARGIN);
      fastest = candidates[i];
    }
  }
  // That of the largest trial, which may be one that was in vain.
  handle.arena->free_idle();
  if (settings.verbose)
    std::fprintf(stderr,
                 "dnnops: GpuDnnRNN%s %lldx%lldx%lld, hidden size %lld, %lld layers, %s: %s (timed: standard %.4g ms,"
                 " persist_static %.4g ms)\n",
                 key.training ? "" : " inference", (long long)key.steps, (long long)key.batch, (long long)key.input,
                 (long long)key.hidden, (long long)key.layers, dtype_name(key.dtype), algorithm_names[fastest],
                 times[0], times[1]);
  return fastest;
}

}  // namespace

int64_t algorithm_for(const Key &key, const Settings &settings, const Problem &problem, const Handle &handle,
                      const dnnops_tensor *inputs, bool is_forward) {
  if (settings.algo != ALGO_AUTO) return settings.algo;
  // The others take none of these; and what is timed may be another one in the next process.
  if (key.padded || key.projected || key.dtype == DNNOPS_FLOAT64 || settings.deterministic)
    return CUDNN_RNN_ALGO_STANDARD;
  {
    std::lock_guard<std::mutex> lock(choices().mutex);
    const auto found = choices().algorithm.find(key);
    if (found != choices().algorithm.end()) return found->second;
    if (!is_forward || choices().algorithm.size() >= MOST_CHOICES) return CUDNN_RNN_ALGO_STANDARD;
  }
  const int64_t found = is_capturing(handle.stream) ? +CUDNN_RNN_ALGO_STANDARD
                                                    : find_fastest(key, settings, problem, handle, inputs);
  // Another thread may have been faster: its choice holds.
  std::lock_guard<std::mutex> lock(choices().mutex);
  return choices().algorithm.emplace(key, found).first->second;
}

}  // namespace dnnops::rnn
