// The weights of attention and the gradient with respect to its scores, with dnnops kernels, for dtypes and sizes
// that cuDNN's fused engines do not support. Matrix products compute the rest.
#include <algorithm>
#include <initializer_list>

#include "../../common/op.hpp"
#include "../../common/shapes.hpp"

#include "../base/handle.hpp"
#include "../base/merged_axes.hpp"
#include "../base/node_state.hpp"
#include "../kernels/kernel_loader.hpp"

namespace dnnops {

namespace {

// As in attention_weights.cuh.
struct Launch {
  const void *scores, *by_weights;
  void *weights, *by_scores, *stats;
  const void *mask, *query_lengths, *key_lengths;
  double scale;
  long long rows, heads, queries, keys, is_causal;
  long long mask_strides[4];
};

enum Given : int64_t { GIVEN_MASK = 1, GIVEN_QUERY_LENGTHS = 2, GIVEN_KEY_LENGTHS = 4 };
constexpr int64_t VECTOR_BYTES = 16;
// The most scores of a thread in registers; the gradient has two arrays of them.
constexpr int64_t MOST_HELD = 32;
constexpr int64_t MOST_LANES = 1024;

// Inputs: scores; for the gradient also the one with respect to the weights; then those given of mask, query lengths
// and key lengths. Outputs: weights and statistics, or weights and the gradient with respect to
// the scores.
struct WeightsParams {
  int64_t scale, is_causal, given, gradient;  // scale: a double
  const char *op() const { return gradient ? "GpuAttentionWeightsGrad" : "GpuAttentionWeights"; }
  int first_optional() const { return gradient ? 2 : 1; }
  int input_count() const { return first_optional() + __builtin_popcountll(given); }
};

// The optional inputs; null if they are not given.
struct Optional {
  const dnnops_tensor *mask = nullptr, *query_lengths = nullptr, *key_lengths = nullptr;

  Optional(const WeightsParams &params, const dnnops_tensor *inputs) {
    const dnnops_tensor *next = inputs + params.first_optional();
    if (params.given & GIVEN_MASK) mask = next++;
    if (params.given & GIVEN_QUERY_LENGTHS) query_lengths = next++;
    if (params.given & GIVEN_KEY_LENGTHS) key_lengths = next++;
  }
};

// How a row's scores are distributed.
struct Sharing {
  int64_t width, lanes, held;

