// The convolution Ops: one function for forward and both gradients.
#include <cmath>

#include "../../common/chosen.hpp"
#include "../../common/lru_cache.hpp"
#include "conv_call.hpp"
#include "conv_choices.hpp"
#include "conv_epilogue.hpp"
#include "../base/node_state.hpp"

namespace dnnops {

namespace {

constexpr int MAX_SCALAR_CHANGES = 4;

// Everything that must be equal for a prepared plan to be reused.
struct CallKey {
  int64_t handle;
  OperandKey operands[7];
  int64_t sizes[3];
};

void read_key(CallKey &key, const Call &call, const Handle &handle) {
  key.handle = handle.number;
  read_key(key.operands[0], call.inputs[0]);
  read_key(key.operands[1], call.inputs[1]);
  read_key(key.operands[2], call.output);
  if (call.out)
    read_key(key.operands[3], *call.out);
  else
    std::memset(&key.operands[3], 0, sizeof key.operands[3]);
  for (int i = 0; i < 3; ++i)
    if (call.epilogue[i])
      read_key(key.operands[4 + i], *call.epilogue[i]);
    else
      std::memset(&key.operands[4 + i], 0, sizeof key.operands[4 + i]);
  const bool has_sizes = call.params.direction != CONV_FORWARD;
  for (int i = 0; i < 3; ++i)
    key.sizes[i] = has_sizes && i < call.params.geometry.spatial_ndim
                       ? static_cast<const int64_t *>(call.inputs[2].data)[i]
                       : 0;
}

enum class Todo { RUN, SCALE_OUT, NOTHING };

// The state that a node keeps between executions.
struct ConvState : State {
  bool ready = false;
  CallKey key;
  Todo todo = Todo::NOTHING;
  ConvCase conv;
  Choice choice;
  std::unique_ptr<EpilogueKernel> epilogue;  // for an empty sum
  PointerPack pack;
  int scalar_changes = 0;
  bool has_chosen = false;
  PlanSpec chosen;  // for policies that select only once
  const char *chosen_by = "";  // a Choice's source
  bool is_provisional = false;  // selected when nothing could be timed: the next call selects again
  bool is_kept = false;  // whether it belongs to the node, not only to this call
  ChosenRow row;

