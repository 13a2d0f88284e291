// The cross-entropy between the softmax of each row and its label, and its gradient, with dnnops kernels that
// make one pass over the scores each.
#include "../../common/cross_entropy_problem.hpp"
#include "../../common/op.hpp"

#include "../base/deferred.hpp"
#include "../base/handle.hpp"
#include "../kernels/kernel_loader.hpp"
#include "../base/merged_axes.hpp"
#include "../base/node_state.hpp"

namespace dnnops {

namespace {

// The same value as in cross_entropy.cuh.
constexpr int64_t THREADS = 256;
struct Launch {
  const void *x, *labels, *g;
  void *statistics, *result, *flag;
  long long rows, classes, count, label_step, row_step, g_step, number, by_words;
};

// Inputs: x, labels; outputs: costs, statistics. For the gradient: g, x, labels, statistics; the gradient
// with respect to x.
struct CrossEntropyParams {
  int64_t rows, gradient, float32_costs;  // rows: a CrossEntropyRows
  const char *op() const { return gradient ? "GpuCrossEntropyGrad" : "GpuCrossEntropy"; }
  int input_count() const { return gradient ? 4 : 2; }
};

CrossEntropyProblem problem_of(const CrossEntropyParams &params, const dnnops_tensor *inputs) {
  cudnn_dtype(inputs[params.gradient].dtype);
  return params.gradient ? cross_entropy_grad_problem(params.rows, inputs, params.float32_costs)
                         : cross_entropy_problem(params.rows, inputs[0], inputs[1]);
}

struct CrossEntropyKey {
  int64_t handle;
  OperandKey arrays[4];
};

struct CrossEntropyState : KeyedState<CrossEntropyKey> {
  Launch launch;
  Kernel kernel;
  unsigned blocks = 0;
};

// The number of threads that share a row: with few classes, each thread has a row; with many, a block shares one.
int64_t lanes_of(const CrossEntropyProblem &problem) {
  int64_t lanes = 1;
  while (lanes < THREADS && lanes * 4 < problem.classes) lanes *= 2;
  return lanes;
}

// Whether the kernel for a row that is read at many labels computes the gradient.
bool is_of_one(const CrossEntropyParams &params, const CrossEntropyProblem &problem) {
  return params.gradient && problem.row_step == 0;
}

int64_t blocks_of(const CrossEntropyParams &params, const CrossEntropyProblem &problem) {
  if (is_of_one(params, problem)) return problem.classes;
  const int64_t rows = THREADS / lanes_of(problem);
  return ((params.gradient ? problem.rows : problem.count) + rows - 1) / rows;
}

void prepare(CrossEntropyState &state, const CrossEntropyParams &params,
             const Handle &handle, const dnnops_tensor *inputs) {
  const CrossEntropyProblem problem = problem_of(params, inputs);
  for (int i = 0; i < params.input_count(); ++i) require_contiguous(inputs[i]);
  const dnnops_tensor &x = inputs[params.gradient], &labels = inputs[params.gradient + 1];
  state.launch = {};
  state.launch.rows = problem.rows;
  state.launch.classes = problem.classes;
  state.launch.count = problem.count;
  state.launch.label_step = problem.label_step;
  state.launch.row_step = problem.row_step;
  state.launch.g_step = params.gradient && inputs[0].shape[0] != 1;
  const int64_t blocks = blocks_of(params, problem);
  if (blocks > INT_MAX) fail(DNNOPS_NOT_SUPPORTED, "there are too many rows");
  state.blocks = static_cast<unsigned>(blocks);
  if (blocks) {
    if (!params.gradient) {
      const ErrorFlag flag = error_flag("a label of a cross-entropy is out of bounds for " +
                                        std::to_string(problem.classes) + " classes");
      state.launch.flag = flag.address;
      state.launch.number = flag.number;
    }
    const char *const name = is_of_one(params, problem) ? "cross_entropy_grad_of_one"
                             : params.gradient          ? "cross_entropy_grad"
                                                        : "cross_entropy";
    state.kernel = load_kernel(handle, "cross_entropy", name,
                               "-DDTYPE=" + std::to_string(x.dtype) +
                                   " -DCOST_DTYPE=" + std::to_string(costs_dtype(x, params.float32_costs)) +
                                   " -DLABEL_BITS=" + std::to_string(8 * item_size(labels.dtype)) +
                                   " -DLANES=" + std::to_string(lanes_of(problem)));
  }
}

void shape(const OpCall<CrossEntropyParams> &call) {
  const CrossEntropyProblem problem = problem_of(call.params, call.inputs);
  if (!call.params.gradient)
    return cross_entropy_shapes(problem, call.inputs[0], call.outputs, call.params.float32_costs);
  set_output(call.outputs[0], call.inputs[1]);
}

void run(const OpCall<CrossEntropyParams> &call) {
  const dnnops_context &context = call.context;
  const CrossEntropyParams &params = call.params;
  const dnnops_tensor *inputs = call.inputs, *outputs = call.outputs;
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  HeldState<CrossEntropyState> held(context);
  CrossEntropyState &state = *held;
  CrossEntropyKey key;
  key.handle = handle.number;
  for (int i = 0; i < 4; ++i) read_key(key.arrays[i], inputs[i < params.input_count() ? i : 0]);
  state.prepare_for(key, [&] { prepare(state, params, handle, inputs); });
  if (!state.blocks) return;
  Launch launch = state.launch;
  launch.x = inputs[params.gradient].data;
  launch.labels = inputs[params.gradient + 1].data;
  launch.g = params.gradient ? inputs[0].data : nullptr;
  launch.statistics = params.gradient ? inputs[3].data : outputs[1].data;
  launch.result = outputs[0].data;
  const auto in_words = [&](const void *data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const int64_t row_bytes = launch.classes * item_size(inputs[params.gradient].dtype);
  launch.by_words = row_bytes % 16 == 0 && in_words(launch.x) && (!params.gradient || in_words(launch.result));
  void *arguments[] = {&launch};
  launch_kernel(state.kernel, state.blocks, THREADS, 0, context.stream, arguments);
}

// Gets the lanes and blocks of a launch, for tests that run its kernel elsewhere.
void describe_launch(const OpCall<CrossEntropyParams> &call) {
  const CrossEntropyProblem problem = problem_of(call.params, call.inputs);
  call.outputs[0].shape[0] = lanes_of(problem);
  call.outputs[0].shape[1] = blocks_of(call.params, problem);
}

}  // namespace

DNNOPS_OP(cudnn_cross_entropy, CrossEntropyParams, shape, run)
DNNOPS_FUNCTION(cudnn_cross_entropy_row, CrossEntropyParams, describe_launch)

}  // namespace dnnops
