// The fastest of the plans of a case, measured on the operands of a call.
#include <algorithm>
#include <chrono>

#include "conv_plan.hpp"

namespace dnnops {

namespace {

// A run after the first that takes this many times the best so far settles it.
constexpr double HOPELESS = 1.5;
// Plans this close to the fastest are timed a second time, in turns.
constexpr double CLOSE = 1.1;
constexpr int FINALISTS = 4;
constexpr int FINAL_ROUNDS = 3;
// Engines whose fastest configuration is this close are tried with other values of their knobs.
constexpr double PROMISING = 1.3;
constexpr size_t STARTS = 3;
// Before each execution, memory is filled, which on an H200 takes about 18 us each time.  That empties the cache of
// what the last execution left there, as whatever runs between two executions in a network does; and it keeps the
// device busy while the host launches what is timed, for which short kernels would have to wait.
constexpr int64_t MIN_FILL_BYTES = int64_t(64) << 20;
constexpr double HOST_BOUND_MS = 0.04;
constexpr double HOST_SLACK_MS = 0.1;
constexpr int FILLS = 2, HOST_BOUND_FILLS = 8;
// Executions that are timed, of short ones more; long ones hardly vary, and cost the time of others: of these the
// one after the first counts.
constexpr double SHORT_MS = 0.2, LONG_MS = 20;
constexpr int ROUNDS = 5, SHORT_ROUNDS = 9;
// The first execution also loads the kernels, for which it may take so much longer.
constexpr double LOADING_MS = 1000;

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

int64_t extent_in_bytes(const Tensor &tensor, int64_t dtype) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.ndim; ++i) last += (tensor.shape[i] - 1) * tensor.strides[i];
  return (last + 1) * item_size(dtype);
}

// A plan that adds to its output is timed on scratch memory: it must not add twice.
int64_t scratch_bytes(const ConvCase &conv, const Launch &launch) {
  return launch.beta == 0 ? 0 : extent_in_bytes(conv.tensors[result_role(conv.direction)], conv.dtype);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

struct PlanTimer::Clock {
  Event start, stop;
};

PlanTimer::PlanTimer(const ConvCase &conv, const Launch &launch)
    : launch_(launch), scratch_(*launch.handle->arena, scratch_bytes(conv, launch)), clock_(new Clock) {
  // For all plans or for none: times with an empty and a full cache can't be compared.
  int cache_bytes = 0;
  DNNOPS_CHECK(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, launch.handle->device));
  fill_bytes_ = std::max(MIN_FILL_BYTES, int64_t(cache_bytes) * 5 / 4);
  try {
    filled_.reset(new Workspace(*launch.handle->arena, fill_bytes_));
  } catch (const Error &error) {
    if (error.status != DNNOPS_OUT_OF_MEMORY) throw;  // then the times may be those of the host
  }
  if (!scratch_.pointer()) return;
  // What is added to is read: let it be numbers, not what was left there.
  DNNOPS_CHECK(cudaMemsetAsync(scratch_.pointer(), 0, scratch_bytes(conv, launch),
                               static_cast<cudaStream_t>(launch.handle->stream)));
  launch_.pointers[result_role(conv.direction)] = scratch_.pointer();
}

PlanTimer::~PlanTimer() = default;

// Milliseconds of one execution.
double PlanTimer::once(Plan &plan, int fills) {
  const cudaStream_t stream = static_cast<cudaStream_t>(launch_.handle->stream);
  fill(fills);
  DNNOPS_CHECK(cudaEventRecord(clock_->start, stream));
  plan.execute(launch_, pack_);
  DNNOPS_CHECK(cudaEventRecord(clock_->stop, stream));
  DNNOPS_CHECK(cudaEventSynchronize(clock_->stop));
  float milliseconds = 0;
  DNNOPS_CHECK(cudaEventElapsedTime(&milliseconds, clock_->start, clock_->stop));
  return milliseconds;
}

void PlanTimer::fill(int times) {
  for (int i = 0; filled_ && i < times; ++i)
    DNNOPS_CHECK(
        cudaMemsetAsync(filled_->pointer(), 0, fill_bytes_, static_cast<cudaStream_t>(launch_.handle->stream)));
}

double PlanTimer::time(Plan &plan, double best) {
  const Workspace workspace(*launch_.handle->arena, plan.workspace);
  launch_.workspace = workspace.pointer();
  if (once(plan, 0) > HOPELESS * best + LOADING_MS) return HUGE_VAL;
  const double first = once(plan, 0);
  // All plans of a case are timed in the same way as the best one, or they could not be compared.
  const double expected = std::min(first, best);
  const bool host_bound = expected < HOST_BOUND_MS;
  // Where the host is the slower one, that is what this run may have measured.
  if (first > HOPELESS * best + (host_bound ? HOST_SLACK_MS : 0)) return HUGE_VAL;
  if (first > LONG_MS) return first;
  std::vector<double> times(expected < SHORT_MS ? SHORT_ROUNDS : ROUNDS);
  for (double &time : times) time = once(plan, host_bound ? HOST_BOUND_FILLS : FILLS);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void PlanTimer::run(Plan &plan, int64_t repeats) {
  const Workspace workspace(*launch_.handle->arena, plan.workspace);
  launch_.workspace = workspace.pointer();
  for (int64_t i = 0; i < repeats; ++i) plan.execute(launch_, pack_);
  DNNOPS_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(launch_.handle->stream)));
}

