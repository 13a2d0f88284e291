// Batch normalization in training, its gradient, and batch normalization with given statistics, with dnnops kernels.
#include "../../common/batchnorm_problem.hpp"
#include "../../common/op.hpp"

#include <algorithm>

#include "batchnorm_work.hpp"
#include "../kernels/kernel_loader.hpp"
#include "../base/node_state.hpp"

namespace dnnops {

namespace {

constexpr int MAX_OPERANDS = 12;

struct Params : BatchNormWords {
  int64_t kind;
  int64_t fused;  // bits of BatchNormFused

  const char *op() const {
    static const char *const names[] = {"GpuDnnBatchNorm", "GpuDnnBatchNormGrad", "GpuDnnBatchNormInference"};
    return names[kind];
  }
  int input_count() const {
    return plain_input_count() + has_addend() + takes_offsets();
  }
  int output_count() const { return plain_output_count() + returns_offsets() + has_result(); }
  // The operands of the Op that fuses nothing. Those that it lacks come last.
  int plain_input_count() const {
    static const int counts[] = {4, 5, 6};
    return has_running ? 7 : counts[kind];
  }
  int plain_output_count() const { return kind == BATCHNORM_INFERENCE ? 1 : has_running ? 5 : 3; }
  bool has_relu() const { return fused & BATCHNORM_RELU; }
  bool has_addend() const { return fused & BATCHNORM_ADDEND; }
  // Whether the gradient takes the result of relu, and returns that with respect to the addend.
  bool has_result() const { return kind == BATCHNORM_GRADIENT && has_addend(); }
  bool takes_offsets() const { return kind == BATCHNORM_GRADIENT && has_relu() && !has_addend(); }
  bool returns_offsets() const { return kind == BATCHNORM_TRAIN && has_relu() && !has_addend(); }
  // Whether operands and results have x's shape.
  bool is_image(int input) const {
    return input == 0 || (input == 1 && kind == BATCHNORM_GRADIENT) || (has_addend() && input == plain_input_count());
  }
  bool is_result_image(int output) const { return output == 0 || (has_result() && output == plain_output_count()); }
};

using BatchNormCall = OpCall<Params>;

// Parameters of 16-bit arrays are float32, like sums over them.
void check_dtypes(const dnnops_tensor &x, const dnnops_tensor &parameter) {
  const int64_t expected = item_size(x.dtype) == 2 ? int64_t(DNNOPS_FLOAT32) : x.dtype;
  cudnn_dtype(x.dtype);
  if (parameter.dtype != expected)
    fail(DNNOPS_TYPE_ERROR, "parameters of %s arrays have to be %s, got %s", dtype_name(x.dtype), dtype_name(expected),
         dtype_name(parameter.dtype));
}

void plain_shape(const BatchNormCall &call) {
  switch (call.params.kind) {
    case BATCHNORM_TRAIN: return batchnorm_train_shape(call.params, call.inputs, call.outputs, check_dtypes);
    case BATCHNORM_GRADIENT: return batchnorm_gradient_shape(call.params, call.inputs, call.outputs, check_dtypes);
    default: return batchnorm_inference_shape(call.params, call.inputs, call.outputs, check_dtypes);
  }
}

void shape(const BatchNormCall &call) {
  plain_shape(call);
  const Params &params = call.params;
  const dnnops_tensor &x = call.inputs[0], &last = call.inputs[params.plain_input_count()];
  if (params.has_addend() && (last.dtype != x.dtype || !same_shape(last, x)))
    fail(DNNOPS_VALUE_ERROR, "the %s is %s, expected the shape and dtype of the inputs, %s",
         params.has_result() ? "result of relu" : "addend", describe(last).c_str(), describe(x).c_str());
  if (params.takes_offsets()) {
    batchnorm::check_parameter("offset", params, x, last);
    check_dtypes(x, last);
  }
  if (params.returns_offsets()) set_output(call.outputs[params.plain_output_count()], call.inputs[1]);
  if (params.has_result()) set_output(call.outputs[params.plain_output_count()], x);
}

// Whether an array is dense, with the axes in this order and the last one innermost.
bool is_dense(const dnnops_tensor &array, bool channels_last) {
  int64_t stride = item_size(array.dtype);
  for (int64_t i = array.ndim - 1; i >= 0; --i) {
    const int64_t axis = !channels_last || i == 0 ? i : i == array.ndim - 1 ? 1 : i + 1;
    if (array.shape[axis] != 1 && array.strides[axis] != stride) return false;
    stride *= array.shape[axis];
  }
  return true;
}

// Calls f for all arrays of x's shape.
template <class F>
void for_images(const BatchNormCall &call, F f) {
  for (int i = 0; i < call.params.input_count(); ++i)
    if (call.params.is_image(i)) f(call.inputs[i]);
  for (int i = 0; i < call.params.output_count(); ++i)
    if (call.params.is_result_image(i)) f(call.outputs[i]);
}

// Whether images are channels-last in memory: all or none of them, if statistics are per channel.
bool are_channels_last(const BatchNormCall &call) {
  const int64_t ndim = call.inputs[0].ndim;
  const bool of_channels = ndim > 2 && call.params.axes == (int64_t(1) << ndim) - 1 - 2;
  for (bool channels_last : {false, true}) {
    if (channels_last && !of_channels) break;
    bool all = true;
    for_images(call, [&](const dnnops_tensor &image) { all = all && is_dense(image, channels_last); });
    if (all) return channels_last;
  }
  fail(DNNOPS_NOT_SUPPORTED, "expected arrays in one memory format, contiguous%s, got %s and %s for the result",
       of_channels ? " or channels-last" : "", describe(call.inputs[0]).c_str(), describe(call.outputs[0]).c_str());
}

struct BatchNormKey {
  int64_t handle;
  OperandKey operands[MAX_OPERANDS];
};

struct BatchNormState : KeyedState<BatchNormKey> {
  BatchNormWork work;
  Kernel kernel;
  int64_t channels = 0;
  bool empty = false;
};

// Calls f for all arrays on the device.
template <class F>
void for_arrays(const BatchNormCall &call, F f) {
  for (int i = 0; i < call.params.input_count(); ++i)
    if (call.inputs[i].ndim) f(call.inputs[i]);
  for (int i = 0; i < call.params.output_count(); ++i) f(call.outputs[i]);
}

int attribute(const Handle &handle, cudaDeviceAttr which) {
  int value = 0;
  DNNOPS_CHECK(cudaDeviceGetAttribute(&value, which, handle.device));
  return value;
}

// An upper bound, from the device's attributes, for how many blocks that keep their data run at once.
int64_t blocks_at_most(const BatchNormBlocks &of, const Handle &handle, int64_t processors) {
  const int64_t bytes = of.bytes + of.other_bytes;
  if (!attribute(handle, cudaDevAttrCooperativeLaunch) ||
      attribute(handle, cudaDevAttrMaxSharedMemoryPerBlockOptin) < bytes)
    return 0;
  return processors * std::min<int64_t>(of.blocks, attribute(handle, cudaDevAttrMaxSharedMemoryPerMultiprocessor) / bytes);
}

void choose_work(BatchNormState &state, const BatchNormCase &of, const Handle &handle) {
  const int64_t processors = attribute(handle, cudaDevAttrMultiProcessorCount);
  const bool has_bulk_copies = attribute(handle, cudaDevAttrComputeCapabilityMajor) >= 9;
  BatchNormDevice device = {processors * BATCHNORM_PLAIN.blocks, blocks_at_most(BATCHNORM_PLAIN, handle, processors),
                            has_bulk_copies ? blocks_at_most(BATCHNORM_WARPS, handle, processors) : 0,
                            blocks_at_most(BATCHNORM_SWEEPING, handle, processors),
                            has_bulk_copies ? blocks_at_most(BATCHNORM_HOLDING, handle, processors) : 0};
  for (;;) {
    state.work = batchnorm_work(of, device);
    BatchNormWork &work = state.work;
    state.kernel = load_kernel(handle, "batchnorm", "batchnorm", work.options);
    if (!work.is_cooperative()) return;
    // Ask the driver how many blocks run at once. If shares take turns, a group's blocks must; otherwise all blocks.
    const int64_t at_once = blocks_at_once(state.kernel, unsigned(work.threads), unsigned(work.shared_bytes));
    const int64_t most = processors * at_once;
    if (work.way == BATCHNORM_BY_WARPS) {
      work.grid = std::min(work.grid, device.by_warps);
      if (work.grid <= most) return;
      device.by_warps = 0;
    } else if (work.way == BATCHNORM_HELD) {
      if (work.grid <= most) return;
      device.holding = 0;
    } else if (work.way == BATCHNORM_KEPT) {
      if (work.params.splits <= most) {
        work.grid = std::min(work.grid, most);
        // Blocks of the same group must not be at different turns, or they would wait for each other forever.
        if (work.grid == most) work.grid -= work.grid % work.params.splits;
        return;
      }
      device.plain = 0;
    } else {
      if (work.grid <= most) return;
      device.sweeping = most < device.sweeping ? most : 0;
    }
  }
}

void prepare(BatchNormState &state, const BatchNormCall &call, const Handle &handle) {
  dnnops_tensor described[6];
  shape({call.context, call.params, call.inputs, described});
  for (int i = 0; i < call.params.output_count(); ++i)
    if (call.outputs[i].dtype != described[i].dtype || call.outputs[i].ndim != described[i].ndim ||
        std::memcmp(call.outputs[i].shape, described[i].shape, described[i].ndim * sizeof(int64_t)))
      fail(DNNOPS_VALUE_ERROR, "output %d has to have the shape %s", i,
           list_of(described[i].shape, described[i].ndim).c_str());
  const dnnops_tensor &x = call.inputs[0];
  int64_t bounds[4];
  axis_bounds(call.params, x.ndim, bounds);
  const auto product = [&](int part) { return element_count(x.shape + bounds[part], bounds[part + 1] - bounds[part]); };
  BatchNormCase of = {call.params.kind, call.params.fused, x.dtype, product(0), product(1), product(2), 16};
  state.channels = of.channels;
  state.empty = element_count(x.shape, x.ndim) == 0;
  if (!state.empty) {
    if (are_channels_last(call)) {  // view positions as the batch
      of.batch *= of.inner;
      of.inner = 1;
    }
    const auto check = [](const dnnops_tensor &parameter) {
      if (parameter.ndim && !is_dense(parameter, false))
        fail(DNNOPS_NOT_SUPPORTED, "expected contiguous parameters, got %s", describe(parameter).c_str());
    };
    for (int i = 1; i < call.params.input_count(); ++i)
      if (!call.params.is_image(i)) check(call.inputs[i]);
    for (int i = 1; i < call.params.output_count(); ++i)
      if (!call.params.is_result_image(i)) check(call.outputs[i]);
    for_images(call, [&](const dnnops_tensor &image) {
      of.alignment = std::min(of.alignment, alignment_of(image.data));
    });
    choose_work(state, of, handle);
  }
}

double read_scalar(const dnnops_tensor &tensor) { return *static_cast<const double *>(tensor.data); }

// Fills in the addresses and scalars of a call.
void fill_in(BatchNormParams &p, const BatchNormCall &call) {
  const dnnops_tensor *in = call.inputs, *out = call.outputs;
  p.x = in[0].data;
  p.out = out[0].data;
  if (call.params.kind == BATCHNORM_GRADIENT) {
    p.other = in[1].data;
    if (call.params.takes_offsets()) p.bias = in[5].data;
    if (call.params.has_result()) {
      p.result = in[5].data;
      p.masked = out[3].data;
    }
    p.scale = in[2].data;
    p.mean = in[3].data;
    p.spread = in[4].data;
  } else {
    p.scale = in[1].data;
    p.bias = in[2].data;
    if (call.params.has_addend()) p.other = in[call.params.plain_input_count()].data;
  }
  if (call.params.kind == BATCHNORM_INFERENCE) {
    p.mean = in[3].data;
    p.spread = in[4].data;
    p.epsilon = read_scalar(in[5]);
    return;
  }
  for (int i = 0; i < 2; ++i) p.results[i] = out[1 + i].data;
  if (call.params.returns_offsets()) p.offsets = out[call.params.plain_output_count()].data;
  if (call.params.kind == BATCHNORM_TRAIN) p.epsilon = read_scalar(in[3]);
  if (!call.params.has_running) return;
  p.factor = read_scalar(in[4]);
  for (int i = 0; i < 2; ++i) {
    p.running[i] = in[5 + i].data;
    p.new_running[i] = out[3 + i].data;
  }
}

void run(const BatchNormCall &call) {
  const dnnops_context &context = call.context;
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  const cudaStream_t stream = static_cast<cudaStream_t>(context.stream);
  HeldState<BatchNormState> held(context);
  BatchNormState &state = *held;
  BatchNormKey key;
  std::memset(&key, 0, sizeof key);
  key.handle = handle.number;
  int count = 0;
  for_arrays(call, [&](const dnnops_tensor &array) { read_key(key.operands[count++], array); });
  state.prepare_for(key, [&] { prepare(state, call, handle); });
  if (state.empty) {
    if (call.params.kind == BATCHNORM_GRADIENT)  // empty sums
      for (int i = 1; i < 3; ++i)
        DNNOPS_CHECK(cudaMemsetAsync(call.outputs[i].data, 0, state.channels * item_size(call.outputs[i].dtype), stream));
    return;
  }
  const BatchNormWork &work = state.work;
  BatchNormParams params = work.params;
  fill_in(params, call);
  const Workspace workspace(*handle.arena, work.workspace);
  params.workspace = workspace.pointer();
  if (work.filled_bytes)
    DNNOPS_CHECK(cudaMemsetAsync(static_cast<char *>(params.workspace) + work.workspace - work.filled_bytes,
                                 static_cast<int>(work.fill), work.filled_bytes, stream));
  void *arguments[] = {&params};
  const auto launch = work.is_cooperative() ? launch_cooperative : launch_kernel;
  launch(state.kernel, unsigned(work.grid), unsigned(work.threads), unsigned(work.shared_bytes), context.stream,
         arguments);
}

// The description of a launch, for tests that run its kernel elsewhere.
struct BatchNormRow {
  char options[256];
  int64_t way, grid, threads, shared_bytes, workspace, filled_bytes, fill;
  BatchNormParams params;
};

}  // namespace

DNNOPS_OP(cudnn_batchnorm, Params, shape, run)

// Describes the work on arrays of a dtype viewed as (batch, channel, inner); needs no GPU. `fused` has bits of
// BatchNormFused. `blocks` gives how many blocks run at once: in general, and of each kind that keeps its data.
DNNOPS_EXPORT int dnnops_cudnn_batchnorm_row(const int64_t *sizes, int64_t kind, int64_t fused, int64_t dtype,
                                             int64_t alignment, const int64_t *blocks, BatchNormRow *row) {
  return guarded("batch normalization", nullptr, 0, [&] {
    const BatchNormWork work = batchnorm_work({kind, fused, dtype, sizes[0], sizes[1], sizes[2], alignment},
                                              {blocks[0], blocks[1], blocks[2], blocks[3], blocks[4]});
    std::memset(static_cast<void *>(row), 0, sizeof *row);
    std::snprintf(row->options, sizeof row->options, "%s", work.options.c_str());
    row->way = work.way;
    row->grid = work.grid;
    row->shared_bytes = work.shared_bytes;
    row->threads = work.threads;
    row->workspace = work.workspace;
    row->filled_bytes = work.filled_bytes;
    row->fill = work.fill;
    row->params = work.params;
  });
}

}  // namespace dnnops
