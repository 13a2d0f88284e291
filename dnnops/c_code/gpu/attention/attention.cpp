// Scaled dot-product attention and its gradient, with cuDNN's fused engines; a dnnops kernel computes
// gradients of short sequences.
#include <algorithm>
#include <memory>

#include "../../common/lru_cache.hpp"
#include "../../common/op.hpp"
#include "../../common/shapes.hpp"

#include "attention_call.hpp"
#include "attention_faults.hpp"
#include "attention_grad_kernel.hpp"
#include "attention_graph.hpp"
#include "attention_kernels.hpp"
#include "large/attention_large.hpp"
#include "../base/node_state.hpp"
#include "../kernels/replay.hpp"

namespace dnnops {

namespace {

constexpr int MAX_OPERANDS = 10, MAX_RESULTS = 3;
constexpr int64_t MAX_DEPTH = 256, DEPTH_STEP = 8, ALIGNMENT = 16;

// -- what is prepared for operands of one layout ------------------------------------------

struct PlanKey {
  int64_t handle;
  AttentionCase attention;
};

bool operator==(const PlanKey &a, const PlanKey &b) { return !std::memcmp(&a, &b, sizeof a); }

LruCache<PlanKey, ExecutionPlan, WordHash<PlanKey>> &plans() {
  static auto *cache = new LruCache<PlanKey, ExecutionPlan, WordHash<PlanKey>>(512);
  return *cache;
}

struct NodeKey {
  int64_t handle;
  OperandKey arrays[MAX_OPERANDS + MAX_RESULTS];
};

// Offsets in the workspace; -1 if unused.
struct Places {
  int64_t size = 0;
  int64_t plan = -1, products = -1, wide_dquery = -1, lengths = -1, random = -1, bias = -1, visible = -1, stats = -1,
          large = -1;
  int64_t arrays[ATTENTION_ARRAYS] = {-1, -1, -1, -1, -1, -1, -1, -1};

