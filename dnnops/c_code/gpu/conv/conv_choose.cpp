// Selects a plan for a caller's policy: candidates of all APIs are rejected with reasons or accepted.
#include <algorithm>
#include <mutex>

#include "conv_choices.hpp"

namespace dnnops {

namespace {

constexpr int END = -1;

// The legacy algorithms for each of Theano's words, in the order in which they are tried, by direction and
// policy. The words fft to winograd_non_fused name one algorithm; the others describe a property, and any
// algorithm with that property will do.
const int word_algorithms[3][8][4] = {
    {{0, 1, END}, {1, 0, END}, {2, 1, 0, END}, {4, END}, {5, END}, {6, END}, {7, END}, {1, 0, END}},
    {{0, 1, END}, {1, 0, END}, {3, 1, 0, END}, {2, END}, {3, END}, {4, END}, {5, END}, {1, END}},
    {{0, 1, 3, END}, {3, 0, 1, END}, {6, 1, 3, END}, {2, END}, {6, END}, {4, END}, {5, END}, {1, END}},
};

bool names_one_algorithm(int64_t policy) { return policy >= POLICY_FFT && policy <= POLICY_WINOGRAD_NON_FUSED; }

std::string list_refusals(const Refusals &refusals) {
  std::string text;
  const size_t shown = std::min<size_t>(refusals.size(), 8);
  for (size_t i = 0; i < shown; ++i) text += "\n  " + refusals[i].name + ": " + refusals[i].reason;
  if (shown < refusals.size()) text += "\n  and " + std::to_string(refusals.size() - shown) + " more";
  return text;
}

bool lacked_memory(const Refusals &refusals) {
  return std::any_of(refusals.begin(), refusals.end(),
                     [](const Refusal &refusal) { return refusal.status == DNNOPS_OUT_OF_MEMORY; });
}

// Out of memory, if there would be a plan with more memory.
int status_of(const Refusals &refusals) {
  return lacked_memory(refusals) ? DNNOPS_OUT_OF_MEMORY : DNNOPS_NOT_SUPPORTED;
}

std::shared_ptr<Plan> guess(PlanBuilder &builder) {
  std::shared_ptr<Plan> found;
  builder.trusted([&](std::shared_ptr<Plan> plan) {
    found = std::move(plan);
    return true;
  });
  return found;
}

// Describes the plans that can run a case, fastest first if that can be determined now.
std::string list_able(const Choosing &choosing) {
  constexpr size_t MAX_SHOWN = 12;
  Refusals ignored;
  std::vector<TimedPlan> able;
  const Handle &handle = *choosing.launch.handle;
  if (is_capturing(handle.stream))
    PlanBuilder(choosing.conv, handle, ignored).all([&](std::shared_ptr<Plan> plan) {
      able.push_back({std::move(plan), NAN});
      return false;
    });
  else
    able = search_plans(choosing.conv, choosing.launch, choosing.params.time_limit * 1e-6, ignored);
  std::string text;
  for (size_t i = 0; i < able.size() && i < MAX_SHOWN; ++i) {
    char time[32] = "";
    if (std::isfinite(able[i].milliseconds)) std::snprintf(time, sizeof time, " (%.4g ms)", able[i].milliseconds);
    text += (i ? ", " : "") + able[i].plan->name + time;
  }
  if (able.size() > MAX_SHOWN) text += ", and " + std::to_string(able.size() - MAX_SHOWN) + " more";
  return able.empty() ? "none" : text;
}

[[noreturn]] void fail_refused(const Choosing &choosing, const Refusals &refusals, const std::string &wanted) {
  std::string words = wanted + " cannot run this convolution:" + list_refusals(refusals);
  if (choosing.explain) words += "\nThese can, fastest first: " + list_able(choosing);
  throw Error(status_of(refusals), words);
}

// The fastest plan according to earlier timings, here or in another process. None if nothing was timed, or if
// no such plan can be built any more.
Choice fastest_of(const std::shared_ptr<StoredChoice> &stored, PlanBuilder &builder) {
  if (stored)
    for (const StoredPlan &candidate : stored->plans)
      if (auto plan = builder.from_spec(candidate.spec))
        return {plan, candidate.milliseconds, stored->from_disk ? "cache" : "timed"};
  return {};
}

Choice timed_choice(const Choosing &choosing, PlanBuilder &builder, Refusals &refusals) {
  const Handle &handle = *choosing.launch.handle;
  const auto stored = find_choice(choosing.conv, handle);
  Choice choice = fastest_of(stored, builder);
  if (choice.plan) return choice;
  if (is_capturing(handle.stream)) return {};  // no kernel is loaded now: plans may be built later
  // Plans that only lacked memory may be built later, or by another process.
  if (stored && !lacked_memory(refusals)) drop_choice(choosing.conv, handle);
  // Threads that time at once would disturb each other. No thread waits here while holding the GIL.
  static std::mutex timing;
  std::lock_guard<std::mutex> lock(timing);
  choice = fastest_of(find_new_choice(choosing.conv, handle), builder);
  if (choice.plan) return choice;
  std::vector<TimedPlan> timed;
  try {
    timed = search_plans(choosing.conv, choosing.launch, choosing.params.time_limit * 1e-6, refusals);
  } catch (const Error &error) {
    // Without memory for a separate result, nothing can be timed; the convolution itself needs less.
    if (error.status != DNNOPS_OUT_OF_MEMORY) throw;
    choice.lasts = false;
    return choice;
  }
  if (timed.empty()) return {};
  // Another process may have the memory that some plans lacked.
  store_choice(choosing.conv, handle, timed, !lacked_memory(refusals));
  return {timed.front().plan, timed.front().milliseconds, "timed"};
}

}  // namespace

bool is_timed(int64_t policy) { return policy == POLICY_TIME_ONCE || policy == POLICY_TIME_ON_SHAPE_CHANGE; }

Choice choose_plan(const Choosing &choosing, int64_t policy, const PlanSpec &spec) {
  const ConvCase &conv = choosing.conv;
  Refusals refusals;
  PlanBuilder builder(conv, *choosing.launch.handle, refusals);
  if (policy == POLICY_NAMED) {
    auto plan = builder.from_spec(spec);
    if (!plan) fail_refused(choosing, refusals, "The plan " + plan_name(spec, conv.direction));
    return {plan, NAN, "given"};
  }
  std::shared_ptr<Plan> plan;
  bool lasts = true;
  if (policy < POLICY_GUESS_ONCE) {
    for (const int *id = word_algorithms[conv.direction][policy]; !plan && *id != END; ++id)
      plan = builder.from_spec(legacy_spec(*id));
    if (!plan && names_one_algorithm(policy))
      fail_refused(choosing, refusals, "The algorithm " + refusals.front().name);
    if (plan) return {plan, NAN, "given"};
  }
  if (is_timed(policy)) {
    Choice choice = timed_choice(choosing, builder, refusals);
    if (choice.plan) return choice;
    lasts = choice.lasts;
  }
  plan = guess(builder);
  if (!plan)
    throw Error(status_of(refusals), "cuDNN " + std::to_string(cudnnGetVersion()) +
                                         " has no way to run this convolution:" + list_refusals(refusals));
  return {plan, NAN, "guessed", lasts};
}

}  // namespace dnnops
