// A list of all plans of one convolution, for Python to show, time and run one by one.
#include "conv_call.hpp"
#include "conv_choices.hpp"

namespace dnnops {

namespace {

using PlanRow = dnnops_plan_row;

struct Listed {
  std::shared_ptr<Plan> plan;  // null if rejected
  std::string name, reason;
  PlanSpec spec;
  int64_t notes = 0;
  double milliseconds = NAN;
};

class PlanList {
 public:
  PlanList(const dnnops_context &context, const ConvParams &params, const dnnops_tensor *inputs,
           dnnops_tensor *outputs)
      : params_(params), device_(context.device), stream_(context.stream) {
    const Call call(params_, inputs, outputs);
    const ConvProblem problem = checked_problem(params_, inputs);
    for (const int64_t *shape : {problem.image, problem.filters, problem.top})
      if (!element_count(shape, problem.ndim)) fail(DNNOPS_VALUE_ERROR, "there are no plans for empty arrays");
    const DeviceGuard guard(device_);
    launch_ = {&handle(), {}, call.alpha, call.beta, nullptr};
    call.read_pointers(launch_);
    describe_case(conv_, problem, call, handle().number);
    fix_scalars(conv_, call);
    Refusals refusals;
    PlanBuilder(conv_, handle(), refusals).all([&](std::shared_ptr<Plan> plan) {
      add(std::move(plan));
      return false;
    });
    for (const Refusal &refusal : refusals) {
      Listed listed;
      listed.name = refusal.name;
      listed.reason = refusal.reason;
      listed.spec = refusal.spec;
      listed.notes = refusal.notes;
      rows_.push_back(std::move(listed));
    }
  }

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }

  void read(int64_t index, PlanRow &row) const {
    const Listed &listed = rows_[index];
    const Plan *plan = listed.plan.get();
    row.name = listed.name.c_str();
    row.reason = listed.reason.c_str();
    row.api = listed.spec.api;
    row.number = listed.spec.id;
    row.workspace = plan ? plan->workspace : -1;
    row.deterministic = plan ? plan->deterministic : -1;
    row.math = plan && listed.spec.api == API_LEGACY ? plan->math : -1;
    row.notes = listed.notes;
    row.milliseconds = listed.milliseconds;
  }

  // Times a plan. If it fails, it is rejected from then on.
  void time(int64_t index) {
    const DeviceGuard guard(device_);
    Listed &listed = runnable(index);
    attempt(listed, [&](PlanTimer &timer) { listed.milliseconds = timer.time(*listed.plan); });
  }

  // Like time(), but only executes the plan repeatedly.
  void run(int64_t index, int64_t repeats) {
    const DeviceGuard guard(device_);
    Listed &listed = runnable(index);
    attempt(listed, [&](PlanTimer &timer) { timer.run(*listed.plan, repeats); });
  }

  // Searches as time_on_shape_change does. Plans that are found in addition to those listed are added.
  void search(double seconds) {
    const DeviceGuard guard(device_);
    launch_.handle = &handle();
    Refusals ignored;
    for (const TimedPlan &timed : search_plans(conv_, launch_, seconds, ignored)) {
      if (!std::isfinite(timed.milliseconds)) continue;
      bool known = false;
      for (Listed &listed : rows_)
        if (listed.plan && same_spec(listed.spec, timed.plan->spec)) {
          listed.milliseconds = timed.milliseconds;
          known = true;
        }
      if (known) continue;
      add(timed.plan);
      rows_.back().milliseconds = timed.milliseconds;
    }
  }

