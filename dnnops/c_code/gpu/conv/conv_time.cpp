// Finds the fastest plans of a case by timing them on the operands of a call.
#include <algorithm>
#include <chrono>

#include "../kernels/cache.hpp"
#include "conv_plan.hpp"

namespace dnnops {

namespace {

// A plan is given up if a run takes this many times the best time so far.
constexpr double HOPELESS = 1.5;
// Plans this close to the fastest are timed a second time, in turns.
constexpr double CLOSE = 1.1;
constexpr int FINALISTS = 8;
constexpr int FINAL_ROUNDS = 5;
constexpr double FINAL_SECONDS = 0.1;
// The share of the time limit, and the number of plans, after which a search ends if nothing was this much faster than
// the best plan before.
constexpr double PATIENCE = 0.25, FASTER = 0.995;
constexpr int PATIENT_PLANS = 8;
// Engines whose fastest configuration is this close are tried with other knob values.
constexpr double PROMISING = 1.3;
constexpr size_t STARTS = 3;
// Before each execution, the cache is emptied of what the last execution left there, as other work in a
// network would do. This also keeps the device busy for this many times as long as the host takes to launch
// the plan; otherwise the host would be measured.
constexpr double LAUNCH_MARGIN = 1.5;
// How many executions are timed. Short ones are timed more often. Long ones hardly vary and take time from
// others, so only the one after the first counts.
constexpr double SHORT_MS = 0.2, LONG_MS = 20;
constexpr int ROUNDS = 5, SHORT_ROUNDS = 9;
// Without a chance after so many executions, a plan gets no more.
constexpr int FIRST_ROUNDS = 3;
// Milliseconds that the first execution may take longer on the device, beside loading the kernels, for which the
// host waits.
constexpr double STARTING_MS = 5;

int64_t extent_in_bytes(const Tensor &tensor, int64_t dtype) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.ndim; ++i) last += (tensor.shape[i] - 1) * tensor.strides[i];
  return (last + 1) * item_size(dtype);
}

// A plan that adds to its output is timed on scratch memory, because it must not add twice.
int64_t scratch_bytes(const ConvCase &conv, const Launch &launch) {
  return launch.beta == 0 ? 0 : extent_in_bytes(conv.tensors[result_role(conv.direction)], conv.dtype);
}

// The maximum memory for a plan to read and write instead of its operands.
constexpr int64_t MAX_OTHER_BYTES = int64_t(256) << 20;
constexpr int64_t ALIGNMENT = 256;