  int64_t take(int64_t bytes) {
    const int64_t place = size;
    size += (bytes + 255) / 256 * 256;
    return place;
  }
};

struct AttentionState : KeyedState<NodeKey> {
  bool empty = false;
  std::optional<AttentionGradKernel> grad_kernel;
  AttentionCase inner;
  std::string avoided;  // names of the faults of cuDNN that the case avoids
  Places places;
  AttentionKernels kernels;
  std::optional<AttentionLargeKernels> large_kernels;
  std::shared_ptr<ExecutionPlan> plan;
  int64_t visible_batch = 1, visible_heads = 1;
  float scale, hidden, kept, kept_scale;
  // Per node: calls that recur in one node need not recur in others that share the plan.
  std::optional<Replays> replays;
};

// The operands and results by AttentionArray; null if the call has none.
void list_arrays(const AttentionCall &call, const dnnops_tensor *results, const dnnops_tensor **arrays) {
  std::fill(arrays, arrays + ATTENTION_ARRAYS, nullptr);
  for (int i = 0; i < 3; ++i) arrays[A_QUERY + i] = &call.inputs[i];
  if (!call.gradient) {
    arrays[A_OUT] = &results[0];
    return;
  }
  arrays[A_OUT] = call.out;
  arrays[A_GOUT] = call.gout;
  for (int i = 0; i < 3; ++i) arrays[A_DQUERY + i] = &results[i];
}

// The statistics that the call writes; null if none.
void *written_stats(const AttentionCall &call, const dnnops_tensor *results) {
  return !call.gradient && call.has_stats ? results[1].data : nullptr;
}

HideParams hidden_rows(const dnnops_tensor &array, void *stats) {
  HideParams params = {};
  params.array = array.data;
  params.stats = stats;
  params.batch = array.shape[0], params.heads = array.shape[1];
  params.rows = array.shape[2], params.columns = array.shape[3];
  for (int i = 0; i < 3; ++i) params.steps[i] = array.strides[i] / item_size(array.dtype);
  return params;
}

bool is_result(const AttentionCall &call, int array) { return call.gradient ? array >= A_DQUERY : array == A_OUT; }

// Whether cuDNN can use an array in place: its engines move 16 bytes at a time.
bool suits(const dnnops_tensor &array, const Sizes &inner) {
  for (int i = 0; i < 4; ++i)
    if (array.shape[i] != inner[i]) return false;
  if (reinterpret_cast<uintptr_t>(array.data) % ALIGNMENT) return false;
  if (array.shape[3] != 1 && array.strides[3] != item_size(array.dtype)) return false;
  for (int i = 0; i < 3; ++i)
    if (array.shape[i] != 1 && (array.strides[i] <= 0 || array.strides[i] % ALIGNMENT)) return false;
  return true;
}

int64_t rounded_depth(int64_t depth) { return std::max(DEPTH_STEP, (depth + DEPTH_STEP - 1) / DEPTH_STEP * DEPTH_STEP); }

bool has_given_lengths(const AttentionCall &call) { return call.query_lengths || call.key_lengths; }

// Whether the array is negated in the workspace: engines subtract the largest score before they scale, so that with a
// negative scale, exponentials overflow. They get its magnitude, and the negated query.
bool is_negated(const AttentionCall &call, int array) {
  return call.scale() < 0 && call.params.path != PATH_FAULTY && (array == A_QUERY || array == A_DQUERY);
}

// Whether dnnops kernels replace the gradients of heads with large scores. With dropout, no other kernel draws the same
// random numbers.
bool replaces_large(const AttentionCall &call) {
  return call.gradient && !(call.params.dropout > 0) && call.params.path != PATH_FAULTY;
}

// The case as cuDNN sees it, and the names of the faults that it avoids.
AttentionCase inner_case(const AttentionCall &call, std::string &avoided) {
  AttentionCase c;
  std::memset(&c, 0, sizeof c);
  c.gradient = call.gradient;
  c.dtype = call.dtype;
  c.has_stats = call.has_stats;
  c.batch = call.batch, c.query_heads = call.query_heads, c.heads = call.heads;
  c.queries = call.queries, c.keys = call.keys;
  c.depth = rounded_depth(call.depth), c.value_depth = rounded_depth(call.value_depth);
  if (std::max(c.depth, c.value_depth) > MAX_DEPTH)
    fail(DNNOPS_NOT_SUPPORTED,
         "cuDNN's attention supports depths of up to %lld; larger depths are computed without cuDNN if the depth is "
         "known when the function is compiled, as with specify_shape, or with mode.excluding('cudnn')",
         (long long)MAX_DEPTH);
  c.is_causal = call.params.is_causal;
  c.has_lengths = has_given_lengths(call);
  if (call.mask) {
    c.bias_batch = call.mask->shape[0];
    c.bias_heads = call.mask->shape[1];
  }
  c.dropout = call.params.dropout;
  c.deterministic = call.params.deterministic && c.gradient;
  if (call.params.path != PATH_FAULTY) avoided = avoid_faults(c);
  if (call.mask) c.bias_stride = (c.keys + 7) / 8 * 8;
  return c;
}

// Fills in the case as cuDNN sees it, and the places of intermediate arrays. Returns whether arrays are copied.
bool lay_out(AttentionState &state, const AttentionCall &call, const dnnops_tensor *results) {
  AttentionCase &c = state.inner;
  Places &places = state.places;
  c = inner_case(call, state.avoided);
  places = Places();
  const dnnops_tensor *arrays[ATTENTION_ARRAYS];
  list_arrays(call, results, arrays);
  bool copies = false;
  for (int i = 0; i < ATTENTION_ARRAYS; ++i) {
    if (!arrays[i]) continue;
    const Sizes shape = c.shape_of(i), dense = packed(shape);
    const bool direct = suits(*arrays[i], shape) && !is_negated(call, i);
    for (int axis = 0; axis < 4; ++axis)
      c.strides[i][axis] = direct && shape[axis] != 1 ? arrays[i]->strides[axis] / item_size(call.dtype) : dense[axis];
    if (!direct) places.arrays[i] = places.take(shape[0] * dense[0] * item_size(call.dtype)), copies = true;
  }
  const int64_t rows = c.batch * c.query_heads * c.queries;
  if (c.gradient) places.products = places.take(rows * sizeof(float));
  if (c.has_wide_dquery()) places.wide_dquery = places.take(rows * c.depth * sizeof(float));
  if (c.has_lengths) places.lengths = places.take(4 * c.batch * sizeof(int32_t));
  if (c.dropout > 0) places.random = places.take(2 * sizeof(int64_t));
  if (c.has_bias()) {
    places.bias = places.take(c.bias_batch * c.bias_heads * c.queries * c.bias_stride * item_size(c.dtype));
    state.visible_batch = c.has_lengths ? c.batch : c.bias_batch;
    state.visible_heads = c.bias_heads;
    places.visible = places.take(state.visible_batch * state.visible_heads * c.queries);
  }
  if (c.gradient && (has_given_lengths(call) || c.has_bias())) places.stats = places.take(rows * sizeof(float));
  if (replaces_large(call)) places.large = places.take(AttentionLargeKernels::bytes(call));
  return copies;
}

void prepare(AttentionState &state, const Handle &handle, const AttentionCall &call,
             const dnnops_tensor *results) {
  state.empty = call.batch * call.query_heads * call.queries == 0 || call.keys == 0;
  state.grad_kernel.reset();
  state.large_kernels.reset();
  if (state.empty) {
    state.kernels = AttentionKernels(handle, call.dtype, DNNOPS_BOOL);
  } else if (AttentionGradKernel::is_chosen(call, handle)) {
    state.grad_kernel.emplace(call, handle);
  } else {
    const bool copies = lay_out(state, call, results);
    const AttentionCase &c = state.inner;
    PlanKey plan_key;
    std::memset(&plan_key, 0, sizeof plan_key);
    plan_key.handle = handle.number;
    plan_key.attention = c;
    state.plan = plans().get(plan_key, [&] {
      GraphTarget target;
      target.handle = handle.cudnn;
      return std::make_shared<ExecutionPlan>(plan_graph(attention_graph(c, target), target, c.deterministic));
    });
    state.replays.emplace(true, PassLength::SHORT, state.plan);
    state.places.plan = state.places.take(state.plan->workspace);
    if (replaces_large(call)) state.large_kernels.emplace(call, handle);
    if (copies || c.has_lengths || c.has_bias() || c.dropout > 0)
      state.kernels = AttentionKernels(handle, call.dtype, call.mask ? call.mask->dtype : DNNOPS_BOOL);
    state.scale = is_negated(call, A_QUERY) ? -call.scale() : call.scale();
    state.hidden = hidden_score();
    state.kept = static_cast<float>(1 - c.dropout);
    state.kept_scale = static_cast<float>(1 / (1 - c.dropout));
  }
}

// -- running -----------------------------------------------------------------------------

// Runs a prepared call on a workspace.
struct AttentionRun {
  AttentionRun(AttentionState &state_, const Handle &handle_, const AttentionCall &call_, dnnops_tensor *results_)
      : state(state_), c(state_.inner), places(state_.places), handle(handle_), call(call_), results(results_),
        workspace(*handle_.arena, places.size) {
    list_arrays(call, results, arrays);
  }

