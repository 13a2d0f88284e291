// Activations and their gradients.
#include "../base/handle.hpp"
#include "../base/merged_axes.hpp"
#include "../base/node_state.hpp"

namespace dnnops {

namespace {

// mode is a cudnnActivationMode_t; coef holds the bits of a double: ceiling, alpha or beta.
struct ActivationParams {
  int64_t mode, coef, gradient;
};

constexpr int ACTIVATION_SWISH = 6, PROPAGATE_NAN = 1;

const ActivationParams &params_of(const int64_t *words) { return *reinterpret_cast<const ActivationParams *>(words); }

const char *op_name(const ActivationParams &params) {
  return params.gradient ? "GpuDnnActivationGrad" : "GpuDnnActivation";
}

int input_count(const ActivationParams &params) { return params.gradient ? 3 : 1; }

// Forward: x; gradient: x, the output, and the gradient with respect to it.
void check_operands(const ActivationParams &params, const dnnops_tensor *inputs) {
  const dnnops_tensor &x = inputs[0];
  cudnn_dtype(x.dtype);
  for (int i = 1; i < input_count(params); ++i)
    if (inputs[i].dtype != x.dtype || inputs[i].ndim != x.ndim ||
        std::memcmp(inputs[i].shape, x.shape, x.ndim * sizeof(int64_t)))
      fail(DNNOPS_VALUE_ERROR, "the operands must have the same dtype and shape");
}

struct ActivationKey {
  int64_t handle;
  OperandKey arrays[4];
};

struct ActivationState : State {
  bool ready = false;
  ActivationKey key;
  bool empty = false;
  TensorDescriptor array;
  ActivationDescriptor activation;
};

void describe(ActivationState &state, const ActivationParams &params, const dnnops_tensor &x) {
  // All arrays are contiguous, so one axis is enough.
  const int64_t count = element_count(x.shape, x.ndim);
  const bool unmarked = false;
  set_merged_descriptor(state.array, merge_axes(&count, 1, &unmarked), false, x.dtype);
  double coef;
  std::memcpy(&coef, &params.coef, sizeof coef);
  const int mode = static_cast<int>(params.mode);
  DNNOPS_LEGACY(cudnnSetActivationDescriptor, state.activation, mode, PROPAGATE_NAN, coef);
  if (mode == ACTIVATION_SWISH) DNNOPS_LEGACY(cudnnSetActivationDescriptorSwishBeta, state.activation, coef);
}

void prepare(ActivationState &state, const ActivationKey &key, const ActivationParams &params,
             const dnnops_tensor *inputs, const dnnops_tensor &output) {
  state.ready = false;
  check_operands(params, inputs);
  const dnnops_tensor &x = inputs[0];
  if (output.ndim != x.ndim || std::memcmp(output.shape, x.shape, x.ndim * sizeof(int64_t)))
    fail(DNNOPS_VALUE_ERROR, "the output has to have the shape %s", list_of(x.shape, x.ndim).c_str());
  for (int i = 0; i < input_count(params); ++i) require_contiguous(inputs[i]);
  require_contiguous(output);
  state.empty = !element_count(x.shape, x.ndim);
  if (!state.empty) describe(state, params, x);
  state.key = key;
  state.ready = true;
}

void run(const dnnops_context &context, const ActivationParams &params, const dnnops_tensor *inputs,
         const dnnops_tensor &output) {
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  HeldState<ActivationState> held(context);
  ActivationState &state = *held;
  ActivationKey key;
  key.handle = handle.number;
  for (int i = 0; i < 3; ++i) read_key(key.arrays[i], inputs[params.gradient ? i : 0]);
  read_key(key.arrays[3], output);
  if (!state.ready || std::memcmp(&key, &state.key, sizeof key)) prepare(state, key, params, inputs, output);
  if (state.empty) return;
  const Scalar one(1, output.dtype), zero(0, output.dtype);
  if (params.gradient)
    DNNOPS_LEGACY(cudnnActivationBackward, handle.cudnn, state.activation, one.pointer(), state.array, inputs[1].data,
                  state.array, inputs[2].data, state.array, inputs[0].data, zero.pointer(), state.array, output.data);
  else
    DNNOPS_LEGACY(cudnnActivationForward, handle.cudnn, state.activation, one.pointer(), state.array, inputs[0].data,
                  zero.pointer(), state.array, output.data);
}

}  // namespace

}  // namespace dnnops

DNNOPS_EXPORT int dnnops_cudnn_activation_shape(const dnnops_context *, const int64_t *words,
                                                const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  using namespace dnnops;
  const ActivationParams &params = params_of(words);
  return guarded(op_name(params), inputs, input_count(params), [&] {
    check_operands(params, inputs);
    outputs[0].dtype = inputs[0].dtype;
    outputs[0].ndim = inputs[0].ndim;
    std::memcpy(outputs[0].shape, inputs[0].shape, inputs[0].ndim * sizeof(int64_t));
  });
}

DNNOPS_EXPORT int dnnops_cudnn_activation(const dnnops_context *context, const int64_t *words,
                                          const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  using namespace dnnops;
  const ActivationParams &params = params_of(words);
  return guarded(op_name(params), inputs, input_count(params), [&] { run(*context, params, inputs, outputs[0]); });
}

// Makes cuDNN's descriptors; needs no GPU.
DNNOPS_EXPORT int dnnops_cudnn_activation_describe(const dnnops_context *, const int64_t *words,
                                                   const dnnops_tensor *inputs, dnnops_tensor *) {
  using namespace dnnops;
  const ActivationParams &params = params_of(words);
  return guarded(op_name(params), inputs, input_count(params), [&] {
    check_operands(params, inputs);
    ActivationState state;
    if (element_count(inputs[0].shape, inputs[0].ndim)) describe(state, params, inputs[0]);
  });
}
