// Softmax, log-softmax, and their gradients, over adjacent axes.
#include "../../common/op.hpp"
#include "../../common/shapes.hpp"
#include "../base/handle.hpp"
#include "../base/merged_axes.hpp"
#include "../base/node_state.hpp"

namespace dnnops {

namespace {

// The values along the axes begin <= axis < end sum to one. algo is a cudnnSoftmaxAlgorithm_t.
struct SoftmaxParams {
  int64_t begin, end, algo, gradient;
  const char *op() const { return gradient ? "GpuDnnSoftmaxGrad" : "GpuDnnSoftmax"; }
  int input_count() const { return gradient ? 2 : 1; }
};

enum CudnnSoftmaxMode { MODE_INSTANCE = 0, MODE_CHANNEL = 1 };

// Forward: x; gradient: the gradient with respect to the output, and the output.
void check_operands(const SoftmaxParams &params, const dnnops_tensor *inputs) {
  const dnnops_tensor &x = inputs[0];
  cudnn_dtype(x.dtype);
  if (params.begin < 0 || params.begin >= params.end || params.end > x.ndim)
    fail(DNNOPS_VALUE_ERROR, "axes %lld to %lld are invalid for an array of %lld dimensions", (long long)params.begin,
         (long long)params.end - 1, (long long)x.ndim);
  if (params.gradient && (inputs[1].dtype != x.dtype || !same_shape(inputs[1], x)))
    fail(DNNOPS_VALUE_ERROR, "the output's gradient and the output must have the same dtype and shape");
}

struct SoftmaxKey {
  int64_t handle;
  OperandKey arrays[3];
};

struct SoftmaxState : KeyedState<SoftmaxKey> {
  bool empty = false;
  int mode = MODE_CHANNEL;
  TensorDescriptor array;
};

int64_t product(const dnnops_tensor &array, int64_t begin, int64_t end) {
  int64_t count = 1;
  for (int64_t i = begin; i < end; ++i) count *= array.shape[i];
  return count;
}

void prepare(SoftmaxState &state, const SoftmaxParams &params, const dnnops_tensor *inputs,
             const dnnops_tensor &output) {
  check_operands(params, inputs);
  const dnnops_tensor &x = inputs[0];
  if (!same_shape(output, x))
    fail(DNNOPS_VALUE_ERROR, "the output has to have the shape %s", list_of(x.shape, x.ndim).c_str());
  state.empty = product(x, 0, x.ndim) == 0;
  if (!state.empty) {
    for (int64_t i = 0; i <= params.gradient; ++i) require_contiguous(inputs[i]);
    require_contiguous(output);
    const int64_t channels = product(x, params.begin, params.end), inner = product(x, params.end, x.ndim);
    const Tensor tensor = {4, {product(x, 0, params.begin), channels, inner, 1, 0}, {channels * inner, inner, 1, 1, 0}, 16};
    set_descriptor(state.array, tensor, x.dtype);
    state.mode = inner == 1 ? MODE_INSTANCE : MODE_CHANNEL;
  }
}

void shape(const OpCall<SoftmaxParams> &call) {
  check_operands(call.params, call.inputs);
  set_output(call.outputs[0], call.inputs[0]);
}

void run(const OpCall<SoftmaxParams> &call) {
  const SoftmaxParams &params = call.params;
  const dnnops_tensor *inputs = call.inputs, &output = call.outputs[0];
  const DeviceGuard device(call.context.device);
  const Handle &handle = handle_for(call.context.device, call.context.stream);
  HeldState<SoftmaxState> held(call.context);
  SoftmaxState &state = *held;
  SoftmaxKey key;
  key.handle = handle.number;
  read_key(key.arrays[0], inputs[0]);
  read_key(key.arrays[1], inputs[params.gradient]);
  read_key(key.arrays[2], output);
  state.prepare_for(key, [&] { prepare(state, params, inputs, output); });
  if (state.empty) return;
  const Scalar one(1, output.dtype), zero(0, output.dtype);
  const int algo = static_cast<int>(params.algo);
  if (params.gradient)
    DNNOPS_LEGACY(cudnnSoftmaxBackward, handle.cudnn, algo, state.mode, one.pointer(), state.array, inputs[1].data,
                  state.array, inputs[0].data, zero.pointer(), state.array, output.data);
  else
    DNNOPS_LEGACY(cudnnSoftmaxForward, handle.cudnn, algo, state.mode, one.pointer(), state.array, inputs[0].data,
                  zero.pointer(), state.array, output.data);
}

}  // namespace

DNNOPS_OP(cudnn_softmax, SoftmaxParams, shape, run)

}  // namespace dnnops
