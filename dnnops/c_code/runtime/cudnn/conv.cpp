// The convolution Ops: one function for forward and both gradients.
#include <cmath>

#include "../common/lru_cache.hpp"
#include "conv_plan.hpp"
#include "node_state.hpp"

namespace dnnops {

namespace {

const char *const op_names[] = {"GpuDnnConv", "GpuDnnConvGradI", "GpuDnnConvGradW"};

// Which input or output an array of each role is; 2 is the output.
const int operand_of_role[3][3] = {{0, 1, 2}, {2, 0, 1}, {0, 2, 1}};

constexpr int MAX_SCALAR_CHANGES = 4;

const ConvParams &params_of(const int64_t *words) { return *reinterpret_cast<const ConvParams *>(words); }

int input_count(const ConvParams &params) { return params.direction == CONV_FORWARD ? 2 : 3; }

double scalar_operand(const dnnops_tensor &operand) {
  if (operand.dtype != DNNOPS_FLOAT64) fail(DNNOPS_TYPE_ERROR, "alpha and beta have to be float64 scalars");
  return *static_cast<const double *>(operand.data);
}

// The operands of a call in one place.
struct Call {
  const ConvParams &params;
  const dnnops_tensor *inputs;
  dnnops_tensor &output;
  const dnnops_tensor *out;  // to be added to, or null
  double alpha, beta;

  Call(const ConvParams &params_, const dnnops_tensor *inputs_, dnnops_tensor *outputs)
      : params(params_), inputs(inputs_), output(outputs[0]), out(nullptr), beta(0) {
    const int first = input_count(params);
    alpha = scalar_operand(inputs[first]);
    if (params.has_out) {
      beta = scalar_operand(inputs[first + 1]);
      out = &inputs[first + 2];
    }
  }

  const dnnops_tensor &of_role(int role) const {
    const int operand = operand_of_role[params.direction][role];
    return operand == 2 ? output : inputs[operand];
  }
};

// What has to be the same for a prepared plan to be used again.
struct CallKey {
  int64_t handle;
  OperandKey operands[4];
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
  const bool has_sizes = call.params.direction != CONV_FORWARD;
  for (int i = 0; i < 3; ++i)
    key.sizes[i] = has_sizes && i < call.params.geometry.spatial_ndim
                       ? static_cast<const int64_t *>(call.inputs[2].data)[i]
                       : 0;
}

enum class Todo { RUN, SCALE_OUT, NOTHING };

// What a node keeps from one execution to the next.
struct ConvState : State {
  bool ready = false;
  CallKey key;
  Todo todo = Todo::NOTHING;
  ConvCase conv;
  std::shared_ptr<Plan> plan;
  PointerPack pack;
  int scalar_changes = 0;
  bool has_chosen = false;
  PlanSpec chosen;  // for the wishes that choose once

