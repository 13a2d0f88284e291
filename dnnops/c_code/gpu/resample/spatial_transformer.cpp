// Spatial transformers: affine grids, bilinear samples, and the gradients of both, with cuDNN or with the
// dnnops kernels in c_code/gpu/resample/sampler.cuh.
#include <climits>

#include "../../common/op.hpp"
#include "../kernels/kernel_loader.hpp"
#include "../base/node_state.hpp"
#include "sampler_params.hpp"

namespace dnnops {

namespace {

enum Kind { GRID = 0, GRID_GRADIENT = 1, SAMPLER = 2, SAMPLER_GRADIENT = 3 };

struct TransformerParams {
  int64_t kind, kernels, deterministic;

  const char *op() const {
    static const char *const names[2][4] = {
        {"GpuDnnTransformerGrid", "GpuDnnTransformerGradT", "GpuDnnTransformerSampler", "GpuDnnTransformerGradI"},
        {"GpuTransformerGrid", "GpuTransformerGradT", "GpuTransformerSampler", "GpuTransformerGradI"}};
    return names[kernels != 0][kind];
  }
  int input_count() const {
    static const int counts[] = {2, 1, 2, 3};
    return counts[kind];
  }
};

constexpr int BILINEAR = 0;
// The limit of cuDNN's sampler gradients. GpuDnnTransformerGradI in Python uses it, too.
constexpr int64_t MOST_CHANNELS = 1024;
constexpr unsigned THREADS = 256, GRID_THREADS = 128;
constexpr int64_t GROUP = 4;

// The sizes of a call; those that its kind does not have are 1.
struct Sizes {
  int64_t batch = 1, channels = 1, rows = 1, columns = 1, top_rows = 1, top_columns = 1;
  int64_t points() const { return batch * top_rows * top_columns; }
  int64_t pixels() const { return batch * channels * rows * columns; }
  int64_t samples() const { return channels * points(); }
};

void require_rank(const char *name, const dnnops_tensor &array, int64_t ndim) {
  if (array.ndim != ndim)
    fail(DNNOPS_TYPE_ERROR, "%s has to have %lld dimensions, got %s", name, (long long)ndim, describe(array).c_str());
}

void require_points(const dnnops_tensor &array) {
  require_rank("the grid", array, 4);
  if (array.shape[3] != 2)
    fail(DNNOPS_VALUE_ERROR, "the grid has to have the shape (batch, rows, columns, 2), got %s", describe(array).c_str());
}

Sizes sizes_of(const TransformerParams &params, const dnnops_tensor *inputs) {
  Sizes sizes;
  cudnn_dtype(inputs[0].dtype);
  if (params.kind == GRID) {
    require_rank("theta", inputs[0], 3);
    if (inputs[0].shape[1] != 2 || inputs[0].shape[2] != 3)
      fail(DNNOPS_VALUE_ERROR, "theta has to have the shape (batch, 2, 3), got %s", describe(inputs[0]).c_str());
    int64_t top[2];
    read_vector("out_shape", inputs[1], 2, top);
    if (top[0] < 1 || top[1] < 1 || top[0] > INT_MAX || top[1] > INT_MAX)
      fail(DNNOPS_VALUE_ERROR, "the output's sizes have to be between 1 and 2**31 - 1, got %s", list_of(top, 2).c_str());
    sizes.batch = inputs[0].shape[0];
    sizes.top_rows = top[0];
    sizes.top_columns = top[1];
    return sizes;
  }
  const bool samples = params.kind != GRID_GRADIENT;
  const dnnops_tensor &grid = inputs[samples];
  require_points(grid);
  sizes.batch = grid.shape[0];
  sizes.top_rows = grid.shape[1];
  sizes.top_columns = grid.shape[2];
  if (!samples) return sizes;
  require_rank("the image", inputs[0], 4);
  sizes.channels = inputs[0].shape[1];
  sizes.rows = inputs[0].shape[2];
  sizes.columns = inputs[0].shape[3];
  if (sizes.rows < 1 || sizes.columns < 1) fail(DNNOPS_VALUE_ERROR, "the image must have at least one pixel");
  bool fits = inputs[0].shape[0] == sizes.batch && grid.dtype == inputs[0].dtype;
  if (params.kind == SAMPLER_GRADIENT) {
    const int64_t shape[] = {sizes.batch, sizes.channels, sizes.top_rows, sizes.top_columns};
    require_rank("the gradient with respect to the samples", inputs[2], 4);
    fits = fits && inputs[2].dtype == grid.dtype && !std::memcmp(inputs[2].shape, shape, sizeof shape);
  }
  if (!fits) fail(DNNOPS_VALUE_ERROR, "the operands' dtypes, batches or shapes don't fit together");
  if (params.kind == SAMPLER_GRADIENT && !params.kernels && sizes.channels > MOST_CHANNELS)
    fail(DNNOPS_NOT_SUPPORTED,
         "cuDNN's gradient takes at most %lld channels, got %lld; dnnops.nnet.spatial_transformer takes them",
         (long long)MOST_CHANNELS, (long long)sizes.channels);
  return sizes;
}

void shape(const OpCall<TransformerParams> &call) {
  const Sizes sizes = sizes_of(call.params, call.inputs);
  const int64_t grid[] = {sizes.batch, sizes.top_rows, sizes.top_columns, 2}, theta[] = {sizes.batch, 2, 3},
                image[] = {sizes.batch, sizes.channels, sizes.rows, sizes.columns},
                samples[] = {sizes.batch, sizes.channels, sizes.top_rows, sizes.top_columns};
  const auto set = [&](dnnops_tensor &output, const int64_t *shape, int64_t ndim) {
    describe_output(output, call.inputs[0].dtype, shape, ndim, FORMAT_CONTIGUOUS);
  };
  switch (call.params.kind) {
    case GRID: return set(call.outputs[0], grid, 4);
    case GRID_GRADIENT: return set(call.outputs[0], theta, 3);
    case SAMPLER: return set(call.outputs[0], samples, 4);
    default: set(call.outputs[0], image, 4); set(call.outputs[1], grid, 4);
  }
}

void clear(const dnnops_tensor &array, void *stream) {
  const int64_t bytes = element_count(array.shape, array.ndim) * item_size(array.dtype);
  if (bytes) DNNOPS_CHECK(cudaMemsetAsync(array.data, 0, bytes, static_cast<cudaStream_t>(stream)));
}

// -- kernels -------------------------------------------------------------------------------------

class Launcher {
 public:
  Launcher(const Handle &handle, int64_t dtype) : handle_(handle), options_("-DDTYPE=" + std::to_string(dtype)) {}

