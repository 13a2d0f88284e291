// The engines that cuDNN proposes for a described device, for tests without a GPU.
#include "conv_call.hpp"

// Lists the names of the plans that cuDNN's heuristics propose for a call on a device in cuDNN's JSON form, most
// promising first, and builds the first one. In `workspace`, its workspace is stored.
DNNOPS_EXPORT int dnnops_cudnn_conv_proposals(const char *device, const int64_t *words, const dnnops_tensor *inputs,
                                              dnnops_tensor *outputs, char *text, int64_t capacity,
                                              int64_t *workspace) {
  using namespace dnnops;
  const auto &params = params_of<ConvParams>(words);
  return guarded(params.op(), inputs, params.input_count(), [&] {
    const Call call(params, inputs, outputs);
    ConvCase conv;
    describe_case(conv, checked_problem(params, inputs), call, 0);
    fix_scalars(conv, call);
    const BackendDescriptor described = describe_device(device);
    const ConvGraph graph(conv, {nullptr, &described});
    const auto candidates = graph.heuristics(CUDNN_HEUR_MODE_A);
    std::string names;
    for (const auto &candidate : candidates) {
      if (forbidden(conv, candidate.spec, candidate.notes)) continue;
      if (names.empty()) *workspace = graph.make_plan(candidate)->workspace;
      names += plan_name(candidate.spec, conv.direction) + " ";
    }
    std::snprintf(text, capacity, "%s", names.c_str());
  });
}
