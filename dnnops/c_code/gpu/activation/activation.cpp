// Activations and their gradients.
#include "../../common/op.hpp"
#include "../../common/shapes.hpp"
#include "../base/handle.hpp"
#include "../base/merged_axes.hpp"
#include "../base/node_state.hpp"
#include "../kernels/kernel_loader.hpp"
#include "activation_grad_params.hpp"

namespace dnnops {

namespace {

// mode is a cudnnActivationMode_t; coef is the ceiling, alpha or beta.
struct ActivationParams {
  int64_t mode;
  double coef;
  int64_t gradient;
  const char *op() const { return gradient ? "GpuDnnActivationGrad" : "GpuDnnActivation"; }
  int input_count() const { return gradient ? 3 : 1; }
};

constexpr int ACTIVATION_ELU = 4, ACTIVATION_SWISH = 6, PROPAGATE_NAN = 1;
// As in activation_grad.cuh: the threads of a block, and its elements.
constexpr int64_t GRAD_THREADS = 256, GRAD_ELEMENTS = 1024;

// Forward: x; gradient: x, the output, and the gradient with respect to it.
void check_operands(const ActivationParams &params, const dnnops_tensor *inputs) {
  const dnnops_tensor &x = inputs[0];
  cudnn_dtype(x.dtype);
  for (int i = 1; i < params.input_count(); ++i)
    if (inputs[i].dtype != x.dtype || !same_shape(inputs[i], x))
      fail(DNNOPS_VALUE_ERROR, "the operands must have the same dtype and shape");
}

struct ActivationKey {
  int64_t handle;
  OperandKey arrays[4];
};

struct ActivationState : KeyedState<ActivationKey> {
  bool empty = false;
  TensorDescriptor array;
  ActivationDescriptor activation;
  bool has_kernel = false;
  Kernel kernel;
};

void describe(ActivationState &state, const ActivationParams &params, const dnnops_tensor &x) {
  // All arrays are contiguous, so one axis is enough.
  const int64_t count = element_count(x.shape, x.ndim);
  const bool unmarked = false;
  set_merged_descriptor(state.array, merge_axes(&count, 1, &unmarked), false, x.dtype);
  const int mode = static_cast<int>(params.mode);
  DNNOPS_LEGACY(cudnnSetActivationDescriptor, state.activation, mode, PROPAGATE_NAN, params.coef);
  if (mode == ACTIVATION_SWISH) DNNOPS_LEGACY(cudnnSetActivationDescriptorSwishBeta, state.activation, params.coef);
}

// Loads the kernel of a gradient that cuDNN computes wrong. Where it does not compile, cuDNN runs.
bool loads_kernel(ActivationState &state, const ActivationParams &params, int64_t dtype, const Handle &handle) {
  if (!params.gradient || (params.mode != ACTIVATION_ELU && params.mode != ACTIVATION_SWISH)) return false;
  const std::string swish = std::to_string(params.mode == ACTIVATION_SWISH);
  try {
    state.kernel = load_kernel(handle, "activation_grad", "activation_grad",
                               "-DSWISH=" + swish + " -DDTYPE=" + std::to_string(dtype));
    return true;
  } catch (const Error &error) {
    if (error.status != DNNOPS_NOT_SUPPORTED) throw;
    return false;
  }
}

void prepare(ActivationState &state, const ActivationParams &params,
             const dnnops_tensor *inputs, const dnnops_tensor &output, const Handle &handle) {
  check_operands(params, inputs);
  const dnnops_tensor &x = inputs[0];
  if (!same_shape(output, x))
    fail(DNNOPS_VALUE_ERROR, "the output has to have the shape %s", list_of(x.shape, x.ndim).c_str());
  for (int i = 0; i < params.input_count(); ++i) require_contiguous(inputs[i]);
  require_contiguous(output);
  state.empty = !element_count(x.shape, x.ndim);
  state.has_kernel = !state.empty && loads_kernel(state, params, x.dtype, handle);
  if (!state.empty) describe(state, params, x);
}

void run(const OpCall<ActivationParams> &call) {
  const ActivationParams &params = call.params;
  const dnnops_tensor *inputs = call.inputs, &output = call.outputs[0];
  const DeviceGuard device(call.context.device);
  const Handle &handle = handle_for(call.context.device, call.context.stream);
  HeldState<ActivationState> held(call.context);
  ActivationState &state = *held;
  ActivationKey key;
  key.handle = handle.number;
  for (int i = 0; i < 3; ++i) read_key(key.arrays[i], inputs[params.gradient ? i : 0]);
  read_key(key.arrays[3], output);
  state.prepare_for(key, [&] { prepare(state, params, inputs, output, handle); });
  if (state.empty) return;
  if (state.has_kernel) {
    const int64_t count = element_count(output.shape, output.ndim);
    ActivationGradParams given{inputs[0].data, inputs[2].data, output.data, count, params.coef};
    void *arguments[] = {&given};
    const auto blocks = static_cast<unsigned>((count + GRAD_ELEMENTS - 1) / GRAD_ELEMENTS);
    launch_kernel(state.kernel, blocks, GRAD_THREADS, 0, call.context.stream, arguments);
    return;
  }
  const Scalar one(1, output.dtype), zero(0, output.dtype);
  if (params.gradient)
    DNNOPS_LEGACY(cudnnActivationBackward, handle.cudnn, state.activation, one.pointer(), state.array, inputs[1].data,
                  state.array, inputs[2].data, state.array, inputs[0].data, zero.pointer(), state.array, output.data);
  else
    DNNOPS_LEGACY(cudnnActivationForward, handle.cudnn, state.activation, one.pointer(), state.array, inputs[0].data,
                  zero.pointer(), state.array, output.data);
}

void shape(const OpCall<ActivationParams> &call) {
  check_operands(call.params, call.inputs);
  set_output(call.outputs[0], call.inputs[0]);
}

// Makes cuDNN's descriptors; needs no GPU.
void make_descriptors(const OpCall<ActivationParams> &call) {
  const dnnops_tensor &x = call.inputs[0];
  check_operands(call.params, call.inputs);
  ActivationState state;
  if (element_count(x.shape, x.ndim)) describe(state, call.params, x);
}

}  // namespace

DNNOPS_OP(cudnn_activation, ActivationParams, shape, run)
DNNOPS_FUNCTION(cudnn_activation_describe, ActivationParams, make_descriptors)

}  // namespace dnnops
