// From what a caller wishes to a plan: candidates of both APIs, refused with reasons or taken.
#include <algorithm>

#include "conv_plan.hpp"

namespace dnnops {

std::string plan_name(const PlanSpec &spec, int64_t direction) {
  if (spec.api == API_LEGACY) {
    const char *name = legacy_algorithm_name(direction, spec.id);
    return name ? name : "algorithm " + std::to_string(spec.id);
  }
  std::string name = "engine" + std::to_string(spec.id);
  for (int64_t i = 0; i < spec.knob_count; ++i)
    name += "_k" + std::to_string(spec.knobs[2 * i]) + "=" + std::to_string(spec.knobs[2 * i + 1]);
  return name;
}

namespace {

constexpr int END = -1;

// The legacy algorithms that each of Theano's words stands for, in the order in which they are
// tried, by direction and wish.  The words fft to winograd_non_fused name one algorithm; the
// others say what matters, and any algorithm of that kind will do.
const int word_algorithms[3][8][4] = {
    {{0, 1, END}, {1, 0, END}, {2, 1, 0, END}, {4, END}, {5, END}, {6, END}, {7, END}, {1, 0, END}},
    {{0, 1, END}, {1, 0, END}, {3, 1, 0, END}, {2, END}, {3, END}, {4, END}, {5, END}, {1, END}},
    {{0, 1, 3, END}, {3, 0, 1, END}, {6, 1, 3, END}, {2, END}, {6, END}, {4, END}, {5, END}, {1, END}},
};

bool names_one_algorithm(int64_t wish) { return wish >= WISH_FFT && wish <= WISH_WINOGRAD_NON_FUSED; }

std::string list_refusals(const Refusals &refusals) {
  std::string text;
  const size_t shown = std::min<size_t>(refusals.size(), 8);
  for (size_t i = 0; i < shown; ++i) text += "\n  " + refusals[i].name + ": " + refusals[i].reason;
  if (shown < refusals.size()) text += "\n  and " + std::to_string(refusals.size() - shown) + " more";
  return text;
}

// Out of memory if that was the reason of any refusal: with more, there would be a plan.
int status_of(const Refusals &refusals) {
  const bool memory = std::any_of(refusals.begin(), refusals.end(),
                                  [](const Refusal &refusal) { return refusal.status == DNNOPS_OUT_OF_MEMORY; });
  return memory ? DNNOPS_OUT_OF_MEMORY : DNNOPS_NOT_SUPPORTED;
}

PlanSpec legacy_spec(int64_t id) {
  PlanSpec spec;
  std::memset(&spec, 0, sizeof spec);
  spec.api = API_LEGACY;
  spec.id = id;
  return spec;
}

// Builds plans of one case and keeps the reasons of those that can't be.
class Builder {
 public:
  Builder(const ConvCase &conv, const Handle &handle, Refusals &refusals)
      : conv_(conv), handle_(handle), refusals_(refusals) {}

  // The plan, or null if it was refused.
  std::shared_ptr<Plan> from_spec(const PlanSpec &spec) {
    return attempt(plan_name(spec, conv_.direction), [&]() -> std::shared_ptr<Plan> {
      if (spec.api == API_LEGACY) return checked(make_legacy_plan(conv_, handle_, spec.id));
      if (!graph()) return nullptr;
      return from_candidate(graph()->from_spec(spec));
    });
  }
  std::shared_ptr<Plan> legacy(int64_t id) { return from_spec(legacy_spec(id)); }

  // Visits the candidates of a heuristics mode; stops where `visit` returns true.
  template <class Visit>
  void heuristics(cudnnBackendHeurMode_t mode, Visit visit) {
    if (!graph()) return;
    std::vector<ConvGraph::Candidate> candidates;
    attempt("graph API", [&]() -> std::shared_ptr<Plan> {
      candidates = graph()->heuristics(mode);
      return nullptr;
    });
    for (const auto &candidate : candidates) {
      // An engine without a full spec can't be told from another: it is refused each time.
      const bool seen = !candidate.too_many_knobs && std::any_of(seen_.begin(), seen_.end(), [&](const PlanSpec &other) {
        return !std::memcmp(&other, &candidate.spec, sizeof(PlanSpec));
      });
      if (seen) continue;
      seen_.push_back(candidate.spec);
      auto plan = attempt(plan_name(candidate.spec, conv_.direction), [&] { return from_candidate(candidate); });
      if (plan && visit(plan)) return;
    }
  }

 private:
  template <class Make>
  std::shared_ptr<Plan> attempt(const std::string &name, Make make) {
    try {
      return make();
    } catch (const Error &error) {
      refusals_.push_back({name, error.message, error.status});
      return nullptr;
    }
  }