namespace {

// cuDNN's most general kernels run everything, in the worst case a hundred times slower than others: one such run
// can take all the time that there is.  Engines have the numbers of the legacy algorithms that they come from.
bool is_general(const PlanSpec &spec, int64_t direction) {
  if (spec.api != API_GRAPH && spec.api != API_LEGACY) return false;
  return spec.id == 0 || (direction == CONV_GRAD_WEIGHTS && spec.id == 3);
}

// A search for the fastest plan of one case, until its time is up.
class Search {
 public:
  Search(const ConvCase &conv, const Launch &launch, double seconds, Refusals &refusals)
      : refusals_(refusals),
        direction_(conv.direction),
        builder_(conv, *launch.handle, refusals),
        timer_(conv, launch),
        seconds_(seconds) {}

  std::vector<TimedPlan> run() {
    std::vector<std::shared_ptr<Plan>> last;
    bool out_of_time = builder_.trusted([&](std::shared_ptr<Plan> plan) {
      if (best_ == HUGE_VAL || !is_general(plan->spec, direction_)) return time(std::move(plan));
      last.push_back(std::move(plan));
      return false;
    });
    for (std::shared_ptr<Plan> &plan : last) {
      if (out_of_time) break;
      out_of_time = time(std::move(plan));
    }
    for (const PlanSpec &start : promising()) {
      if (out_of_time) break;
      out_of_time = descend(start);
    }
    sort();
    try {
      settle();
    } catch (const Error &) {
      // What was measured before stands.
    }
    timed_.insert(timed_.end(), hopeless_.begin(), hopeless_.end());
    return std::move(timed_);
  }

 private:
  // Returns whether the time is up.
  bool time(std::shared_ptr<Plan> plan) {
    try {
      const double milliseconds = timer_.time(*plan, best_);
      best_ = std::min(best_, milliseconds);
      (milliseconds < HUGE_VAL ? timed_ : hopeless_).push_back({std::move(plan), milliseconds});
    } catch (const Error &error) {
      refusals_.push_back({plan->name, error.message, error.status, plan->spec, plan->notes});
    }
    return best_ < HUGE_VAL && seconds_since(start_) > seconds_;
  }

  void sort() {
    std::stable_sort(timed_.begin(), timed_.end(),
                     [](const TimedPlan &a, const TimedPlan &b) { return a.milliseconds < b.milliseconds; });
  }

  // Of each of the fastest engines the fastest configuration.
  std::vector<PlanSpec> promising() {
    sort();
    std::vector<PlanSpec> found;
    for (const TimedPlan &timed : timed_) {
      const PlanSpec &spec = timed.plan->spec;
      if (found.size() == STARTS || timed.milliseconds > PROMISING * best_) break;
      const bool known = std::any_of(found.begin(), found.end(), [&](const PlanSpec &other) {
        return other.api == spec.api && other.id == spec.id && other.format == spec.format;
      });
      if (!known) found.push_back(spec);
    }
    return found;
  }

  // From one configuration of an engine by steps of one knob, as long as that makes it faster.
  bool descend(PlanSpec from) {
    for (;;) {
      const size_t before = timed_.size();
      if (builder_.neighbors(from, [this](std::shared_ptr<Plan> plan) { return time(std::move(plan)); })) return true;
      const TimedPlan *fastest = nullptr;
      double reached = HUGE_VAL;
      for (const TimedPlan &timed : timed_)
        if (same_spec(timed.plan->spec, from)) reached = timed.milliseconds;
      for (size_t i = before; i < timed_.size(); ++i)
        if (timed_[i].milliseconds < reached) {
          fastest = &timed_[i];
          reached = fastest->milliseconds;
        }
      if (!fastest) return false;
      from = fastest->plan->spec;
    }
  }

  // Times those that are close to the fastest once more, in turns, so that what the device does in between
  // falls on all of them.
  void settle() {
    size_t count = 0;
    while (count < timed_.size() && count < FINALISTS && timed_[count].milliseconds <= CLOSE * best_) ++count;
    if (count < 2 || best_ > LONG_MS) return;
    std::vector<std::vector<double>> rounds(count);
    for (int round = 0; round < FINAL_ROUNDS; ++round)
      for (size_t i = 0; i < count; ++i) rounds[i].push_back(timer_.time(*timed_[i].plan, best_));
    for (size_t i = 0; i < count; ++i) {
      std::sort(rounds[i].begin(), rounds[i].end());
      timed_[i].milliseconds = rounds[i][FINAL_ROUNDS / 2];
    }
    sort();
  }

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Refusals &refusals_;
  const int64_t direction_;
  PlanBuilder builder_;
  PlanTimer timer_;
  const double seconds_;
  std::vector<TimedPlan> timed_, hopeless_;
  double best_ = HUGE_VAL;
};

}  // namespace

std::vector<TimedPlan> search_plans(const ConvCase &conv, const Launch &launch, double seconds, Refusals &refusals) {
  std::vector<TimedPlan> timed = Search(conv, launch, seconds, refusals).run();
  launch.handle->arena->free_idle();  // the largest workspace may have been that of a plan not taken
  return timed;
}

}  // namespace dnnops
