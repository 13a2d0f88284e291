// The fastest of several plans, measured on the operands of a call.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "conv_plan.hpp"

namespace dnnops {

namespace {

constexpr int ROUNDS = 5;
constexpr float HOPELESS = 4;  // times the best so far, in the warm-up round after the first run
constexpr double BUDGET_SECONDS = 2;

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

class Stopwatch {
 public:
  explicit Stopwatch(const Launch &launch) : launch_(launch), stream_(static_cast<cudaStream_t>(launch.handle->stream)) {}

  // Milliseconds of one execution.
  float run(Plan &plan) {
    DNNOPS_CHECK(cudaEventRecord(start_, stream_));
    plan.execute(launch_, pack_);
    DNNOPS_CHECK(cudaEventRecord(stop_, stream_));
    DNNOPS_CHECK(cudaEventSynchronize(stop_));
    float milliseconds = 0;
    DNNOPS_CHECK(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return milliseconds;
  }

 private:
  const Launch &launch_;
  cudaStream_t stream_;
  Event start_, stop_;
  PointerPack pack_;
};

// The median, or infinity as soon as it is clear that the plan is not the best.
float time_plan(Plan &plan, const Launch &launch, float best) {
  Stopwatch stopwatch(launch);
  stopwatch.run(plan);  // loads the kernels
  if (stopwatch.run(plan) > HOPELESS * best) return HUGE_VALF;
  float times[ROUNDS];
  for (float &time : times) time = stopwatch.run(plan);
  std::sort(times, times + ROUNDS);
  return times[ROUNDS / 2];
}

int64_t extent_in_bytes(const Tensor &tensor, int64_t dtype) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.ndim; ++i) last += (tensor.shape[i] - 1) * tensor.strides[i];
  return (last + 1) * item_size(dtype);
}

}  // namespace

std::shared_ptr<Plan> fastest_plan(const Choosing &choosing, const std::vector<std::shared_ptr<Plan>> &plans,
                                   Refusals &refusals) {
  const Role result = choosing.conv.direction == CONV_FORWARD       ? ROLE_TOP
                      : choosing.conv.direction == CONV_GRAD_INPUTS ? ROLE_IMAGE
                                                                    : ROLE_FILTERS;
  Arena &arena = *choosing.launch.handle->arena;
  // A plan that adds to its output is timed on scratch memory: it must not add twice.
  const int64_t scratch_bytes =
      choosing.launch.beta == 0 ? 0 : extent_in_bytes(choosing.conv.tensors[result], choosing.conv.dtype);
  Workspace scratch(arena, scratch_bytes);
  Launch launch = choosing.launch;
  if (scratch.pointer()) {
    // What is added to is read: let it be numbers, not what was left there.
    DNNOPS_CHECK(cudaMemsetAsync(scratch.pointer(), 0, scratch_bytes, static_cast<cudaStream_t>(launch.handle->stream)));
    launch.pointers[result] = scratch.pointer();
  }
  std::shared_ptr<Plan> best;
  float best_time = HUGE_VALF;
  const auto start = std::chrono::steady_clock::now();
  for (const auto &plan : plans) {
    if (best && std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > BUDGET_SECONDS) break;
    try {
      Workspace workspace(arena, plan->workspace);
      launch.workspace = workspace.pointer();
      const float time = time_plan(*plan, launch, best_time);
      if (time < best_time) {
        best_time = time;
        best = plan;
      }
      if (choosing.params.verbose) std::fprintf(stderr, "dnnops:   %s: %.4f ms\n", plan->name.c_str(), time);
    } catch (const Error &error) {
      refusals.push_back({plan->name, error.message, error.status});
    }
  }
  arena.free_idle();  // the largest workspace may have been that of a plan not taken
  return best;
}

}  // namespace dnnops
