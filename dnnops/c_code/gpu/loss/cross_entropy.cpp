// The cross-entropy between the softmax of each row and its label, and its gradient, with dnnops kernels that
// make one pass over the scores each.
#include "../../common/cross_entropy_problem.hpp"

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
  long long rows, classes, count, label_step, g_step, number;
};

struct CrossEntropyParams {
  int64_t rows, gradient;  // rows: a CrossEntropyRows
};

const CrossEntropyParams &params_of(const int64_t *words) {
  return *reinterpret_cast<const CrossEntropyParams *>(words);
}

const char *op_name(const CrossEntropyParams &params) {
  return params.gradient ? "GpuCrossEntropyGrad" : "GpuCrossEntropy";
}

int input_count(const CrossEntropyParams &params) { return params.gradient ? 4 : 2; }

CrossEntropyProblem problem_of(const CrossEntropyParams &params, const dnnops_tensor *inputs) {
  cudnn_dtype(inputs[params.gradient].dtype);
  return params.gradient ? cross_entropy_grad_problem(params.rows, inputs)
                         : cross_entropy_problem(params.rows, inputs[0], inputs[1]);
}

struct CrossEntropyKey {
  int64_t handle;
  OperandKey arrays[4];
};

struct CrossEntropyState : State {
  bool ready = false;
  CrossEntropyKey key;
  Launch launch;
  Kernel kernel;
  unsigned blocks = 0;
};

// The number of threads that share a row: with few classes, each thread has a row; with many, a block shares one.
int64_t lanes_of(int64_t classes) {
  int64_t lanes = 1;
  while (lanes < THREADS && lanes * 4 < classes) lanes *= 2;
  return lanes;
}

void prepare(CrossEntropyState &state, const CrossEntropyKey &key, const CrossEntropyParams &params,
             const Handle &handle, const dnnops_tensor *inputs) {
  state.ready = false;
  const CrossEntropyProblem problem = problem_of(params, inputs);
  for (int i = 0; i < input_count(params); ++i) require_contiguous(inputs[i]);
  const dnnops_tensor &x = inputs[params.gradient], &labels = inputs[params.gradient + 1];
  state.launch = {};
  state.launch.rows = problem.rows;
  state.launch.classes = problem.classes;
  state.launch.count = problem.count;
  state.launch.label_step = problem.label_step;
  state.launch.g_step = params.gradient && inputs[0].shape[0] != 1;
  const int64_t lanes = lanes_of(problem.classes), rows = THREADS / lanes;
  const int64_t blocks = ((params.gradient ? problem.rows : problem.count) + rows - 1) / rows;
  if (blocks > INT_MAX) fail(DNNOPS_NOT_SUPPORTED, "there are too many rows");
  state.blocks = static_cast<unsigned>(blocks);
  if (blocks) {
    if (!params.gradient) {
      const ErrorFlag flag = error_flag("a label of a cross-entropy is out of bounds for " +
                                        std::to_string(problem.classes) + " classes");
      state.launch.flag = flag.address;
      state.launch.number = flag.number;
    }
    state.kernel = load_kernel(handle, "cross_entropy", params.gradient ? "cross_entropy_grad" : "cross_entropy",
                               "-DDTYPE=" + std::to_string(x.dtype) +
                                   " -DLABEL_BITS=" + std::to_string(8 * item_size(labels.dtype)) +
                                   " -DLANES=" + std::to_string(lanes));
  }
  state.key = key;
  state.ready = true;
}

void run(const dnnops_context &context, const CrossEntropyParams &params, const dnnops_tensor *inputs,
         const dnnops_tensor *outputs) {
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  HeldState<CrossEntropyState> held(context);
  CrossEntropyState &state = *held;
  CrossEntropyKey key;
  key.handle = handle.number;
  for (int i = 0; i < 4; ++i) read_key(key.arrays[i], inputs[i < input_count(params) ? i : 0]);
  if (!state.ready || std::memcmp(&key, &state.key, sizeof key)) prepare(state, key, params, handle, inputs);
  if (!state.blocks) return;
  Launch launch = state.launch;
  launch.x = inputs[params.gradient].data;
  launch.labels = inputs[params.gradient + 1].data;
  launch.g = params.gradient ? inputs[0].data : nullptr;
  launch.statistics = params.gradient ? inputs[3].data : outputs[1].data;
  launch.result = outputs[0].data;
  void *arguments[] = {&launch};
  launch_kernel(state.kernel, state.blocks, THREADS, 0, context.stream, arguments);
}

}  // namespace

}  // namespace dnnops

// Inputs: x, labels; outputs: costs, statistics. For the gradient: g, x, labels, statistics; the gradient
// with respect to x.
DNNOPS_EXPORT int dnnops_cudnn_cross_entropy_shape(const dnnops_context *, const int64_t *words,
                                                   const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  using namespace dnnops;
  const CrossEntropyParams &params = params_of(words);
  return guarded(op_name(params), inputs, input_count(params), [&] {
    const CrossEntropyProblem problem = problem_of(params, inputs);
    if (!params.gradient) return cross_entropy_shapes(problem, inputs[0], outputs);
    outputs[0].dtype = inputs[1].dtype;
    outputs[0].ndim = 2;
    std::memcpy(outputs[0].shape, inputs[1].shape, 2 * sizeof(int64_t));
  });
}

DNNOPS_EXPORT int dnnops_cudnn_cross_entropy(const dnnops_context *context, const int64_t *words,
                                             const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  using namespace dnnops;
  const CrossEntropyParams &params = params_of(words);
  return guarded(op_name(params), inputs, input_count(params), [&] { run(*context, params, inputs, outputs); });
}

// The lanes and blocks of a launch, for tests that run its kernel elsewhere.
DNNOPS_EXPORT int dnnops_cudnn_cross_entropy_row(const dnnops_context *, const int64_t *words,
                                                 const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  using namespace dnnops;
  const CrossEntropyParams &params = params_of(words);
  return guarded(op_name(params), inputs, input_count(params), [&] {
    const CrossEntropyProblem problem = problem_of(params, inputs);
    const int64_t lanes = lanes_of(problem.classes), rows = THREADS / lanes;
    outputs[0].shape[0] = lanes;
    outputs[0].shape[1] = ((params.gradient ? problem.rows : problem.count) + rows - 1) / rows;
  });
}