int64_t aligned(int64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

struct PlanTimer::Clock {
  Event start, stop;
};

PlanTimer::PlanTimer(const ConvCase &conv, const Launch &launch)
    : launch_(launch),
      scratch_(*launch.handle->arena, scratch_bytes(conv, launch)),
      filler_(new CacheFiller(*launch.handle)),
      clock_(new Clock) {
  place_other_operands(conv);
  if (!scratch_.pointer()) return;
  // This memory is read and added to, so it must hold valid numbers.
  DNNOPS_CHECK(cudaMemsetAsync(scratch_.pointer(), 0, scratch_bytes(conv, launch),
                               static_cast<cudaStream_t>(launch.handle->stream)));
  launch_.pointers[result_role(conv.direction)] = scratch_.pointer();
}

PlanTimer::~PlanTimer() = default;

void PlanTimer::place_other_operands(const ConvCase &conv) {
  int64_t bytes = 0;
  for (const Tensor &array : conv.tensors) bytes += aligned(extent_in_bytes(array, conv.dtype));
  if (bytes > MAX_OTHER_BYTES) return;
  try {
    other_memory_.reset(new Workspace(*launch_.handle->arena, bytes));
  } catch (const Error &error) {
    if (error.status != DNNOPS_OUT_OF_MEMORY) throw;
    return;
  }
  char *place = static_cast<char *>(other_memory_->pointer());
  DNNOPS_CHECK(cudaMemsetAsync(place, 0, bytes, static_cast<cudaStream_t>(launch_.handle->stream)));
  other_ = launch_;
  for (int role = 0; role < 3; ++role) {
    other_.pointers[role] = place;
    place += aligned(extent_in_bytes(conv.tensors[role], conv.dtype));
  }
}

// Times one execution, given how long the host needs to launch it. For a short plan, an execution on other operands
// first brings its kernels into the cache. Between the layers of a network, a layer's operands are rarely cached, but
// kernels that other layers also run usually are, and loading some kernels takes longer than running them.
PlanTimer::Times PlanTimer::once(Plan &plan, double launch_milliseconds, bool is_short) {
  const cudaStream_t stream = static_cast<cudaStream_t>(launch_.handle->stream);
  const bool warms = is_short && other_memory_;
  filler_->run((warms ? 2 : 1) * LAUNCH_MARGIN * launch_milliseconds);
  if (warms) {
    other_.workspace = launch_.workspace;
    plan.execute(other_, other_pack_);
  }
  const auto start = std::chrono::steady_clock::now();
  DNNOPS_CHECK(cudaEventRecord(clock_->start, stream));
  plan.execute(launch_, pack_);
  DNNOPS_CHECK(cudaEventRecord(clock_->stop, stream));
  const double host = 1e3 * seconds_since(start);
  return {milliseconds_between(clock_->start, clock_->stop), host};
}

double PlanTimer::time(Plan &plan, double best) {
  const Workspace workspace(*launch_.handle->arena, plan.workspace);
  launch_.workspace = workspace.pointer();
  // The measured times may include all of the host's time.
  const Times loading = once(plan, 0, false);
  if (loading.device - loading.host > HOPELESS * best + STARTING_MS) return HUGE_VAL;
  const Times first = once(plan, 0, false);
  if (first.device - first.host > HOPELESS * best) return HUGE_VAL;
  if (first.device > LONG_MS) return first.device;
  const bool is_short = std::min(first.device, best) < SHORT_MS;  // the same for all plans compared with it
  std::vector<double> times;
  for (int round = 0; round < (is_short ? SHORT_ROUNDS : ROUNDS); ++round) {
    if (round == FIRST_ROUNDS && *std::min_element(times.begin(), times.end()) > CLOSE * best) break;
    times.push_back(once(plan, first.host, is_short).device);
  }
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

// cuDNN's most general kernels run everything, in the worst case a hundred times slower than others: one such
// run can use up all the time. Engines have the numbers of the legacy algorithms that they come from.
bool is_general(const PlanSpec &spec, int64_t direction) {
  if (spec.api != API_GRAPH && spec.api != API_LEGACY) return false;
  return spec.id == 0 || (direction == CONV_GRAD_WEIGHTS && spec.id == 3);
}

// A search for the fastest plan of one case within a time limit.
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
    // All of them are slow if one is.
    const size_t hopeless = hopeless_.size();
    for (std::shared_ptr<Plan> &plan : last) {
      if (out_of_time || hopeless_.size() > hopeless) break;
      out_of_time = time(std::move(plan));
    }
    set_improved();
    for (const PlanSpec &start : promising())
      if (seconds_since(start_) > seconds_ || descend(start)) break;
    sort();
    try {
      settle();
    } catch (const Error &) {
      // Earlier measurements remain valid.
    }
    timed_.insert(timed_.end(), hopeless_.begin(), hopeless_.end());
    return std::move(timed_);
  }

 private:
  void set_improved() {
    improved_ = seconds_since(start_);
    since_improved_ = 0;
  }

  // Returns whether the time is up.
  bool time(std::shared_ptr<Plan> plan) {
    try {
      const double milliseconds = timer_.time(*plan, best_);
      if (milliseconds < FASTER * best_) set_improved();
      best_ = std::min(best_, milliseconds);
      (milliseconds < HUGE_VAL ? timed_ : hopeless_).push_back({std::move(plan), milliseconds});
    } catch (const Error &error) {
      refusals_.push_back({plan->name, error.message, error.status, plan->spec, plan->notes});
    }
    const double now = seconds_since(start_);
    const bool in_vain = ++since_improved_ > PATIENT_PLANS && now - improved_ > PATIENCE * seconds_;
    return best_ < HUGE_VAL && (now > seconds_ || in_vain);
  }

  void sort() {
    std::stable_sort(timed_.begin(), timed_.end(),
                     [](const TimedPlan &a, const TimedPlan &b) { return a.milliseconds < b.milliseconds; });
  }

  // The fastest configuration of each of the fastest engines.
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

  // Changes one knob of an engine's configuration at a time, as long as that makes it faster.
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

  // Times the plans close to the fastest once more, in turns, so that changes in the device's speed affect
  // all of them.
  void settle() {
    size_t count = 0;
    while (count < timed_.size() && count < FINALISTS && timed_[count].milliseconds <= CLOSE * best_) ++count;
    if (count < 2 || best_ > LONG_MS) return;
    std::vector<std::vector<double>> rounds(count);
    const auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < FINAL_ROUNDS && seconds_since(start) < FINAL_SECONDS; ++round)
      for (size_t i = 0; i < count; ++i) rounds[i].push_back(timer_.time(*timed_[i].plan, best_));
    for (size_t i = 0; i < count; ++i) {
      std::sort(rounds[i].begin(), rounds[i].end());
      timed_[i].milliseconds = rounds[i][rounds[i].size() / 2];
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
  double improved_ = 0;  // when it was found, in seconds
  int since_improved_ = 0;
};

}  // namespace

std::vector<TimedPlan> search_plans(const ConvCase &conv, const Launch &launch, double seconds, Refusals &refusals) {
  std::vector<TimedPlan> timed = Search(conv, launch, seconds, refusals).run();
  launch.handle->arena->free_idle();  // the largest workspace may belong to a plan that was not selected
  return timed;
}

}  // namespace dnnops