  // Launches this many threads, in blocks of `block`.
  void operator()(const char *name, const SamplerParams &params, int64_t threads, unsigned block = THREADS,
                  unsigned shared = 0) const {
    const int64_t blocks = (threads + block - 1) / block;
    if (blocks > INT_MAX) fail(DNNOPS_NOT_SUPPORTED, "the arrays are too large for one call");
    SamplerParams copy = params;
    void *arguments[] = {&copy};
    launch_kernel(load_kernel(handle_, "sampler", name, options_), static_cast<unsigned>(blocks), block, shared,
                  handle_.stream, arguments);
  }

 private:
  const Handle &handle_;
  std::string options_;
};

void run_kernels(const Handle &handle, const TransformerParams &params, const Sizes &sizes, const dnnops_tensor *inputs,
                 dnnops_tensor *outputs) {
  const int64_t dtype = inputs[0].dtype;
  const Launcher launch(handle, dtype);
  SamplerParams given = {};
  given.batch = sizes.batch;
  given.channels = sizes.channels;
  given.rows = sizes.rows;
  given.columns = sizes.columns;
  given.top_rows = sizes.top_rows;
  given.top_columns = sizes.top_columns;
  given.group = GROUP;
  const int64_t groups = (sizes.channels + GROUP - 1) / GROUP;
  if (params.kind == GRID) {
    given.theta = inputs[0].data;
    given.by_grid = outputs[0].data;
    return launch("make_grid", given, sizes.points());
  }
  if (params.kind == GRID_GRADIENT) {
    given.grid = inputs[0].data;
    given.by_theta = outputs[0].data;
    return launch("grid_gradient", given, sizes.batch * GRID_THREADS, GRID_THREADS,
                  6 * GRID_THREADS * sizeof(double));
  }
  given.image = inputs[0].data;
  given.grid = inputs[1].data;
  if (params.kind == SAMPLER) {
    given.samples = outputs[0].data;
    return launch("take_samples", given, sizes.points() * groups);
  }
  given.top = inputs[2].data;
  given.by_image = outputs[0].data;
  given.by_grid = outputs[1].data;
  const bool rounds = item_size(dtype) == 2;
  const int64_t bytes = rounds ? sizes.pixels() * sizeof(float) : 0;
  const Workspace workspace(*handle.arena, bytes);
  given.sums = rounds ? workspace.pointer() : given.by_image;
  if (rounds)
    DNNOPS_CHECK(cudaMemsetAsync(given.sums, 0, bytes, static_cast<cudaStream_t>(handle.stream)));
  else
    clear(outputs[0], handle.stream);
  if (params.deterministic)
    launch("image_gradient_in_order", given, sizes.batch * sizes.channels, 32);
  else
    launch("image_gradient", given, sizes.points() * groups);
  if (rounds) launch("round_gradient", given, sizes.pixels());
  launch("points_gradient", given, sizes.points());
}

// -- cuDNN ---------------------------------------------------------------------------------------

Tensor dense(int64_t batch, int64_t channels, int64_t rows, int64_t columns) {
  return {4, {batch, channels, rows, columns, 0}, {channels * rows * columns, rows * columns, columns, 1, 0}, 16};
}

void run_cudnn(const Handle &handle, const TransformerParams &params, const Sizes &sizes, const dnnops_tensor *inputs,
               dnnops_tensor *outputs) {
  const int64_t dtype = inputs[0].dtype;
  SpatialTransformerDescriptor transformer;
  const Tensor top = dense(sizes.batch, sizes.channels, sizes.top_rows, sizes.top_columns);
  require_32_bit(top);
  int shape[4];
  to_int(top.shape, 4, shape);
  DNNOPS_LEGACY(cudnnSetSpatialTransformerNdDescriptor, transformer, BILINEAR, cudnn_dtype(dtype), 4, shape);
  if (params.kind == GRID) {
    DNNOPS_LEGACY(cudnnSpatialTfGridGeneratorForward, handle.cudnn, transformer, inputs[0].data, outputs[0].data);
    return;
  }
  if (params.kind == GRID_GRADIENT) {
    DNNOPS_LEGACY(cudnnSpatialTfGridGeneratorBackward, handle.cudnn, transformer, inputs[0].data, outputs[0].data);
    return;
  }
  const Scalar one(1, dtype), zero(0, dtype);
  const TensorDescriptor image = tensor_descriptor(dense(sizes.batch, sizes.channels, sizes.rows, sizes.columns), dtype),
                         samples = tensor_descriptor(top, dtype);
  if (params.kind == SAMPLER)
    DNNOPS_LEGACY(cudnnSpatialTfSamplerForward, handle.cudnn, transformer, one.pointer(), image, inputs[0].data,
                  inputs[1].data, zero.pointer(), samples, outputs[0].data);
  else
    DNNOPS_LEGACY(cudnnSpatialTfSamplerBackward, handle.cudnn, transformer, one.pointer(), image, inputs[0].data,
                  zero.pointer(), image, outputs[0].data, one.pointer(), samples, inputs[2].data, inputs[1].data,
                  zero.pointer(), outputs[1].data);
}

void run(const OpCall<TransformerParams> &call) {
  const Sizes sizes = sizes_of(call.params, call.inputs);
  const DeviceGuard device(call.context.device);
  const Handle &handle = handle_for(call.context.device, call.context.stream);
  if (sizes.samples() == 0) {
    // The gradients of an empty array are zero; all other results are empty.
    const int count = call.params.kind == SAMPLER_GRADIENT ? 2 : 1;
    for (int i = 0; i < count; ++i) clear(call.outputs[i], handle.stream);
    return;
  }
  (call.params.kernels ? run_kernels : run_cudnn)(handle, call.params, sizes, call.inputs, call.outputs);
}

}  // namespace

DNNOPS_OP(cudnn_spatial_transformer, TransformerParams, shape, run)

}  // namespace dnnops
