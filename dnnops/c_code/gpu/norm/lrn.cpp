// Local response normalization across channels, divisive normalization within channels, and their gradients.
#include "../../common/op.hpp"
#include "../../common/shapes.hpp"
#include "../base/handle.hpp"
#include "../base/node_state.hpp"

namespace dnnops {

namespace {

struct NormWords {
  int64_t n;
  double alpha, beta, k;
  int64_t gradient;
};

constexpr int CROSS_CHANNEL = 0, PRECOMPUTED_MEANS = 0;
// cuDNN does not support larger batches: 65541 images failed.
constexpr int64_t MOST_IMAGES = 65535;

void check_operands(const dnnops_tensor *inputs, int count) {
  cudnn_dtype(inputs[0].dtype);
  for (int i = 1; i < count; ++i)
    if (inputs[i].dtype != inputs[0].dtype || !same_shape(inputs[i], inputs[0]))
      fail(DNNOPS_VALUE_ERROR, "operands must have the same dtype and shape");
}

struct NormKey {
  int64_t handle;
  OperandKey x;
};

struct NormState : KeyedState<NormKey> {
  bool empty = false;
  int64_t image_bytes = 0;
  TensorDescriptor most, rest;  // for batches of MOST_IMAGES, and for the rest of the batch
  LRNDescriptor norm;
};

// All arrays are contiguous and have x's shape, so one descriptor serves all of them; `tensor` makes it.
template <class MakeTensor>
void prepare(NormState &state, const NormWords &params, const dnnops_tensor &x,
             MakeTensor &&tensor) {
  state.empty = !element_count(x.shape, x.ndim);
  if (!state.empty) {
    Tensor part = tensor();
    const int64_t images = part.shape[0];
    state.image_bytes = element_count(x.shape + 1, x.ndim - 1) * item_size(x.dtype);
    if ((part.shape[0] = images % MOST_IMAGES)) set_descriptor(state.rest, part, x.dtype);
    part.shape[0] = MOST_IMAGES;
    if (images >= MOST_IMAGES) set_descriptor(state.most, part, x.dtype);
    DNNOPS_LEGACY(cudnnSetLRNDescriptor, state.norm, static_cast<unsigned>(params.n), params.alpha, params.beta,
                  params.k);
  }
}

// A part of the batch.
struct Part {
  legacy::Descriptor array;
  int64_t begin, bytes;
  void *of(const dnnops_tensor &tensor) const { return static_cast<char *>(tensor.data) + begin; }
};

// Calls body(handle, descriptor, part) for each part of the batch, with what the node keeps.
template <class Params, class MakeTensor, class Body>
void run_parts(const OpCall<Params> &call, MakeTensor &&tensor, Body &&body) {
  const dnnops_tensor *inputs = call.inputs;
  check_operands(inputs, call.params.input_count());
  const DeviceGuard device(call.context.device);
  const Handle &handle = handle_for(call.context.device, call.context.stream);
  HeldState<NormState> held(call.context);
  NormState &state = *held;
  NormKey key;
  key.handle = handle.number;
  read_key(key.x, inputs[0]);
  state.prepare_for(key, [&] { prepare(state, call.params, inputs[0], tensor); });
  if (state.empty) return;
  for (int64_t first = 0; first < inputs[0].shape[0]; first += MOST_IMAGES) {
    const int64_t images = std::min(MOST_IMAGES, inputs[0].shape[0] - first);
    const legacy::Descriptor array = images == MOST_IMAGES ? state.most : state.rest;
    body(handle, state.norm, Part{array, first * state.image_bytes, images * state.image_bytes});
  }
}

// -- across channels -------------------------------------------------------------------------------

// Forward: x; gradient: x, y, and the gradient with respect to y.
struct LrnParams : NormWords {
  const char *op() const { return gradient ? "GpuDnnLRNGrad" : "GpuDnnLRN"; }
  int input_count() const { return gradient ? 3 : 1; }
};

// Merges the axes after the channels into one.
Tensor merged(const dnnops_tensor &x) {
  const int64_t channels = x.shape[1], inner = element_count(x.shape + 2, x.ndim - 2);
  return {4, {x.shape[0], channels, inner, 1, 0}, {channels * inner, inner, 1, 1, 0}, 16};
}

void shape(const OpCall<LrnParams> &call) {
  const dnnops_tensor &x = call.inputs[0];
  if (x.ndim < 2) fail(DNNOPS_TYPE_ERROR, "expected an array of at least 2 dimensions, got %s", describe(x).c_str());
  check_operands(call.inputs, call.params.input_count());
  set_output(call.outputs[0], x);
}

void run(const OpCall<LrnParams> &call) {
  const dnnops_tensor *inputs = call.inputs, &output = call.outputs[0];
  const auto tensor = [&] { return merged(inputs[0]); };
  const Scalar one(1, output.dtype), zero(0, output.dtype);
  const auto normalize = [&](const Handle &handle, legacy::Descriptor norm, const Part &part) {
    if (call.params.gradient)
      DNNOPS_LEGACY(cudnnLRNCrossChannelBackward, handle.cudnn, norm, CROSS_CHANNEL, one.pointer(), part.array,
                    part.of(inputs[1]), part.array, part.of(inputs[2]), part.array, part.of(inputs[0]),
                    zero.pointer(), part.array, part.of(output));
    else
      DNNOPS_LEGACY(cudnnLRNCrossChannelForward, handle.cudnn, norm, CROSS_CHANNEL, one.pointer(), part.array,
                    part.of(inputs[0]), zero.pointer(), part.array, part.of(output));
  };
  run_parts(call, tensor, normalize);
}

// -- within channels -------------------------------------------------------------------------------

// Forward: x and, if present, means; gradient: also the gradient with respect to the output.
struct DivisiveParams : NormWords {
  int64_t has_means;
  const char *op() const { return gradient ? "GpuDnnDivisiveNormalizationGrad" : "GpuDnnDivisiveNormalization"; }
  int input_count() const { return 1 + (has_means != 0) + (gradient != 0); }
};

void shape(const OpCall<DivisiveParams> &call) {
  const dnnops_tensor &x = call.inputs[0];
  if (x.ndim != 4 && x.ndim != 5)
    fail(DNNOPS_TYPE_ERROR, "cuDNN takes arrays of two or three spatial axes, got %s", describe(x).c_str());
  check_operands(call.inputs, call.params.input_count());
  for (int i = 0; i < (call.params.gradient && call.params.has_means ? 2 : 1); ++i) set_output(call.outputs[i], x);
}

void run(const OpCall<DivisiveParams> &call) {
  const DivisiveParams &params = call.params;
  const dnnops_tensor *inputs = call.inputs, *outputs = call.outputs, &x = inputs[0];
  const auto tensor = [&] {
    Tensor dense = read_tensor(x);
    set_dense_strides(dense, FORMAT_CONTIGUOUS);
    return dense;
  };
  const Scalar one(1, x.dtype), zero(0, x.dtype);
  const auto normalize = [&](const Handle &handle, legacy::Descriptor norm, const Part &part) {
    const int64_t bytes = (part.bytes + 255) / 256 * 256;
    const Workspace workspace(*handle.arena, 2 * bytes);
    char *const scratch = static_cast<char *>(workspace.pointer());
    const void *const means = params.has_means ? part.of(inputs[1]) : nullptr;
    if (params.gradient)
      DNNOPS_LEGACY(cudnnDivisiveNormalizationBackward, handle.cudnn, norm, PRECOMPUTED_MEANS, one.pointer(),
                    part.array, part.of(x), means, part.of(inputs[1 + params.has_means]), scratch, scratch + bytes,
                    zero.pointer(), part.array, part.of(outputs[0]),
                    params.has_means ? part.of(outputs[1]) : nullptr);
    else
      DNNOPS_LEGACY(cudnnDivisiveNormalizationForward, handle.cudnn, norm, PRECOMPUTED_MEANS, one.pointer(),
                    part.array, part.of(x), means, scratch, scratch + bytes, zero.pointer(), part.array,
                    part.of(outputs[0]));
  };
  run_parts(call, tensor, normalize);
}

}  // namespace

DNNOPS_OP(cudnn_lrn, LrnParams, shape, run)
DNNOPS_OP(cudnn_divisive_normalization, DivisiveParams, shape, run)

}  // namespace dnnops