  char *at(int64_t place) const { return place < 0 ? nullptr : static_cast<char *>(workspace.pointer()) + place; }
  int32_t *lengths(int which) const {
    return c.has_lengths ? reinterpret_cast<int32_t *>(at(places.lengths)) + which * c.batch : nullptr;
  }
  void *pointer_of(int array) const { return places.arrays[array] < 0 ? arrays[array]->data : at(places.arrays[array]); }

  void run() {
    if (c.has_lengths || c.dropout > 0) read_lengths();
    if (c.has_bias()) read_mask();
    if (places.stats >= 0)
      state.kernels.run(StatsParams{call.stats->data, at(places.stats), c.batch * c.query_heads * c.queries}, handle.stream);
    for (int i = 0; i < ATTENTION_ARRAYS; ++i)
      if (arrays[i] && places.arrays[i] >= 0 && !is_result(call, i)) copy(i, false);
    execute();
    for (int i = 0; i < ATTENTION_ARRAYS; ++i)
      if (arrays[i] && places.arrays[i] >= 0 && is_result(call, i)) copy(i, true);
    if (call.gradient) {
      if (has_given_lengths(call)) {
        hide(results[0], nullptr, lengths(2), nullptr);
        hide(results[1], nullptr, lengths(3), nullptr);
        hide(results[2], nullptr, lengths(3), nullptr);
      }
    } else if (has_given_lengths(call) || c.has_bias()) {
      hide(results[0], written_stats(call, results), lengths(2), at(places.visible));
    }
    if (state.large_kernels) state.large_kernels->run(call, results, at(places.large), handle.stream);
  }