  const std::string &choose(int64_t policy, const PlanSpec &spec) {
    const DeviceGuard guard(device_);
    launch_.handle = &handle();
    const Listed *fastest = nullptr;
    if (is_timed(policy))
      for (const Listed &listed : rows_)
        if (listed.plan && listed.milliseconds >= 0 && (!fastest || listed.milliseconds < fastest->milliseconds))
          fastest = &listed;
    ConvCase conv = conv_;  // as describe_case() returns it for this policy
    conv.deterministic = params_.deterministic || policy == POLICY_DETERMINISTIC;
    conv.time_limit = is_timed(policy) ? params_.time_limit : 0;
    return chosen_ = fastest ? fastest->name : choose_plan({conv, params_, launch_}, policy, spec).plan->name;
  }

 private:
  // A list may be used by a different thread than the one that made it, but its plans need the handle that
  // they were made with.
  Handle &handle() {
    Handle &mine = handle_for(device_, stream_);
    if (conv_.handle && conv_.handle != mine.number)
      fail(DNNOPS_VALUE_ERROR, "a list of plans has to be used in the thread that made it");
    return mine;
  }

  void add(std::shared_ptr<Plan> plan) {
    Listed listed;
    listed.name = plan->name;
    listed.spec = plan->spec;
    listed.notes = plan->notes;
    listed.plan = std::move(plan);
    rows_.push_back(std::move(listed));
  }

  template <class Body>
  void attempt(Listed &listed, Body body) {
    launch_.handle = &handle();
    try {
      PlanTimer timer(conv_, launch_);
      body(timer);
    } catch (const Error &error) {
      listed.reason = error.message;
      listed.plan.reset();
      throw;
    }
  }

  Listed &runnable(int64_t index) {
    Listed &listed = rows_.at(index);
    if (!listed.plan) fail(DNNOPS_NOT_SUPPORTED, "%s cannot run: %s", listed.name.c_str(), listed.reason.c_str());
    return listed;
  }

  const ConvParams params_;
  const int64_t device_;
  void *const stream_;
  ConvCase conv_ = {};
  Launch launch_ = {};
  std::vector<Listed> rows_;
  std::string chosen_;
};

template <class Body>
int guarded_list(Body &&body) {
  return guarded("plans of a convolution", nullptr, 0, body);
}

}  // namespace

}  // namespace dnnops

struct dnnops_plan_list : dnnops::PlanList {
  using PlanList::PlanList;
};

DNNOPS_EXPORT int dnnops_cudnn_plan_list_open(const dnnops_context *context, const int64_t *words,
                                              const dnnops_tensor *inputs, dnnops_tensor *outputs,
                                              dnnops_plan_list **list) {
  return dnnops::call_op<dnnops::ConvParams>(context, words, inputs, outputs, [&](const auto &call) {
    *list = new dnnops_plan_list(call.context, call.params, call.inputs, call.outputs);
  });
}

DNNOPS_EXPORT void dnnops_cudnn_plan_list_close(dnnops_plan_list *list) { delete list; }

DNNOPS_EXPORT int64_t dnnops_cudnn_plan_list_size(const dnnops_plan_list *list) { return list->size(); }

DNNOPS_EXPORT void dnnops_cudnn_plan_list_row(const dnnops_plan_list *list, int64_t index, dnnops_plan_row *row) {
  list->read(index, *row);
}

DNNOPS_EXPORT int dnnops_cudnn_plan_list_time(dnnops_plan_list *list, int64_t index) {
  return dnnops::guarded_list([&] { list->time(index); });
}

DNNOPS_EXPORT int dnnops_cudnn_plan_list_run(dnnops_plan_list *list, int64_t index, int64_t repeats) {
  return dnnops::guarded_list([&] { list->run(index, repeats); });
}

DNNOPS_EXPORT int dnnops_cudnn_plan_list_search(dnnops_plan_list *list, double seconds) {
  return dnnops::guarded_list([&] { list->search(seconds); });
}

DNNOPS_EXPORT int dnnops_cudnn_plan_list_choose(dnnops_plan_list *list, int64_t policy, const dnnops_plan_spec *spec,
                                                const char **name) {
  return dnnops::guarded_list([&] { *name = list->choose(policy, *spec).c_str(); });
}