  bool fits(const CallKey &now, const Call &call) const {
    return ready && !std::memcmp(&key, &now, sizeof key) &&
           (todo != Todo::RUN || plan->takes_scalars || (conv.alpha == call.alpha && conv.beta == call.beta));
  }
};

// Only 8-byte fields and no padding.
struct PlanKey {
  ConvCase conv;
  int64_t wish;
  PlanSpec spec;
  bool operator==(const PlanKey &other) const { return !std::memcmp(this, &other, sizeof *this); }
};

LruCache<PlanKey, Plan, WordHash<PlanKey>> &plans() {
  static auto *cache = new LruCache<PlanKey, Plan, WordHash<PlanKey>>(1024);
  return *cache;
}

// The problem of a call.  Padding that differs before and after an axis is refused: the legacy API can't
// express it, and with the graph API cuDNN 9.19 computed wrong gradients by the filters, without an error.
// The Ops pad the image themselves instead (dnnops/cudnn/conv_padding.py).
ConvProblem checked_problem(const ConvParams &params, const dnnops_tensor *inputs) {
  const ConvProblem problem = conv_problem(params.direction, reinterpret_cast<const int64_t *>(&params.geometry), inputs);
  const ConvGeometry &geometry = problem.geometry;
  for (int64_t i = 0; i < geometry.spatial_ndim; ++i)
    if (geometry.pad_begin[i] != geometry.pad_end[i])
      fail(DNNOPS_NOT_SUPPORTED,
           "padding of %lld before and %lld after spatial axis %lld: cuDNN %zu is not used for asymmetric padding, with"
           " which its gradients were found to be wrong; pad the image with zeros",
           (long long)geometry.pad_begin[i], (long long)geometry.pad_end[i], (long long)i, cudnnGetVersion());
  return problem;
}

// The type that arrays of a dtype are computed with in.
int64_t compute_dtype(int64_t precision, int64_t dtype) {
  const bool widens = dtype == DNNOPS_FLOAT16 || dtype == DNNOPS_BFLOAT16;
  if (precision == PRECISION_AS_INPUT_F32) return widens ? +DNNOPS_FLOAT32 : dtype;
  if (precision == PRECISION_AS_INPUT) return dtype == DNNOPS_BFLOAT16 ? +DNNOPS_FLOAT32 : dtype;
  if (precision != dtype && !(widens && precision == DNNOPS_FLOAT32))
    fail(DNNOPS_VALUE_ERROR, "precision %s does not go with %s arrays", dtype_name(precision), dtype_name(dtype));
  return precision;
}

// A spatial parameter; one axis becomes two, as read_tensor() widens arrays.
void widen(const int64_t *from, int64_t spatial, int64_t unit, int64_t *to) {
  to[0] = unit;
  std::memcpy(spatial == 1 ? to + 1 : to, from, spatial * sizeof(int64_t));
}

void describe_case(ConvCase &conv, const ConvProblem &problem, const Call &call, int64_t handle) {
  std::memset(&conv, 0, sizeof conv);
  const ConvGeometry &geometry = problem.geometry;
  const ConvParams &params = call.params;
  const int64_t spatial = geometry.spatial_ndim;
  conv.direction = params.direction;
  conv.spatial_ndim = spatial == 1 ? 2 : spatial;
  conv.dtype = call.inputs[0].dtype;
  conv.compute = compute_dtype(params.precision, conv.dtype);
  conv.groups = geometry.groups;
  conv.flip = geometry.filter_flip && element_count(problem.filters + 2, spatial) > 1;
  widen(geometry.stride, spatial, 1, conv.stride);
  widen(geometry.dilation, spatial, 1, conv.dilation);
  widen(geometry.pad_begin, spatial, 0, conv.pad);
  Tensor *tensors[3];
  for (int role = 0; role < 3; ++role) {
    conv.tensors[role] = read_tensor(call.of_role(role));
    tensors[role] = &conv.tensors[role];
  }
  canonicalize_together(tensors, 3);
  conv.allow_tf32 = params.allow_tf32;
  conv.deterministic = params.deterministic || params.wish == WISH_DETERMINISTIC;
  conv.workspace_limit = params.workspace_limit;
  conv.handle = handle;
}

// `out` and the output have to be dense in one format, so that one can be copied to the other.
void require_same_format(const Call &call) {
  const Tensor out = read_tensor(*call.out), output = read_tensor(call.output);
  if (call.out->dtype != call.output.dtype || std::memcmp(out.shape, output.shape, sizeof out.shape))
    fail(DNNOPS_VALUE_ERROR, "out is %s where the result is %s", describe(*call.out).c_str(),
         describe(call.output).c_str());
  if (!(dense_formats(out) & dense_formats(output)))
    fail(DNNOPS_NOT_SUPPORTED, "out has to be dense, contiguous or channels last, got %s", describe(*call.out).c_str());
}

std::shared_ptr<Plan> find_plan(ConvState &state, const Call &call, const Launch &launch) {
  const ConvParams &params = call.params;
  const Choosing choosing{state.conv, params, launch};
  PlanKey key;
  std::memset(&key, 0, sizeof key);
  key.conv = state.conv;
  key.wish = params.wish;
  const bool once = params.wish == WISH_GUESS_ONCE || params.wish == WISH_TIME_ONCE;
  if (params.wish == WISH_PLAN) key.spec = params.plan;
  if (once && state.has_chosen) {
    key.wish = WISH_PLAN;
    key.spec = state.chosen;
    try {
      return plans().get(key, [&] { return choose_plan(choosing, WISH_PLAN, key.spec); });
    } catch (const Error &) {
      // What was chosen for the first shape can't run this one: choose anew.
      std::memset(&key.spec, 0, sizeof key.spec);
    }
  }
  if (once) key.wish = params.wish == WISH_GUESS_ONCE ? WISH_GUESS_ON_SHAPE_CHANGE : WISH_TIME_ON_SHAPE_CHANGE;
  auto plan = plans().get(key, [&] { return choose_plan(choosing, key.wish, key.spec); });
  state.has_chosen = true;
  state.chosen = plan->spec;
  return plan;
}

thread_local std::string last_plan;

void set_plan(ConvState &state, const Call &call, const Launch &launch) {
  state.plan = find_plan(state, call, launch);
  last_plan = state.plan->name;
  if (call.params.verbose)
    std::fprintf(stderr, "dnnops: %s of image %s and filters %s: %s, workspace %lld bytes\n",
                 op_names[call.params.direction],
                 list_of(state.conv.tensors[ROLE_IMAGE].shape, state.conv.tensors[ROLE_IMAGE].ndim).c_str(),
                 list_of(state.conv.tensors[ROLE_FILTERS].shape, state.conv.tensors[ROLE_FILTERS].ndim).c_str(),
                 state.plan->name.c_str(), (long long)state.plan->workspace);
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
  } else {
    state.todo = Todo::RUN;
    describe_case(state.conv, problem, call, launch.handle->number);
    state.conv.fixed_scalars = state.scalar_changes <= MAX_SCALAR_CHANGES;
    if (state.conv.fixed_scalars) {
      state.conv.alpha = call.alpha;
      state.conv.beta = call.beta;
    }
    set_plan(state, call, launch);
  }
  state.key = key;
  state.ready = true;
}

// A dense array as rows, one for each entry of its first axis, with gaps between them or not.
struct Rows {
  int64_t count, bytes;
  explicit Rows(const dnnops_tensor &array)
      : count(array.shape[0]), bytes(element_count(array.shape + 1, array.ndim - 1) * item_size(array.dtype)) {}
  int64_t pitch(const dnnops_tensor &array) const { return count == 1 ? bytes : array.strides[0]; }
};

// Nothing is summed: the result is zero, or beta times out.
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

// The Op is not in place: what is to be added to is copied into the output first.
void copy_out(const Call &call, const Handle &handle) {
  if (!call.out || call.beta == 0 || call.out->data == call.output.data) return;
  const Rows rows(*call.out);
  if (!rows.count || !rows.bytes) return;
  DNNOPS_CHECK(cudaMemcpy2DAsync(call.output.data, rows.pitch(call.output), call.out->data, rows.pitch(*call.out),
                                 rows.bytes, rows.count, cudaMemcpyDeviceToDevice,
                                 static_cast<cudaStream_t>(handle.stream)));
}

// Takes plans of ever smaller workspace until one's can be allocated.
void execute_within_memory(ConvState &state, const Call &call, Launch launch) {
  for (;;) {
    try {
      Workspace workspace(*launch.handle->arena, state.plan->workspace);
      launch.workspace = workspace.pointer();
      return state.plan->execute(launch, state.pack);
    } catch (const Error &error) {
      if (error.status != DNNOPS_OUT_OF_MEMORY || state.plan->workspace == 0 || call.params.wish == WISH_PLAN) throw;
    }
    state.ready = false;  // unless a smaller plan is found
    plans().clear();
    state.conv.workspace_limit = state.plan->workspace < (1 << 20) ? 0 : state.plan->workspace / 2;
    try {
      set_plan(state, call, launch);
    } catch (const Error &error) {
      fail(DNNOPS_OUT_OF_MEMORY, "no device memory for the workspace of %lld bytes of plan %s, and no plan with less: %s",
           (long long)state.plan->workspace, state.plan->name.c_str(), error.what());
    }
    state.ready = true;
  }
}

void run(const dnnops_context &context, const Call &call) {
  const DeviceGuard device(context.device);
  Handle &handle = handle_for(context.device, context.stream);
  HeldState<ConvState> held(context);
  ConvState &state = *held;
  Launch launch{&handle, {}, call.alpha, call.beta, nullptr};
  for (int role = 0; role < 3; ++role) launch.pointers[role] = call.of_role(role).data;
  CallKey key;
  read_key(key, call, handle);
  if (!state.fits(key, call)) prepare(state, key, call, launch);
  if (state.todo == Todo::NOTHING) return;
  copy_out(call, handle);
  if (state.todo == Todo::SCALE_OUT) return scale_out(call, handle);
  execute_within_memory(state, call, launch);
}

}  // namespace

}  // namespace dnnops