 private:
  void read_lengths() const {
    LengthParams params = {};
    params.queries = call.query_lengths ? call.query_lengths->data : nullptr;
    params.keys = call.key_lengths ? call.key_lengths->data : nullptr;
    params.batch = c.batch, params.max_queries = call.queries, params.max_keys = call.keys;
    params.inner_queries = lengths(0), params.inner_keys = lengths(1), params.rows = lengths(2), params.columns = lengths(3);
    if (c.dropout > 0) {
      params.random = at(places.random);
      if (call.params.from_device) {
        params.state = call.state->data;
      } else {
        int64_t state_words[2];
        read_vector("the state", *call.state, 2, state_words);
        params.seed = state_words[0], params.offset = state_words[1];
      }
    }
    state.kernels.run(params, handle.stream);
  }

  void read_mask() const {
    MaskParams params = {};
    params.mask = call.mask->data;
    for (int i = 0; i < 4; ++i) params.steps[i] = call.mask->shape[i] == 1 ? 0 : call.mask->strides[i];
    params.bias = at(places.bias), params.visible = at(places.visible), params.columns = lengths(3);
    params.batch = state.visible_batch, params.heads = c.bias_heads;
    params.queries = c.queries, params.keys = call.keys;
    params.bias_batch = c.bias_batch, params.bias_stride = c.bias_stride, params.is_causal = c.is_causal;
    state.kernels.run(params, handle.stream);
  }

  void copy(int array, bool back) const {
    const dnnops_tensor &outer = *arrays[array];
    RowCopyParams params = {};
    const int64_t *inner_steps = c.strides[array];
    int64_t outer_steps[3];
    for (int i = 0; i < 3; ++i) outer_steps[i] = outer.strides[i] / item_size(outer.dtype);
    const Sizes inner = c.shape_of(array);
    params.from = back ? pointer_of(array) : outer.data;
    params.to = back ? outer.data : pointer_of(array);
    for (int i = 0; i < 4; ++i) params.sizes[i] = back ? outer.shape[i] : inner[i];
    params.rows = outer.shape[2], params.columns = outer.shape[3];
    params.negates = is_negated(call, array);
    for (int i = 0; i < 3; ++i) {
      params.from_steps[i] = back ? inner_steps[i] : outer_steps[i];
      params.to_steps[i] = back ? outer_steps[i] : inner_steps[i];
    }
    state.kernels.run(params, handle.stream);
  }

  void hide(const dnnops_tensor &array, void *stats, const void *array_lengths, const void *visible) const {
    HideParams params = hidden_rows(array, stats);
    params.lengths = array_lengths, params.visible = visible;
    params.visible_batch = state.visible_batch, params.visible_heads = state.visible_heads;
    state.kernels.run(params, handle.stream);
  }

  void execute() {
    std::vector<int64_t> ids;
    std::vector<void *> pointers;
    ids.reserve(ID_END);
    pointers.reserve(ID_END);
    const auto add = [&](AttentionId id, const void *pointer) {
      ids.push_back(id);
      pointers.push_back(const_cast<void *>(pointer));
    };
    for (int i = 0; i < ATTENTION_ARRAYS; ++i)
      if (arrays[i]) add(attention_ids[i], pointer_of(i));
    if (call.gradient)
      add(ID_STATS, places.stats < 0 ? call.stats->data : at(places.stats));
    else if (c.has_stats)
      add(ID_STATS, written_stats(call, results));
    add(ID_SCALE, &state.scale);
    if (c.has_bias()) add(ID_BIAS, at(places.bias));
    if (c.has_lengths) {
      add(ID_QUERY_LENGTHS, lengths(0));
      add(ID_KEY_LENGTHS, lengths(1));
      add(ID_HIDDEN, &state.hidden);
    }
    if (c.is_causal) add(ID_HIDDEN_CAUSAL, &state.hidden);
    if (c.dropout > 0) {
      add(ID_SEED, at(places.random));
      add(ID_OFFSET, at(places.random) + sizeof(int64_t));
      add(ID_KEPT_SCALE, &state.kept_scale);
    }
    if (call.gradient) {
      add(ID_PRODUCTS, at(places.products));
      add(ID_KEPT, &state.kept);
    }
    if (c.has_wide_dquery()) {
      add(ID_WIDE_DQUERY, at(places.wide_dquery));
      // Before 9.6, cuDNN added to the existing contents.
      if (cudnnGetVersion() < 90600)
        DNNOPS_CHECK(cudaMemsetAsync(at(places.wide_dquery), 0, c.batch * c.query_heads * c.queries * c.depth * sizeof(float),
                                     static_cast<cudaStream_t>(handle.stream)));
    }
    void *const scratch = at(places.plan);
    Addresses addresses{};
    static_assert(std::tuple_size<Addresses>::value >= ID_END, "a place for each id, and one for the workspace");
    std::transform(pointers.begin(), pointers.end(), addresses.begin(),
                   [](void *p) { return reinterpret_cast<int64_t>(p); });
    addresses.back() = reinterpret_cast<int64_t>(scratch);
    state.replays->run(handle, addresses, [&](const Handle &on) { launch(on, ids, pointers, scratch); });
  }