  bool fits(const CallKey &now, const Call &call) const {
    return ready && !std::memcmp(&key, &now, sizeof key) &&
           (todo != Todo::RUN || choice.plan->takes_scalars || (conv.alpha == call.alpha && conv.beta == call.beta));
  }
};

// Only 8-byte fields and no padding.
struct PlanKey {
  ConvCase conv;
  int64_t policy;
  PlanSpec spec;
  bool operator==(const PlanKey &other) const { return !std::memcmp(this, &other, sizeof *this); }
};

LruCache<PlanKey, Choice, WordHash<PlanKey>> &plans() {
  static auto *cache = new LruCache<PlanKey, Choice, WordHash<PlanKey>>(1024);
  return *cache;
}

// `out` and the output must be dense in the same format, so that one can be copied to the other. The Op copies an `out`
// that it does not overwrite to the format of its output.
void require_same_format(const Call &call) {
  const Tensor out = read_tensor(*call.out), output = read_tensor(call.output);
  if (call.out->dtype != call.output.dtype || std::memcmp(out.shape, output.shape, sizeof out.shape))
    fail(DNNOPS_VALUE_ERROR, "out is %s, but the result is %s", describe(*call.out).c_str(),
         describe(call.output).c_str());
  if (!(dense_formats(out) & dense_formats(output)))
    fail(DNNOPS_NOT_SUPPORTED, "out has to be dense, contiguous or channels last, got %s", describe(*call.out).c_str());
}

Choice find_plan(ConvState &state, const Call &call, const Launch &launch) {
  const ConvParams &params = call.params;
  Choosing choosing{state.conv, params, launch};
  state.is_provisional = false;
  PlanKey key;
  std::memset(&key, 0, sizeof key);
  key.conv = state.conv;
  key.policy = params.policy;
  const auto chosen = [&] {
    return *plans().get(key, [&] { return std::make_shared<Choice>(choose_plan(choosing, key.policy, key.spec)); });
  };
  const bool once = params.policy == POLICY_GUESS_ONCE || params.policy == POLICY_TIME_ONCE;
  if (params.policy == POLICY_NAMED) key.spec = params.plan;
  if (once && state.has_chosen) {
    key.policy = POLICY_NAMED;
    key.spec = state.chosen;
    choosing.explain = false;
    try {
      Choice choice = chosen();
      choice.source = state.chosen_by;
      return choice;
    } catch (const Error &) {
      // The plan selected for the first shape cannot run this one: select again.
      std::memset(&key.spec, 0, sizeof key.spec);
    }
    choosing.explain = true;
  }
  if (params.policy == POLICY_GUESS_ONCE) key.policy = POLICY_GUESS_ON_SHAPE_CHANGE;
  if (params.policy == POLICY_TIME_ONCE) key.policy = POLICY_TIME_ON_SHAPE_CHANGE;
  // During the capture of a CUDA graph, plans cannot be timed and kernels cannot be compiled, so the
  // selection is not kept.
  state.is_provisional = params.policy != POLICY_NAMED && is_capturing(launch.handle->stream);
  if (state.is_provisional) return choose_plan(choosing, key.policy, key.spec);
  Choice choice = chosen();
  if (!choice.lasts) {
    plans().remove(key);
    state.is_provisional = true;
    return choice;
  }
  state.has_chosen = true;
  state.chosen = choice.plan->spec;
  state.chosen_by = choice.source;
  return choice;
}

thread_local std::string last_plan;

void set_plan(ConvState &state, const Call &call, const Launch &launch) {
  const ConvParams &params = call.params;
  state.choice = find_plan(state, call, launch);
  const Plan &plan = *state.choice.plan;
  last_plan = plan.name;
  if (!params.verbose && !(state.is_kept && params.node)) return;
  Chosen chosen = make_chosen(params.direction, call.of_role(ROLE_IMAGE), call.of_role(ROLE_FILTERS),
                              call.of_role(ROLE_TOP), plan.name, state.choice.source);
  chosen.workspace = plan.workspace;
  chosen.time_ms = state.choice.milliseconds;
  if (state.is_kept) state.row.remember(params.node, chosen);
  if (!params.verbose) return;
  if (state.is_kept)
    print_chosen(params.op(), chosen);
  else
    print_chosen_once(params.op(), chosen);
}

void prepare(ConvState &state, const CallKey &key, const Call &call, const Launch &launch) {
  state.scalar_changes += state.ready && state.todo == Todo::RUN && !std::memcmp(&state.key, &key, sizeof key);
  state.ready = false;
  const ConvParams &params = call.params;
  const ConvProblem problem = checked_problem(params, call.inputs);
  compute_dtype(params.precision, call.inputs[0].dtype);
  cudnn_dtype(call.inputs[0].dtype);
  const int64_t *shape = conv_result_shape(problem);
  if (call.output.ndim != problem.ndim || std::memcmp(call.output.shape, shape, problem.ndim * sizeof(int64_t)))
    fail(DNNOPS_VALUE_ERROR, "the output has to have the shape %s, got %s", list_of(shape, problem.ndim).c_str(),
         describe(call.output).c_str());
  if (call.out) require_same_format(call);
  const int64_t ndim = problem.ndim;
  if (!element_count(shape, ndim)) {
    state.todo = Todo::NOTHING;
  } else if (!element_count(problem.image, ndim) || !element_count(problem.filters, ndim) ||
             !element_count(problem.top, ndim)) {
    state.todo = Todo::SCALE_OUT;
    describe_case(state.conv, problem, call, launch.handle->number);
    if (has_epilogue(state.conv)) state.epilogue.reset(new EpilogueKernel(state.conv, *launch.handle));
  } else {
    state.todo = Todo::RUN;
    describe_case(state.conv, problem, call, launch.handle->number);
    if (state.scalar_changes <= MAX_SCALAR_CHANGES) fix_scalars(state.conv, call);
    set_plan(state, call, launch);
  }
  state.key = key;
  state.ready = !state.is_provisional;
}

// A dense array as rows, one for each entry of its first axis, optionally with gaps in between.
struct Rows {
  int64_t count, bytes;
  explicit Rows(const dnnops_tensor &array)
      : count(array.shape[0]), bytes(element_count(array.shape + 1, array.ndim - 1) * item_size(array.dtype)) {}
  int64_t pitch(const dnnops_tensor &array) const { return count == 1 ? bytes : array.strides[0]; }
};

// For an empty sum, the result is zero, or beta times out.
void scale_out(const Call &call, const Handle &handle) {
  const Tensor output = read_tensor(call.output);
  if (call.beta == 1) return;
  if (call.beta == 0) {
    const Rows rows(call.output);
    DNNOPS_CHECK(cudaMemset2DAsync(call.output.data, rows.pitch(call.output), 0, rows.bytes, rows.count,
                                   static_cast<cudaStream_t>(handle.stream)));
    return;
  }
  const TensorDescriptor descriptor = tensor_descriptor(output, call.output.dtype);
  const Scalar beta(call.beta, call.output.dtype);
  DNNOPS_LEGACY(cudnnScaleTensor, handle.cudnn, descriptor, call.output.data, beta.pointer());
}

// The Op does not work in place: what it adds to is first copied into the output.
void copy_out(const Call &call, const Handle &handle) {
  if (!call.out || call.beta == 0 || call.out->data == call.output.data) return;
  const Rows rows(*call.out);
  if (!rows.count || !rows.bytes) return;
  DNNOPS_CHECK(cudaMemcpy2DAsync(call.output.data, rows.pitch(call.output), call.out->data, rows.pitch(*call.out),
                                 rows.bytes, rows.count, cudaMemcpyDeviceToDevice,
                                 static_cast<cudaStream_t>(handle.stream)));
}

// Tries plans of ever smaller workspace until one can be allocated.
void execute_within_memory(ConvState &state, const Call &call, Launch launch) {
  for (;;) {
    try {
      Workspace workspace(*launch.handle->arena, state.choice.plan->workspace);
      launch.workspace = workspace.pointer();
      return state.choice.plan->execute(launch, state.pack);
    } catch (const Error &error) {
      const bool is_final = state.choice.plan->workspace == 0 || call.params.policy == POLICY_NAMED;
      if (error.status != DNNOPS_OUT_OF_MEMORY || is_final) throw;
    }
    state.ready = false;  // unless a plan with a smaller workspace is found
    plans().clear();
    state.conv.workspace_limit = state.choice.plan->workspace < (1 << 20) ? 0 : state.choice.plan->workspace / 2;
    try {
      set_plan(state, call, launch);
    } catch (const Error &error) {
      fail(DNNOPS_OUT_OF_MEMORY,
           "no device memory for the workspace of %lld bytes of plan %s, and no plan needs less: %s",
           (long long)state.choice.plan->workspace, state.choice.plan->name.c_str(), error.what());
    }
    state.ready = !state.is_provisional;
  }
}

// Inputs: those of conv_problem(), then alpha and, if has_out, beta and out.
void shape(const OpCall<ConvParams> &given) {
  const ConvParams &params = given.params;
  const dnnops_tensor *inputs = given.inputs;
  const ConvProblem problem = checked_problem(params, inputs);
  cudnn_dtype(inputs[0].dtype);
  int64_t format = params.channels_last ? FORMAT_CHANNELS_LAST : FORMAT_CONTIGUOUS;
  if (params.has_out) {
    // The result has the format of `out`, unless that array is dense in both.
    const int64_t formats = dense_formats(read_tensor(inputs[params.input_count() + 2]));
    if (formats == FORMAT_CHANNELS_LAST || formats == FORMAT_CONTIGUOUS) format = formats;
  }
  describe_output(given.outputs[0], inputs[0].dtype, conv_result_shape(problem), problem.ndim, format);
}

void run(const OpCall<ConvParams> &given) {
  const Call call(given.params, given.inputs, given.outputs);
  const dnnops_context &context = given.context;
  const DeviceGuard device(context.device);
  Handle &handle = handle_for(context.device, context.stream);
  HeldState<ConvState> held(context);
  ConvState &state = *held;
  state.is_kept = held.is_kept();
  Launch launch{&handle, {}, call.alpha, call.beta, nullptr};
  call.read_pointers(launch);
  CallKey key;
  read_key(key, call, handle);
  if (!state.fits(key, call)) prepare(state, key, call, launch);
  if (state.todo == Todo::NOTHING) return;
  copy_out(call, handle);
  if (state.todo == Todo::SCALE_OUT) {
    scale_out(call, handle);
    if (has_epilogue(state.conv)) state.epilogue->run(launch);
    return;
  }
  execute_within_memory(state, call, launch);
}

// Makes the legacy descriptors of a call and checks that cuDNN computes the same output shape. Needs no GPU
// and reads no array contents. (The graph API loads libcuda for its descriptors.)
void make_descriptors(const OpCall<ConvParams> &given) {
  const Call call(given.params, given.inputs, given.outputs);
  const ConvProblem problem = checked_problem(given.params, given.inputs);
  ConvCase conv;
  describe_case(conv, problem, call, 0);
  int64_t shape[MAX_RANK];
  legacy_output_shape(conv, shape);
  const Tensor &top = conv.tensors[ROLE_TOP];
  if (std::memcmp(shape, top.shape, top.ndim * sizeof(int64_t)))
    fail(DNNOPS_LIBRARY_ERROR, "cuDNN computes the output shape %s, expected %s", list_of(shape, top.ndim).c_str(),
         list_of(top.shape, top.ndim).c_str());
}

}  // namespace

DNNOPS_OP(cudnn_conv, ConvParams, shape, run)
DNNOPS_FUNCTION(cudnn_conv_describe, ConvParams, make_descriptors)

}  // namespace dnnops