// Inputs as conv_problem() has them, then alpha and, if has_out, beta and out.
DNNOPS_EXPORT int dnnops_cudnn_conv_shape(const dnnops_context *, const int64_t *words, const dnnops_tensor *inputs,
                                          dnnops_tensor *outputs) {
  using namespace dnnops;
  const ConvParams &params = params_of(words);
  return guarded(op_names[params.direction], inputs, input_count(params), [&] {
    const ConvProblem problem = checked_problem(params, inputs);
    cudnn_dtype(inputs[0].dtype);
    int64_t format = params.channels_last ? FORMAT_CHANNELS_LAST : FORMAT_CONTIGUOUS;
    if (params.has_out && dense_formats(read_tensor(inputs[input_count(params) + 2])) == FORMAT_CHANNELS_LAST)
      format = FORMAT_CHANNELS_LAST;
    describe_output(outputs[0], inputs[0].dtype, conv_result_shape(problem), problem.ndim, format);
  });
}

DNNOPS_EXPORT int dnnops_cudnn_conv(const dnnops_context *context, const int64_t *words, const dnnops_tensor *inputs,
                                    dnnops_tensor *outputs) {
  using namespace dnnops;
  const ConvParams &params = params_of(words);
  return guarded(op_names[params.direction], inputs, input_count(params),
                 [&] { run(*context, Call(params, inputs, outputs)); });
}