  std::shared_ptr<Plan> from_candidate(const ConvGraph::Candidate &candidate) {
    if (candidate.too_many_knobs) fail(DNNOPS_NOT_SUPPORTED, "it has more than %d knobs", MAX_KNOBS);
    if (const char *reason = forbidden(conv_, candidate.notes)) fail(DNNOPS_NOT_SUPPORTED, "%s", reason);
    return checked(graph()->make_plan(candidate));
  }

  // Throws unless the workspace is within the limit, or without one can be allocated.
  std::shared_ptr<Plan> checked(std::shared_ptr<Plan> plan) {
    if (conv_.workspace_limit >= 0 && plan->workspace > conv_.workspace_limit)
      fail(DNNOPS_NOT_SUPPORTED, "its workspace of %lld bytes is over the limit of %lld", (long long)plan->workspace,
           (long long)conv_.workspace_limit);
    Workspace(*handle_.arena, plan->workspace);
    return plan;
  }

  ConvGraph *graph() {
    if (!graph_made_) {
      graph_made_ = true;
      if (!conv_.fixed_scalars)
        refusals_.push_back({"graph API", "not offered, as alpha or beta differ from call to call", DNNOPS_NOT_SUPPORTED});
      else
        attempt("graph API", [&]() -> std::shared_ptr<Plan> {
          graph_.reset(new ConvGraph(conv_, handle_));
          return nullptr;
        });
    }
    return graph_.get();
  }

  const ConvCase &conv_;
  const Handle &handle_;
  Refusals &refusals_;
  bool graph_made_ = false;
  std::unique_ptr<ConvGraph> graph_;
  std::vector<PlanSpec> seen_;
};

std::shared_ptr<Plan> guess(Builder &builder, int64_t direction) {
  std::shared_ptr<Plan> found;
  const auto take = [&](std::shared_ptr<Plan> plan) {
    found = std::move(plan);
    return true;
  };
  builder.heuristics(CUDNN_HEUR_MODE_A, take);
  if (!found) builder.heuristics(CUDNN_HEUR_MODE_FALLBACK, take);
  for (int id = 0; !found && id < legacy_algorithm_count(direction); ++id) found = builder.legacy(id);
  return found;
}

[[noreturn]] void fail_refused(const Choosing &choosing, const Refusals &refusals, const std::string &wanted) {
  Refusals others;
  std::string able;
  for (const auto &plan : all_plans(choosing.conv, *choosing.launch.handle, others))
    able += (able.empty() ? "" : ", ") + plan->name;
  fail(status_of(refusals), "%s cannot run this convolution:%s\nThese can: %s", wanted.c_str(),
       list_refusals(refusals).c_str(), able.empty() ? "none" : able.c_str());
}

bool is_capturing(void *stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  DNNOPS_CHECK(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

std::vector<std::shared_ptr<Plan>> all_plans(const ConvCase &conv, const Handle &handle, Refusals &refusals) {
  Builder builder(conv, handle, refusals);
  std::vector<std::shared_ptr<Plan>> plans;
  const auto collect = [&](std::shared_ptr<Plan> plan) {
    plans.push_back(std::move(plan));
    return false;
  };
  for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK})
    builder.heuristics(mode, collect);
  for (int id = 0; id < legacy_algorithm_count(conv.direction); ++id)
    if (auto plan = builder.legacy(id)) plans.push_back(std::move(plan));
  return plans;
}

std::shared_ptr<Plan> choose_plan(const Choosing &choosing, int64_t wish, const PlanSpec &spec) {
  const ConvCase &conv = choosing.conv;
  Refusals refusals;
  Builder builder(conv, *choosing.launch.handle, refusals);
  std::shared_ptr<Plan> plan;
  if (wish == WISH_PLAN) {
    plan = builder.from_spec(spec);
    if (!plan) fail_refused(choosing, refusals, "The plan " + plan_name(spec, conv.direction));
    return plan;
  }
  if (wish < WISH_GUESS_ONCE) {
    for (const int *id = word_algorithms[conv.direction][wish]; !plan && *id != END; ++id) plan = builder.legacy(*id);
    if (!plan && names_one_algorithm(wish)) fail_refused(choosing, refusals, "The algorithm " + refusals.front().name);
  }
  if ((wish == WISH_TIME_ONCE || wish == WISH_TIME_ON_SHAPE_CHANGE) && !is_capturing(choosing.launch.handle->stream)) {
    const auto plans = all_plans(conv, *choosing.launch.handle, refusals);
    if (!plans.empty()) plan = fastest_plan(choosing, plans, refusals);
  }
  if (!plan) plan = guess(builder, conv.direction);
  if (!plan)
    fail(status_of(refusals), "cuDNN %zu has no way to run this convolution:%s", cudnnGetVersion(),
         list_refusals(refusals).c_str());
  return plan;
}

}  // namespace dnnops
