// Convolution and its two gradients, with oneDNN or dnnops' own ways (float32) and BLAS (float64).
#include <cstring>

#include "../../common/chosen.hpp"
#include "conv_blas.hpp"
#include "conv_entry.hpp"
#include "conv_parts.hpp"
#include "conv_ways.hpp"
#include "../base/caches.hpp"
#include "../base/node_state.hpp"

namespace dnnops {
namespace {

LruCache<ConvKey, ConvEntry, WordHash<ConvKey>> &cache() {
  // Never destroyed, because threads may still compute while the process exits.
  static auto *plans = new LruCache<ConvKey, ConvEntry, WordHash<ConvKey>>(512);
  return *plans;
}

void fill_zeros(const dnnops_tensor &output, const int64_t *shape, int64_t ndim) {
  std::memset(output.data, 0, element_count(shape, ndim) * item_size(output.dtype));
}

// The state of a node: its plan, and the selection that it last reported.
struct ConvState : NodeState<ConvKey, ConvEntry> {
  bool has_told = false;
  ConvKey told_of;
  ChosenRow row;
};

struct Told {
  std::string name;
  int64_t scratch_bytes;
};

// Reports the plan of a call, once for the same operands; told() returns a Told.
template <class Use>
void tell(ConvState *state, const ConvParams &params, const ConvKey &key, const dnnops_tensor *inputs,
          const dnnops_tensor &output, Use &&told) {
  if (!params.verbose && !(params.node && state)) return;
  if (state && state->has_told && state->told_of == key) return;
  const int64_t direction = params.direction;
  const Roles roles = roles_of(direction);
  const dnnops_tensor *tensors[3];
  tensors[roles.first] = &inputs[0];
  tensors[roles.second] = &inputs[1];
  tensors[roles.result] = &output;
  const Told use = told();
  Chosen chosen = make_chosen(direction, *tensors[IMAGE], *tensors[FILTERS], *tensors[TOP], use.name,
                              params.algorithm == ALGORITHM_NAMED ? "given" : "guessed");
  chosen.workspace = use.scratch_bytes;
  if (!state) return print_chosen_once(params.op(), chosen);
  if (params.verbose) print_chosen(params.op(), chosen);
  state->row.remember(params.node, chosen);
  state->told_of = key;
  state->has_told = true;
}

void shape(const OpCall<ConvParams> &call) {
  const ConvProblem problem = problem_of(call.params, call.inputs);
  set_output(call.outputs[0], call.inputs[0].dtype, conv_result_shape(problem), problem.ndim);
}

void run(const OpCall<ConvParams> &call) {
  const ConvParams &params = call.params;
  const dnnops_tensor *inputs = call.inputs;
  const dnnops_tensor &output = call.outputs[0];
  const ConvProblem problem = problem_of(params, inputs);
  const int64_t *result = conv_result_shape(problem);
  if (element_count(result, problem.ndim) == 0) return;
  if (element_count(inputs[0].shape, problem.ndim) == 0 || element_count(inputs[1].shape, problem.ndim) == 0) {
    fill_zeros(output, result, problem.ndim);  // an empty sum
    return;
  }
  const ConvWay way = conv_way(params, problem, inputs[0].dtype);
  const bool by_name = way == ConvWay::ONEDNN && params.algorithm == ALGORITHM_NAMED;
  const ConvKey key = conv_key(problem, inputs, output, by_name ? params.name : nullptr);
  const StateLease<ConvState> lease(call.context.state);
  ConvState *const state = lease.get();
  if (way == ConvWay::BLAS) {
    conv_blas(problem, inputs, output);
    tell(state, params, key, inputs, output, [&] { return Told{BLAS_NAME, blas_scratch_bytes(problem, inputs)}; });
    return;
  }
  if (way != ConvWay::ONEDNN) {
    const OwnWay &own = own_way(way);
    own.compute(problem, inputs, output);
    tell(state, params, key, inputs, output,
         [&] { return Told{own.name, own.scratch_bytes(problem, inputs, output)}; });
    return;
  }
  ConvParts(problem, inputs, output).run([&](const ConvPart &part) {
    const ConvKey of_part = conv_key(part.problem, part.inputs, part.output, by_name ? params.name : nullptr);
    const auto make = [&] { return make_wanted_entry(of_part); };
    with_entry(state, cache(), of_part, make, [&](ConvEntry &entry, PlanRun &plan_run) {
      run_conv_entry(entry, plan_run, part.problem, part.inputs, part.output);
      tell(state, params, key, inputs, output, [&] { return Told{entry.name, (int64_t)entry.plan.scratch_bytes()}; });
    });
  });
}

}  // namespace

DNNOPS_OP(onednn_conv, ConvParams, shape, run)
DNNOPS_EXPORT_CACHE(conv, cache())

}  // namespace dnnops
