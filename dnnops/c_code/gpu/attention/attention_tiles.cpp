// Attention in float32 and its gradient with the kernels of attention_tiles.cuh, which never store the scores.
#include <algorithm>
#include <cstring>

#include "../../common/op.hpp"
#include "../../common/shapes.hpp"

#include "../base/node_state.hpp"
#include "attention_call.hpp"
#include "attention_tiles_kernel.hpp"

namespace dnnops {

namespace {

constexpr int MAX_OPERANDS = 9, MAX_RESULTS = 3;

struct TilesParams : AttentionParams {
  int64_t allow_tf32;
  const char *op() const { return gradient ? "GpuTiledAttentionGrad" : "GpuTiledAttention"; }
};

struct NodeKey {
  int64_t handle;
  OperandKey arrays[MAX_OPERANDS + MAX_RESULTS];
};

struct TilesState : KeyedState<NodeKey> {
  AttentionTilesParams params;  // without addresses
  AttentionTilesKernel out, dquery, dkey;
};

AttentionCall call_of(const OpCall<TilesParams> &given) {
  return AttentionCall(given.params, given.inputs, {DNNOPS_FLOAT32});
}

using Arrays = const dnnops_tensor *[TILES_ARRAYS];

// The arrays of a call; null where it has none.
void list_arrays(const AttentionCall &call, const dnnops_tensor *results, Arrays &arrays) {
  std::fill(arrays, arrays + TILES_ARRAYS, nullptr);
  for (int i = 0; i < 3; ++i) arrays[TILES_QUERY + i] = &call.inputs[i];
  arrays[TILES_OUT] = call.gradient ? call.out : &results[0];
  if (!call.gradient) return;
  arrays[TILES_GOUT] = call.gout;
  for (int i = 0; i < 3; ++i) arrays[TILES_DQUERY + i] = &results[i];
}

bool moves_by_16_bytes(const dnnops_tensor &array) {
  constexpr int64_t BYTES = 16;
  bool fits = alignment_of(array.data) == BYTES && array.shape[3] * item_size(array.dtype) % BYTES == 0;
  for (int i = 0; i < 3; ++i) fits = fits && (array.shape[i] == 1 || array.strides[i] % BYTES == 0);
  return fits;
}

void prepare(TilesState &state, const Handle &handle, const AttentionCall &call, const Arrays &arrays,
             bool allow_tf32) {
  AttentionTilesParams &params = state.params;
  std::memset(static_cast<void *>(&params), 0, sizeof params);
  AttentionTilesForm form = {};
  form.aligned = true;
  for (int i = 0; i < TILES_ARRAYS; ++i) {
    if (!arrays[i]) continue;
    for (int axis = 0; axis < 3; ++axis) params.steps[i][axis] = arrays[i]->strides[axis] / item_size(call.dtype);
    form.aligned = form.aligned && moves_by_16_bytes(*arrays[i]);
  }
  if (call.mask) {
    for (int i = 0; i < 4; ++i)
      params.mask_steps[i] = call.mask->shape[i] == 1 ? 0 : call.mask->strides[i] / item_size(call.mask->dtype);
    form.mask = call.mask->dtype == DNNOPS_BOOL ? 1 : 2;
  }
  params.heads = call.query_heads;
  params.group = call.heads ? call.query_heads / call.heads : 1;
  params.queries = call.queries, params.keys = call.keys;
  params.depth = call.depth, params.value_depth = call.value_depth;
  params.is_causal = form.is_causal = call.params.is_causal;
  params.scale = call.scale();
  form.depth = call.depth, form.value_depth = call.value_depth;
  form.split = !allow_tf32;
  const int64_t all_queries = call.batch * call.query_heads;
  if (call.gradient) {
    state.dquery = AttentionTilesKernel(handle, TILES_KERNEL_DQUERY, form, all_queries, call.queries);
    state.dkey = AttentionTilesKernel(handle, TILES_KERNEL_DKEY, form, call.batch * call.heads, call.keys);
  } else {
    state.out = AttentionTilesKernel(handle, TILES_KERNEL_OUT, form, all_queries, call.queries);
  }
}

void shape(const OpCall<TilesParams> &given) {
  const AttentionCall call = call_of(given);
  set_attention_outputs(call, given.outputs);
}

void run(const OpCall<TilesParams> &given) {
  const AttentionCall call = call_of(given);
  const dnnops_tensor *const results = given.outputs;
  const DeviceGuard device(given.context.device);
  const Handle &handle = handle_for(given.context.device, given.context.stream);
  HeldState<TilesState> held(given.context);
  TilesState &state = *held;
  NodeKey key;
  std::memset(&key, 0, sizeof key);
  key.handle = handle.number;
  for (int i = 0; i < call.params.input_count(); ++i) read_key(key.arrays[i], call.inputs[i]);
  for (int i = 0; i < call.params.output_count(); ++i) read_key(key.arrays[MAX_OPERANDS + i], results[i]);
  Arrays arrays;
  list_arrays(call, results, arrays);
  state.prepare_for(key, [&] { prepare(state, handle, call, arrays, given.params.allow_tf32); });

  AttentionTilesParams params = state.params;
  for (int i = 0; i < TILES_ARRAYS; ++i) params.arrays[i] = arrays[i] ? arrays[i]->data : nullptr;
  const auto data = [](const dnnops_tensor *t) { return t ? t->data : nullptr; };
  params.mask = data(call.mask);
  params.query_lengths = static_cast<const long long *>(data(call.query_lengths));
  params.key_lengths = static_cast<const long long *>(data(call.key_lengths));
  if (!call.gradient) {
    params.stats = static_cast<float *>(call.has_stats ? results[1].data : nullptr);
    state.out.run(params, handle.stream);
    return;
  }
  const Workspace rows(*handle.arena, TILES_ROW_NUMBERS * call.batch * call.query_heads * call.queries * sizeof(float));
  params.stats = static_cast<float *>(call.stats->data);
  params.rows = static_cast<float *>(rows.pointer());
  state.dquery.run(params, handle.stream);
  state.dkey.run(params, handle.stream);
}

}  // namespace

DNNOPS_OP(cudnn_attention_tiles, TilesParams, shape, run)

// Gets the constants of the kernels of a call for tests, for a device with so many bytes of shared memory for a block.
DNNOPS_EXPORT int dnnops_cudnn_attention_tiles_variant(int64_t kernel, int64_t depth, int64_t value_depth, int64_t split,
                                                       int64_t is_causal, int64_t limit, int64_t *constants) {
  AttentionTilesForm form = {};
  form.depth = depth, form.value_depth = value_depth, form.split = split, form.is_causal = is_causal;
  return guarded("GpuTiledAttention", nullptr, 0, [&] {
    const AttentionTilesVariant v = attention_tiles_variant(static_cast<AttentionTilesKernelKind>(kernel), form, limit);
    const int64_t all[] = {v.warps, v.tiles, v.columns, v.stages, v.hold, v.least_blocks};
    std::copy(std::begin(all), std::end(all), constants);
  });
}

}  // namespace dnnops
