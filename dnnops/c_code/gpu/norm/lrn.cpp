// Local response normalization across channels, divisive normalization within channels, and their gradients.
#include "../../common/shapes.hpp"
#include "../base/handle.hpp"
#include "../base/node_state.hpp"

namespace dnnops {

namespace {

// The words of both. The last one is only used for divisive normalization.
struct NormParams {
  int64_t n;
  double alpha, beta, k;
  int64_t gradient, has_means;
};

const NormParams &params_of(const int64_t *words) { return *reinterpret_cast<const NormParams *>(words); }

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

struct NormState : State {
  bool ready = false;
  NormKey key;
  bool empty = false;
  int64_t image_bytes = 0;
  TensorDescriptor most, rest;  // for batches of MOST_IMAGES, and for the rest of the batch
  LRNDescriptor norm;
};

// All arrays are contiguous and have x's shape, so one descriptor serves all of them; `tensor` makes it.
template <class MakeTensor>
void prepare(NormState &state, const NormKey &key, const NormParams &params, const dnnops_tensor &x,
             MakeTensor &&tensor) {
  state.ready = false;
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
  state.key = key;
  state.ready = true;
}

// A part of the batch.
struct Part {
  legacy::Descriptor array;
  int64_t begin, bytes;
  void *of(const dnnops_tensor &tensor) const { return static_cast<char *>(tensor.data) + begin; }
};

// Calls body(handle, descriptor, part) for each part of the batch, with what the node keeps.
template <class MakeTensor, class Body>
void run(const dnnops_context &context, const NormParams &params, const dnnops_tensor *inputs, int count,
         MakeTensor &&tensor, Body &&body) {
  check_operands(inputs, count);
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  HeldState<NormState> held(context);
  NormState &state = *held;
  NormKey key;
  key.handle = handle.number;
  read_key(key.x, inputs[0]);
  if (!state.ready || std::memcmp(&key, &state.key, sizeof key)) prepare(state, key, params, inputs[0], tensor);
  if (state.empty) return;
  for (int64_t first = 0; first < inputs[0].shape[0]; first += MOST_IMAGES) {
    const int64_t images = std::min(MOST_IMAGES, inputs[0].shape[0] - first);
    const legacy::Descriptor array = images == MOST_IMAGES ? state.most : state.rest;
    body(handle, state.norm, Part{array, first * state.image_bytes, images * state.image_bytes});
  }
}

// -- across channels -------------------------------------------------------------------------------

// Forward: x; gradient: x, y, and the gradient with respect to y.
int lrn_input_count(const NormParams &params) { return params.gradient ? 3 : 1; }

const char *lrn_name(const NormParams &params) { return params.gradient ? "GpuDnnLRNGrad" : "GpuDnnLRN"; }

// Merges the axes after the channels into one.
Tensor merged(const dnnops_tensor &x) {
  const int64_t channels = x.shape[1], inner = element_count(x.shape + 2, x.ndim - 2);
  return {4, {x.shape[0], channels, inner, 1, 0}, {channels * inner, inner, 1, 1, 0}, 16};
}

void check_lrn(const NormParams &params, const dnnops_tensor *inputs) {
  if (inputs[0].ndim < 2)
    fail(DNNOPS_TYPE_ERROR, "expected an array of at least 2 dimensions, got %s", describe(inputs[0]).c_str());
  check_operands(inputs, lrn_input_count(params));
}

void run_lrn(const dnnops_context &context, const NormParams &params, const dnnops_tensor *inputs,
             dnnops_tensor &output) {
  const auto tensor = [&] { return merged(inputs[0]); };
  const Scalar one(1, output.dtype), zero(0, output.dtype);
  const auto normalize = [&](const Handle &handle, legacy::Descriptor norm, const Part &part) {
    if (params.gradient)
      DNNOPS_LEGACY(cudnnLRNCrossChannelBackward, handle.cudnn, norm, CROSS_CHANNEL, one.pointer(), part.array,
                    part.of(inputs[1]), part.array, part.of(inputs[2]), part.array, part.of(inputs[0]),
                    zero.pointer(), part.array, part.of(output));
    else
      DNNOPS_LEGACY(cudnnLRNCrossChannelForward, handle.cudnn, norm, CROSS_CHANNEL, one.pointer(), part.array,
                    part.of(inputs[0]), zero.pointer(), part.array, part.of(output));
  };
  run(context, params, inputs, lrn_input_count(params), tensor, normalize);
}

// -- within channels -------------------------------------------------------------------------------

// Forward: x and, if present, means; gradient: also the gradient with respect to the output.
int divisive_input_count(const NormParams &params) { return 1 + (params.has_means != 0) + (params.gradient != 0); }

int divisive_output_count(const NormParams &params) { return params.gradient && params.has_means ? 2 : 1; }

const char *divisive_name(const NormParams &params) {
  return params.gradient ? "GpuDnnDivisiveNormalizationGrad" : "GpuDnnDivisiveNormalization";
}

void check_divisive(const NormParams &params, const dnnops_tensor *inputs) {
  if (inputs[0].ndim != 4 && inputs[0].ndim != 5)
    fail(DNNOPS_TYPE_ERROR, "cuDNN takes arrays of two or three spatial axes, got %s", describe(inputs[0]).c_str());
  check_operands(inputs, divisive_input_count(params));
}

void run_divisive(const dnnops_context &context, const NormParams &params, const dnnops_tensor *inputs,
                  dnnops_tensor *outputs) {
  const dnnops_tensor &x = inputs[0];
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
  run(context, params, inputs, divisive_input_count(params), tensor, normalize);
}

}  // namespace

}  // namespace dnnops

using namespace dnnops;

DNNOPS_EXPORT int dnnops_cudnn_lrn_shape(const dnnops_context *, const int64_t *words, const dnnops_tensor *inputs,
                                         dnnops_tensor *outputs) {
  const NormParams &params = params_of(words);
  return guarded(lrn_name(params), inputs, lrn_input_count(params), [&] {
    check_lrn(params, inputs);
    set_output(outputs[0], inputs[0]);
  });
}
DNNOPS_EXPORT int dnnops_cudnn_lrn(const dnnops_context *context, const int64_t *words, const dnnops_tensor *inputs,
                                   dnnops_tensor *outputs) {
  const NormParams &params = params_of(words);
  return guarded(lrn_name(params), inputs, lrn_input_count(params),
                 [&] { run_lrn(*context, params, inputs, outputs[0]); });
}
DNNOPS_EXPORT int dnnops_cudnn_divisive_normalization_shape(const dnnops_context *, const int64_t *words,
                                                            const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const NormParams &params = params_of(words);
  return guarded(divisive_name(params), inputs, divisive_input_count(params), [&] {
    check_divisive(params, inputs);
    for (int i = 0; i < divisive_output_count(params); ++i) set_output(outputs[i], inputs[0]);
  });
}
DNNOPS_EXPORT int dnnops_cudnn_divisive_normalization(const dnnops_context *context, const int64_t *words,
                                                      const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const NormParams &params = params_of(words);
  return guarded(divisive_name(params), inputs, divisive_input_count(params),
                 [&] { run_divisive(*context, params, inputs, outputs); });
}
