// Dropout and its gradient, with dnnops kernels.
#include "../../common/dropout_problem.hpp"
#include "../../common/op.hpp"

#include "../base/handle.hpp"
#include "../kernels/kernel_loader.hpp"
#include "../base/merged_axes.hpp"
#include "../base/node_state.hpp"

namespace dnnops {

namespace {

// The same values as in dropout.cuh.
constexpr int64_t THREADS = 256, ROUNDS = 2, BLOCK_ELEMENTS = 4 * ROUNDS * THREADS;
struct Launch {
  const void *from;
  void *to, *reserve;
  unsigned long long seed, offset;
  long long count, threshold;
  double scale;
};

struct DropoutKey {
  int64_t handle, dtype;
};

struct DropoutState : KeyedState<DropoutKey> {
  Kernel kernel;
};

Launch make_launch(const dnnops_tensor *inputs, void *to) {
  Launch launch = {};
  const double p = read_probability(inputs[1]);
  launch.from = inputs[0].data;
  launch.to = to;
  launch.count = element_count(inputs[0].shape, inputs[0].ndim);
  launch.threshold = dropout_threshold(p);
  launch.scale = dropout_scale(p);
  return launch;
}

void launch_elementwise(const dnnops_context &context, const char *name, Launch &launch, int64_t dtype) {
  if (!launch.count) return;
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  HeldState<DropoutState> held(context);
  DropoutState &state = *held;
  const int64_t blocks = (launch.count + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS;
  if (blocks > INT_MAX) fail(DNNOPS_NOT_SUPPORTED, "the array is too large");
  state.prepare_for({handle.number, dtype}, [&] {
    state.kernel = load_kernel(handle, "dropout", name, "-DDTYPE=" + std::to_string(dtype));
  });
  void *arguments[] = {&launch};
  launch_kernel(state.kernel, static_cast<unsigned>(blocks), THREADS, 0, context.stream, arguments);
}

struct Params {
  static const char *op() { return "GpuDnnDropoutOp"; }
  static int input_count() { return 3; }
};

void shape(const OpCall<Params> &call) {
  cudnn_dtype(call.inputs[0].dtype);
  dropout_shapes(call.inputs, call.outputs);
}

void run(const OpCall<Params> &call) {
  const dnnops_tensor *inputs = call.inputs, *outputs = call.outputs;
  // The state is on the host, so a captured launch would draw the same numbers at each replay.
  if (is_capturing(call.context.stream)) fail(DNNOPS_NOT_SUPPORTED, "dropout cannot be captured in a CUDA graph");
  Launch launch = make_launch(inputs, outputs[0].data);
  const DropoutPlace place = read_place(inputs[2]);
  require_contiguous(inputs[0]);
  require_contiguous(outputs[0]);
  launch.seed = place.seed;
  launch.offset = place.offset;
  launch.reserve = outputs[1].data;
  launch_elementwise(call.context, "dropout", launch, inputs[0].dtype);
  write_next_place(place, launch.count, outputs[2].data);
}

struct GradParams {
  static const char *op() { return "GpuDnnDropoutGrad"; }
  static int input_count() { return 3; }
};

void shape(const OpCall<GradParams> &call) {
  cudnn_dtype(call.inputs[0].dtype);
  dropout_grad_shape(call.inputs, call.outputs);
}

void run(const OpCall<GradParams> &call) {
  const dnnops_tensor *inputs = call.inputs, *outputs = call.outputs;
  Launch launch = make_launch(inputs, outputs[0].data);
  require_contiguous(inputs[0]);
  require_contiguous(inputs[2]);
  require_contiguous(outputs[0]);
  launch.reserve = inputs[2].data;
  launch_elementwise(call.context, "dropout_grad", launch, inputs[0].dtype);
}

}  // namespace

DNNOPS_OP(cudnn_dropout, Params, shape, run)
DNNOPS_OP(cudnn_dropout_grad, GradParams, shape, run)

}  // namespace dnnops
