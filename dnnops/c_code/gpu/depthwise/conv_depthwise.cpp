// Plans of the depthwise kernels.
#include "conv_depthwise.hpp"

#include <algorithm>

#include "../conv/conv_call.hpp"
#include "../kernels/kernel_loader.hpp"

namespace dnnops {

namespace {

class DepthwisePlan : public Plan {
 public:
  DepthwisePlan(const ConvCase &conv, const Handle &handle, const PlanSpec &of)
      : direction_(conv.direction), work_(depthwise_work(conv, of)) {
    spec = of;
    name = plan_name(of, conv.direction);
    workspace = work_.workspace;
    takes_scalars = true;
    for (const DepthwiseLaunch &launch : work_.launches)
      kernels_.push_back(load_kernel(handle, "depthwise", launch.kernel, work_.options));
  }

  void execute(const Launch &launch, PointerPack &) override {
    DepthwiseParams params = work_.params;
    params.in = launch.pointers[direction_ == CONV_GRAD_INPUTS ? ROLE_TOP : ROLE_IMAGE];
    params.other = launch.pointers[direction_ == CONV_GRAD_WEIGHTS ? ROLE_TOP : ROLE_FILTERS];
    params.result = launch.pointers[result_role(direction_)];
    params.partial = launch.workspace;
    params.alpha = launch.alpha;
    params.beta = launch.beta;
    void *arguments[] = {&params};
    for (size_t i = 0; i < kernels_.size(); ++i) {
      const DepthwiseLaunch &work = work_.launches[i];
      launch_kernel(kernels_[i], work.grid, work.block, work.shared, launch.handle->stream, arguments);
    }
  }

 private:
  int64_t direction_;
  DepthwiseWork work_;
  std::vector<Kernel> kernels_;
};

}  // namespace

std::shared_ptr<Plan> make_depthwise_plan(const ConvCase &conv, const Handle &handle, const PlanSpec &spec) {
  return std::make_shared<DepthwisePlan>(conv, handle, spec);
}

}  // namespace dnnops

namespace {

// The description of a plan, for tests that run its kernels elsewhere.
struct DepthwiseRow {
  char name[128];
  char options[512];
  int64_t launch_count, workspace;
  char kernels[2][32];
  int64_t grid[2], block[2], shared[2];
  DepthwiseParams params;
};

}  // namespace

// Describes at most `capacity` plans of a call; needs no GPU. If the parameters of the call include a plan,
// only that one is described. The number of plans is stored in `count`.
DNNOPS_EXPORT int dnnops_cudnn_depthwise_rows(const int64_t *words, const dnnops_tensor *inputs, dnnops_tensor *outputs,
                                              DepthwiseRow *rows, int64_t capacity, int64_t *count) {
  using namespace dnnops;
  const auto &params = params_of<ConvParams>(words);
  return guarded(params.op(), inputs, params.input_count(), [&] {
    const Call call(params, inputs, outputs);
    ConvCase conv;
    describe_case(conv, checked_problem(params, inputs), call, 0);
    const std::vector<PlanSpec> specs =
        params.policy == POLICY_NAMED ? std::vector<PlanSpec>{params.plan} : depthwise_specs(conv);
    *count = 0;
    for (const PlanSpec &spec : specs) {
      if (*count == capacity) break;
      const DepthwiseWork work = depthwise_work(conv, spec);
      DepthwiseRow &row = rows[(*count)++];
      std::memset(static_cast<void *>(&row), 0, sizeof row);
      std::snprintf(row.name, sizeof row.name, "%s", plan_name(spec, conv.direction).c_str());
      std::snprintf(row.options, sizeof row.options, "%s", work.options.c_str());
      row.launch_count = static_cast<int64_t>(work.launches.size());
      row.workspace = work.workspace;
      row.params = work.params;
      for (size_t i = 0; i < work.launches.size(); ++i) {
        std::snprintf(row.kernels[i], sizeof row.kernels[i], "%s", work.launches[i].kernel);
        row.grid[i] = work.launches[i].grid;
        row.block[i] = work.launches[i].block;
        row.shared[i] = work.launches[i].shared;
      }
    }
  });
}