// The name of the plan that this thread selected last.
DNNOPS_EXPORT const char *dnnops_cudnn_last_plan(void) { return dnnops::last_plan.c_str(); }

DNNOPS_EXPORT const char *dnnops_cudnn_conv_algorithm(int64_t direction, int64_t id) {
  return dnnops::legacy_algorithm_name(direction, id);
}

DNNOPS_EXPORT void dnnops_cudnn_plan_cache(int64_t *statistics) {
  const dnnops::CacheStatistics now = dnnops::plans().statistics();
  std::memcpy(statistics, &now, sizeof now);
}

// The table of selections made by timing.
DNNOPS_EXPORT void dnnops_cudnn_choice_cache(int64_t *statistics) {
  const dnnops::CacheStatistics now = dnnops::choice_statistics();
  std::memcpy(statistics, &now, sizeof now);
}

DNNOPS_EXPORT void dnnops_cudnn_clear_plan_cache(void) {
  dnnops::plans().clear();
  dnnops::clear_choices();
}

DNNOPS_EXPORT void dnnops_cudnn_resize_plan_cache(int64_t capacity) {
  dnnops::plans().set_capacity(capacity > 0 ? static_cast<size_t>(capacity) : 1);
}

DNNOPS_EXPORT void dnnops_cudnn_resize_choice_cache(int64_t capacity) {
  dnnops::resize_choices(capacity > 0 ? static_cast<size_t>(capacity) : 1);
}