  void launch(const Handle &on, const std::vector<int64_t> &ids, const std::vector<void *> &pointers, void *scratch) const {
    const int64_t count = static_cast<int64_t>(ids.size());
    BackendDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &scratch);
    pack.finalize("cudnnBackendFinalize(variant pack)");
    DNNOPS_CHECK(cudnnBackendExecute(on.cudnn, state.plan->descriptor.get(), pack.get()));
  }

  AttentionState &state;
  const AttentionCase &c;
  const Places &places;
  const Handle &handle;
  const AttentionCall &call;
  dnnops_tensor *const results;
  const Workspace workspace;
  const dnnops_tensor *arrays[ATTENTION_ARRAYS];
};

// If no key is visible or there are no queries, the results are zeros.
void run_empty(const AttentionState &state, const Handle &handle, const AttentionCall &call, const dnnops_tensor *results) {
  for (int i = 0; i < (call.gradient ? 3 : 1); ++i) {
    HideParams params = hidden_rows(results[i], written_stats(call, results));
    params.hides_all = 1;
    if (params.batch * params.heads * params.rows) state.kernels.run(params, handle.stream);
  }
}

void shape(const OpCall<AttentionParams> &given) {
  set_attention_outputs(AttentionCall(given.params, given.inputs), given.outputs);
}

void run(const OpCall<AttentionParams> &given) {
  const AttentionCall call(given.params, given.inputs);
  const dnnops_context &context = given.context;
  dnnops_tensor *const results = given.outputs;
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  HeldState<AttentionState> held(context);
  AttentionState &state = *held;
  NodeKey key;
  std::memset(&key, 0, sizeof key);
  key.handle = handle.number;
  for (int i = 0; i < call.params.input_count(); ++i)
    if (&call.inputs[i] != call.state) read_key(key.arrays[i], call.inputs[i]);
  for (int i = 0; i < call.params.output_count(); ++i) read_key(key.arrays[MAX_OPERANDS + i], results[i]);
  state.prepare_for(key, [&] { prepare(state, handle, call, results); });
  if (state.empty)
    run_empty(state, handle, call, results);
  else if (state.grad_kernel)
    state.grad_kernel->run(call, results, handle.stream);
  else
    AttentionRun(state, handle, call, results).run();
}

}  // namespace

DNNOPS_OP(cudnn_attention, AttentionParams, shape, run)

// Describes the engine of a call for a device given in cuDNN's JSON form; needs no GPU.
DNNOPS_EXPORT int dnnops_cudnn_attention_plan(const char *device, const int64_t *words, const dnnops_tensor *inputs,
                                              const dnnops_tensor *outputs, char *text, int64_t capacity) {
  const auto &params = params_of<AttentionParams>(words);
  return guarded(params.op(), inputs, params.input_count(), [&] {
    const BackendDescriptor described = describe_device(device);
    GraphTarget target;
    target.device = &described;
    AttentionState state;
    lay_out(state, AttentionCall(params, inputs), outputs);
    const ExecutionPlan plan = plan_graph(attention_graph(state.inner, target), target, state.inner.deterministic);
    std::snprintf(text, capacity, "%s, ours %lld, avoids %s", plan.describe().c_str(), (long long)state.places.size,
                  state.avoided.empty() ? "nothing" : state.avoided.c_str());
  });
}

}  // namespace dnnops