// Makes the legacy descriptors of a call and compares cuDNN's idea of the output's shape with ours.
// Needs no GPU, and looks at no array's content.  (The graph API loads libcuda for its descriptors.)
DNNOPS_EXPORT int dnnops_cudnn_conv_describe(const dnnops_context *, const int64_t *words, const dnnops_tensor *inputs,
                                             dnnops_tensor *outputs) {
  using namespace dnnops;
  const ConvParams &params = params_of(words);
  return guarded(op_names[params.direction], inputs, input_count(params), [&] {
    const Call call(params, inputs, outputs);
    const ConvProblem problem = checked_problem(params, inputs);
    ConvCase conv;
    describe_case(conv, problem, call, 0);
    int64_t shape[MAX_RANK];
    legacy_output_shape(conv, shape);
    const Tensor &top = conv.tensors[ROLE_TOP];
    if (std::memcmp(shape, top.shape, top.ndim * sizeof(int64_t)))
      fail(DNNOPS_LIBRARY_ERROR, "cuDNN says that the output has the shape %s, not %s",
           list_of(shape, top.ndim).c_str(), list_of(top.shape, top.ndim).c_str());
  });
}

// The name of the plan that this thread chose last.
DNNOPS_EXPORT const char *dnnops_cudnn_last_plan(void) { return dnnops::last_plan.c_str(); }

DNNOPS_EXPORT const char *dnnops_cudnn_conv_algorithm(int64_t direction, int64_t id) {
  return dnnops::legacy_algorithm_name(direction, id);
}

DNNOPS_EXPORT void dnnops_cudnn_plan_cache(int64_t *statistics) {
  const dnnops::CacheStatistics now = dnnops::plans().statistics();
  std::memcpy(statistics, &now, sizeof now);
}

DNNOPS_EXPORT void dnnops_cudnn_clear_plan_cache(void) { dnnops::plans().clear(); }

DNNOPS_EXPORT void dnnops_cudnn_resize_plan_cache(int64_t capacity) {
  dnnops::plans().set_capacity(capacity > 0 ? static_cast<size_t>(capacity) : 1);
}
