// Folds batch normalization of inference into the filters and biases of many convolutions with one kernel.
#include <algorithm>

#include "../../common/op.hpp"
#include "../base/merged_axes.hpp"
#include "../base/node_state.hpp"
#include "../kernels/kernel_loader.hpp"

namespace dnnops {

namespace {

// As in fold_batchnorm.cuh. A launch has at most 4 KB of parameters.
constexpr int ITEMS = 48;
constexpr unsigned THREADS = 256;
// Elements of a block, at least, if there are as many.
constexpr int64_t BLOCK_ELEMENTS = 4096;

struct FoldItem {
  const void *filters, *gamma, *beta, *mean, *var;
  void *scaled, *bias;
  unsigned outputs, channels, positions, per_block, first_block;
  unsigned transposes;
};

struct FoldLaunch {
  double epsilon;
  unsigned long long count;
  FoldItem items[ITEMS];
};
static_assert(sizeof(FoldLaunch) <= 4096, "the parameters of a kernel");

// For each convolution, inputs are filters, gamma, beta, mean and var; outputs are the scaled filters and the bias.
constexpr int OPERANDS = 5, RESULTS = 2;

struct FoldParams {
  int64_t count, dtype;
  double epsilon;
  int64_t channels_last;
  const char *op() const { return "GpuFoldBatchNorm"; }
  int input_count() const { return static_cast<int>(OPERANDS * count); }
};

struct FoldKey {
  int64_t handle, filter_dtype, vector_dtype, out_dtype;
};

struct FoldState : KeyedState<FoldKey> {
  Kernel kernel;
};

void check_item(const dnnops_tensor *inputs, const dnnops_tensor *first) {
  const dnnops_tensor &filters = inputs[0];
  for (int i = 0; i < OPERANDS; ++i)
    if (inputs[i].dtype != first[i ? 1 : 0].dtype) fail(DNNOPS_TYPE_ERROR, "the operands have several dtypes");
  if (filters.ndim < 3) fail(DNNOPS_TYPE_ERROR, "filters have at least 3 axes, got %lld", (long long)filters.ndim);
  for (int i = 1; i < OPERANDS; ++i)
    if (element_count(inputs[i].shape, inputs[i].ndim) != filters.shape[0])
      fail(DNNOPS_VALUE_ERROR, "%lld filters need as many statistics, got %s", (long long)filters.shape[0],
           describe(inputs[i]).c_str());
  if (element_count(filters.shape, filters.ndim) > INT_MAX) fail(DNNOPS_NOT_SUPPORTED, "the filters are too large");
}

void shape(const OpCall<FoldParams> &call) {
  cudnn_dtype(call.params.dtype);
  for (int64_t n = 0; n < call.params.count; ++n) {
    const dnnops_tensor *const inputs = call.inputs + OPERANDS * n;
    cudnn_dtype(inputs[0].dtype);
    check_item(inputs, call.inputs);
    const int64_t format = call.params.channels_last ? FORMAT_CHANNELS_LAST : FORMAT_CONTIGUOUS;
    describe_output(call.outputs[RESULTS * n], call.params.dtype, inputs[0].shape, inputs[0].ndim, format);
    describe_output(call.outputs[RESULTS * n + 1], call.params.dtype, inputs[1].shape, inputs[1].ndim,
                    FORMAT_CONTIGUOUS);
  }
}

FoldItem make_item(const OpCall<FoldParams> &call, int64_t n, int64_t &blocks) {
  const dnnops_tensor *const inputs = call.inputs + OPERANDS * n, *const results = call.outputs + RESULTS * n;
  for (int i = 0; i < OPERANDS; ++i) require_contiguous(inputs[i]);
  const dnnops_tensor &filters = inputs[0];
  FoldItem item = {inputs[0].data, inputs[1].data,  inputs[2].data, inputs[3].data,
                   inputs[4].data, results[0].data, results[1].data};
  const int64_t positions = element_count(filters.shape + 2, filters.ndim - 2), size = filters.shape[1] * positions;
  const int64_t per_block = std::max<int64_t>(1, BLOCK_ELEMENTS / std::max<int64_t>(size, 1));
  item.outputs = static_cast<unsigned>(filters.shape[0]);
  item.channels = static_cast<unsigned>(filters.shape[1]);
  item.positions = static_cast<unsigned>(positions);
  item.per_block = static_cast<unsigned>(per_block);
  item.first_block = static_cast<unsigned>(blocks);
  item.transposes = call.params.channels_last && positions > 1 && filters.shape[1] > 1;
  blocks += (filters.shape[0] + per_block - 1) / per_block;
  if (blocks > INT_MAX) fail(DNNOPS_NOT_SUPPORTED, "there are too many filters");
  return item;
}

void run(const OpCall<FoldParams> &call) {
  const dnnops_context &context = call.context;
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  HeldState<FoldState> held(context);
  FoldState &state = *held;
  const FoldKey key = {handle.number, call.inputs[0].dtype, call.inputs[1].dtype, call.params.dtype};
  state.prepare_for(key, [&] {
    state.kernel = load_kernel(handle, "fold_batchnorm", "fold_batchnorm",
                               "-DITEMS=" + std::to_string(ITEMS) +
                                   " -DFILTER_DTYPE=" + std::to_string(key.filter_dtype) +
                                   " -DVECTOR_DTYPE=" + std::to_string(key.vector_dtype) +
                                   " -DOUT_DTYPE=" + std::to_string(key.out_dtype));
  });
  for (int64_t start = 0; start < call.params.count; start += ITEMS) {
    FoldLaunch launch = {};
    launch.epsilon = call.params.epsilon;
    int64_t blocks = 0;
    for (int64_t n = start; n < call.params.count && n < start + ITEMS; ++n)
      if (call.inputs[OPERANDS * n].shape[0]) launch.items[launch.count++] = make_item(call, n, blocks);
    void *arguments[] = {&launch};
    if (blocks) launch_kernel(state.kernel, static_cast<unsigned>(blocks), THREADS, 0, context.stream, arguments);
  }
}

}  // namespace

DNNOPS_OP(cudnn_fold_batchnorm, FoldParams, shape, run)

}  // namespace dnnops