  Sharing(int64_t keys, int64_t dtype, bool is_aligned, bool gradient) {
    width = VECTOR_BYTES / item_size(dtype);
    if (!is_aligned || keys % width) width = 1;
    const int64_t vectors = std::max<int64_t>((keys + width - 1) / width, 1);
    const int64_t most = std::max<int64_t>(MOST_HELD / (gradient ? 2 : 1) / width, 1);
    // A warp has rows of up to `most` vectors in each thread; longer ones are shared by several warps.
    for (lanes = 1; lanes < MOST_LANES && (lanes < 32 ? lanes < vectors : lanes * most < vectors);) lanes *= 2;
    held = (vectors + lanes - 1) / lanes;
    if (held > most) held = 0;
  }
  int64_t threads() const { return std::max<int64_t>(lanes, 128); }
  int64_t rows() const { return threads() / lanes; }
};

struct WeightsKey {
  int64_t handle;
  OperandKey arrays[7];  // inputs and outputs
};

struct WeightsState : KeyedState<WeightsKey> {
  Launch launch;
  Kernel kernel;
  unsigned blocks = 0, threads = 0;
};

void require_shape(const dnnops_tensor &t, const char *name, std::initializer_list<int64_t> shape) {
  if (t.ndim != static_cast<int64_t>(shape.size()) || !std::equal(shape.begin(), shape.end(), t.shape))
    fail(DNNOPS_VALUE_ERROR, "%s has to have the shape %s, got %s", name,
         list_of(shape.begin(), static_cast<int64_t>(shape.size())).c_str(), describe(t).c_str());
}

void check(const WeightsParams &params, const dnnops_tensor *inputs) {
  const dnnops_tensor &scores = inputs[0];
  const int64_t batch = scores.shape[0], heads = scores.shape[1], queries = scores.shape[2], keys = scores.shape[3];
  if (params.gradient)
    require_shape(inputs[1], "the gradient with respect to the weights", {batch, heads, queries, keys});
  const Optional optional(params, inputs);
  if (optional.query_lengths) require_shape(*optional.query_lengths, "query_lengths", {batch});
  if (optional.key_lengths) require_shape(*optional.key_lengths, "key_lengths", {batch});
  if (!optional.mask) return;
  for (int axis = 0; axis < 4; ++axis)
    if (optional.mask->shape[axis] != 1 && optional.mask->shape[axis] != scores.shape[axis])
      fail(DNNOPS_VALUE_ERROR, "the mask %s cannot be broadcast to the scores %s", describe(*optional.mask).c_str(),
           describe(scores).c_str());
}

void prepare(WeightsState &state, const OpCall<WeightsParams> &call, const Handle &handle) {
  const WeightsParams &params = call.params;
  const dnnops_tensor *inputs = call.inputs, *outputs = call.outputs, &scores = inputs[0];
  check(params, inputs);
  for (int i = 0; i < params.input_count(); ++i) require_contiguous(inputs[i]);
  Launch &launch = state.launch = {};
  std::memcpy(&launch.scale, &params.scale, sizeof launch.scale);
  launch.heads = scores.shape[1];
  launch.queries = scores.shape[2];
  launch.keys = scores.shape[3];
  launch.rows = scores.shape[0] * launch.heads * launch.queries;
  launch.is_causal = params.is_causal;
  const Optional optional(params, inputs);
  for (int axis = 0; optional.mask && axis < 4; ++axis)
    launch.mask_strides[axis] =
        optional.mask->shape[axis] == 1 ? 0 : optional.mask->strides[axis] / item_size(optional.mask->dtype);
  const int last = params.gradient ? 1 : 0;
  bool is_aligned = true;
  for (const dnnops_tensor *t : {&inputs[0], &inputs[last], &outputs[0], &outputs[last]})
    is_aligned = is_aligned && reinterpret_cast<uintptr_t>(t->data) % VECTOR_BYTES == 0;
  const Sharing sharing(launch.keys, scores.dtype, is_aligned, params.gradient);
  const int64_t blocks = (launch.rows + sharing.rows() - 1) / sharing.rows();
  if (blocks > INT_MAX) fail(DNNOPS_NOT_SUPPORTED, "there are too many queries");
  state.blocks = static_cast<unsigned>(blocks);
  state.threads = static_cast<unsigned>(sharing.threads());
  if (blocks) {
    const int mask = !optional.mask ? 0 : optional.mask->dtype == DNNOPS_BOOL ? 1 : 2;
    state.kernel = load_kernel(handle, "attention_weights",
                               params.gradient ? "attention_weights_grad" : "attention_weights",
                               "-DDTYPE=" + std::to_string(scores.dtype) + " -DWIDTH=" + std::to_string(sharing.width) +
                                   " -DLANES=" + std::to_string(sharing.lanes) +
                                   " -DHELD=" + std::to_string(sharing.held) + " -DMASK=" + std::to_string(mask));
  }
}

void shape(const OpCall<WeightsParams> &call) {
  const dnnops_tensor &scores = call.inputs[0];
  if (scores.ndim != 4) fail(DNNOPS_VALUE_ERROR, "the scores have to have four axes, got %s", describe(scores).c_str());
  check(call.params, call.inputs);
  set_output(call.outputs[0], scores);
  set_output(call.outputs[1], scores);
  if (call.params.gradient) return;
  call.outputs[1].ndim = 3;
  if (scores.dtype != DNNOPS_FLOAT64) call.outputs[1].dtype = DNNOPS_FLOAT32;
}

void run(const OpCall<WeightsParams> &call) {
  const dnnops_context &context = call.context;
  const WeightsParams &params = call.params;
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  HeldState<WeightsState> held(context);
  WeightsState &state = *held;
  WeightsKey key;
  key.handle = handle.number;
  for (int i = 0; i < 5; ++i) read_key(key.arrays[i], call.inputs[i < params.input_count() ? i : 0]);
  for (int i = 0; i < 2; ++i) read_key(key.arrays[5 + i], call.outputs[i]);
  state.prepare_for(key, [&] { prepare(state, call, handle); });
  if (!state.blocks) return;
  Launch launch = state.launch;
  const Optional optional(params, call.inputs);
  const auto data = [](const dnnops_tensor *t) { return t ? t->data : nullptr; };
  launch.scores = call.inputs[0].data;
  launch.weights = call.outputs[0].data;
  launch.by_weights = params.gradient ? call.inputs[1].data : nullptr;
  launch.by_scores = params.gradient ? call.outputs[1].data : nullptr;
  launch.stats = params.gradient ? nullptr : call.outputs[1].data;
  launch.mask = data(optional.mask);
  launch.query_lengths = data(optional.query_lengths);
  launch.key_lengths = data(optional.key_lengths);
  void *arguments[] = {&launch};
  launch_kernel(state.kernel, state.blocks, state.threads, 0, context.stream, arguments);
}

// Gets the width, lanes and held vectors of a launch, for tests that run its kernels elsewhere.
void describe_launch(const OpCall<WeightsParams> &call) {
  const dnnops_tensor &scores = call.inputs[0];
  const Sharing sharing(scores.shape[3], scores.dtype, true, call.params.gradient);
  call.outputs[0].shape[0] = sharing.width;
  call.outputs[0].shape[1] = sharing.lanes;
  call.outputs[0].shape[2] = sharing.held;
}

}  // namespace

DNNOPS_OP(cudnn_attention_weights, WeightsParams, shape, run)
DNNOPS_FUNCTION(cudnn_attention_weights_sharing, WeightsParams, describe_launch)

}  // namespace dnnops
