// Dropout and its gradient, with dnnops kernels.
#include "../../common/dropout_problem.hpp"
#include "../../common/op.hpp"

#include <algorithm>
#include <climits>

#include "../base/deferred.hpp"
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
  const double *p;
  const unsigned long long *state;
  unsigned long long *next_state;
  int *flag;
  long long error;
};

struct DropoutKey {
  int64_t handle, dtype;
};

struct DropoutState : KeyedState<DropoutKey> {
  Kernel kernel;
};

Launch make_launch(const dnnops_tensor *inputs, void *to, bool from_device) {
  Launch launch = {};
  launch.from = inputs[0].data;
  launch.to = to;
  launch.count = element_count(inputs[0].shape, inputs[0].ndim);
  if (from_device) {
    const ErrorFlag flag = error_flag("a dropout probability is not in 0 to 1");
    launch.p = static_cast<const double *>(inputs[1].data);
    launch.flag = static_cast<int *>(flag.address);
    launch.error = flag.number;
    return launch;
  }
  const double p = read_probability(inputs[1]);
  launch.threshold = dropout_threshold(p);
  launch.scale = dropout_scale(p);
  return launch;
}

void launch_elementwise(const dnnops_context &context, const char *name, Launch &launch, int64_t dtype) {
  if (!launch.count && !launch.next_state) return;
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  HeldState<DropoutState> held(context);
  DropoutState &state = *held;
  const int64_t blocks = std::max<int64_t>(1, (launch.count + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS);
  if (blocks > INT_MAX) fail(DNNOPS_NOT_SUPPORTED, "the array is too large");
  state.prepare_for({handle.number, dtype}, [&] {
    state.kernel = load_kernel(handle, "dropout", name, "-DDTYPE=" + std::to_string(dtype));
  });
  void *arguments[] = {&launch};
  launch_kernel(state.kernel, static_cast<unsigned>(blocks), THREADS, 0, context.stream, arguments);
}

struct Params {
  int64_t from_device;
  static const char *op() { return "GpuDnnDropoutOp"; }
  static int input_count() { return 3; }
};

void shape(const OpCall<Params> &call) {
  cudnn_dtype(call.inputs[0].dtype);
  dropout_shapes(call.inputs, call.outputs, !call.params.from_device);
}

void run(const OpCall<Params> &call) {
  const dnnops_tensor *inputs = call.inputs, *outputs = call.outputs;
  Launch launch = make_launch(inputs, outputs[0].data, call.params.from_device);
  require_contiguous(inputs[0]);
  require_contiguous(outputs[0]);
  launch.reserve = outputs[1].data;
  if (call.params.from_device) {
    require_contiguous(inputs[2]);
    launch.state = static_cast<const unsigned long long *>(inputs[2].data);
    launch.next_state = static_cast<unsigned long long *>(outputs[2].data);
    launch_elementwise(call.context, "dropout", launch, inputs[0].dtype);
    return;
  }
  // A captured launch would draw the same numbers at each replay.
  if (is_capturing(call.context.stream))
    fail(DNNOPS_NOT_SUPPORTED, "dropout with a state on the host cannot be captured in a CUDA graph");
  const DropoutPlace place = read_place(inputs[2]);
  launch.seed = place.seed;
  launch.offset = place.offset;
  launch_elementwise(call.context, "dropout", launch, inputs[0].dtype);
  write_next_place(place, launch.count, outputs[2].data);
}

struct GradParams {
  int64_t from_device;
  static const char *op() { return "GpuDnnDropoutGrad"; }
  static int input_count() { return 3; }
};

void shape(const OpCall<GradParams> &call) {
  cudnn_dtype(call.inputs[0].dtype);
  dropout_grad_shape(call.inputs, call.outputs, !call.params.from_device);
}

void run(const OpCall<GradParams> &call) {
  const dnnops_tensor *inputs = call.inputs, *outputs = call.outputs;
  Launch launch = make_launch(inputs, outputs[0].data, call.params.from_device);
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
