// Reductions over any axes.
#include <algorithm>
#include <array>

#include "../../common/op.hpp"
#include "../../common/shapes.hpp"
#include "../base/handle.hpp"
#include "../kernels/kernel_loader.hpp"
#include "../base/merged_axes.hpp"
#include "../base/node_state.hpp"

namespace dnnops {

namespace {

// Input: x. Outputs: the values, and the int64 indices if requested.
struct ReductionParams {
  int64_t reduction;  // a cudnnReduceTensorOp_t
  int64_t axes;       // a bit for each axis that is reduced
  int64_t dtype, indices;
  static const char *op() { return "GpuDnnReduction"; }
  static int input_count() { return 1; }
};

enum CudnnReduction {
  REDUCE_ADD = 0,
  REDUCE_MUL = 1,
  REDUCE_MIN = 2,
  REDUCE_MAX = 3,
  REDUCE_AMAX = 4,
  REDUCE_AVG = 5,
  REDUCE_NORM1 = 6,
  REDUCE_NORM2 = 7
};
constexpr int PROPAGATE_NAN = 1, FLATTENED_INDICES = 1, INDICES_OF_32_BITS = 0;
constexpr int64_t INDEX_BYTES = 4;

// The same values as in reduction.cuh.
constexpr unsigned THREADS = 256, MAX_BLOCKS = 2112;
struct Launch {
  const void *from;
  void *to;
  long long count;
};

bool is_reduced(const ReductionParams &params, int64_t axis) { return params.axes >> axis & 1; }

bool is_extremum(const ReductionParams &params) {
  return params.reduction == REDUCE_MIN || params.reduction == REDUCE_MAX || params.reduction == REDUCE_AMAX;
}

int64_t compute_dtype(const dnnops_tensor &x) { return x.dtype == DNNOPS_FLOAT64 ? DNNOPS_FLOAT64 : DNNOPS_FLOAT32; }

void check_operands(const ReductionParams &params, const dnnops_tensor &x) {
  const bool fits = x.dtype == params.dtype || (x.dtype == DNNOPS_FLOAT16 && params.dtype == DNNOPS_FLOAT32);
  if (x.dtype == DNNOPS_BFLOAT16 || !fits) {
    cudnn_dtype(x.dtype);
    fail(DNNOPS_TYPE_ERROR, "cuDNN does not reduce %s to %s", dtype_name(x.dtype), dtype_name(params.dtype));
  }
  if (x.ndim > DNNOPS_MAX_NDIM || params.axes >> x.ndim)
    fail(DNNOPS_VALUE_ERROR, "the axes to reduce are out of bounds for an array of %lld dimensions",
         (long long)x.ndim);
  bool reduces_nothing = false;
  for (int64_t i = 0; i < x.ndim; ++i) reduces_nothing = reduces_nothing || (is_reduced(params, i) && !x.shape[i]);
  int64_t results = 1;
  for (int64_t i = 0; i < x.ndim; ++i)
    if (!is_reduced(params, i)) results *= x.shape[i];
  if (reduces_nothing && results && is_extremum(params))
    fail(DNNOPS_VALUE_ERROR, "no elements to reduce: the array has shape %s", list_of(x.shape, x.ndim).c_str());
}

void set_shape(const ReductionParams &params, const dnnops_tensor &x, dnnops_tensor &output, int64_t dtype) {
  output.dtype = dtype;
  output.ndim = 0;
  for (int64_t i = 0; i < x.ndim; ++i)
    if (!is_reduced(params, i)) output.shape[output.ndim++] = x.shape[i];
}

void require_shape(const ReductionParams &params, const dnnops_tensor &x, const dnnops_tensor &output) {
  dnnops_tensor expected;
  set_shape(params, x, expected, output.dtype);
  if (!same_shape(output, expected))
    fail(DNNOPS_VALUE_ERROR, "the output has to have the shape %s", list_of(expected.shape, expected.ndim).c_str());
  require_contiguous(output);
}

enum Way { NOTHING, CUDNN, ELEMENTS, FILL };

struct ReductionKey {
  int64_t handle;
  OperandKey x, output;
};

struct ReductionState : KeyedState<ReductionKey> {
  Way way = NOTHING;
  TensorDescriptor x, output;
  ReduceTensorDescriptor reduction;
  size_t workspace_bytes = 0, indices_bytes = 0;
  Kernel elements, widen;
};

void describe_reduction(ReductionState &state, const ReductionParams &params, const dnnops_tensor &x) {
  bool marked[DNNOPS_MAX_NDIM];
  for (int64_t i = 0; i < x.ndim; ++i) marked[i] = is_reduced(params, i);
  const MergedAxes axes = merge_axes(x.shape, x.ndim, marked);
  set_merged_descriptor(state.x, axes, false, x.dtype);
  set_merged_descriptor(state.output, axes, true, params.dtype);
  DNNOPS_LEGACY(cudnnSetReduceTensorDescriptor, state.reduction, static_cast<int>(params.reduction),
                static_cast<int>(cudnn_dtype(compute_dtype(x))), PROPAGATE_NAN,
                params.indices ? FLATTENED_INDICES : 0, INDICES_OF_32_BITS);
}

Way way_of(const ReductionParams &params, const dnnops_tensor &x) {
  int64_t results = 1, reduced = 1;
  for (int64_t i = 0; i < x.ndim; ++i) (is_reduced(params, i) ? reduced : results) *= x.shape[i];
  // cuDNN rejects reductions over no axes.
  return !results ? NOTHING : !reduced ? FILL : reduced == 1 ? ELEMENTS : CUDNN;
}

void prepare(ReductionState &state, const ReductionParams &params, const Handle &handle,
             const dnnops_tensor &x, const dnnops_tensor *outputs) {
  check_operands(params, x);
  require_contiguous(x);
  for (int64_t i = 0; i <= params.indices; ++i) require_shape(params, x, outputs[i]);
  state.way = way_of(params, x);
  state.workspace_bytes = state.indices_bytes = 0;
  if (state.way == CUDNN) {
    describe_reduction(state, params, x);
    if (params.indices) {
      DNNOPS_LEGACY(cudnnGetReductionIndicesSize, handle.cudnn, state.reduction, state.x, state.output,
                    &state.indices_bytes);
      const int64_t results = element_count(outputs[0].shape, outputs[0].ndim);
      state.indices_bytes = std::max<size_t>(state.indices_bytes, results * INDEX_BYTES);
      state.widen = load_kernel(handle, "reduction", "widen_indices", "-DFROM=0 -DTO=0 -DABSOLUTE=0");
    }
    DNNOPS_LEGACY(cudnnGetReductionWorkspaceSize, handle.cudnn, state.reduction, state.x, state.output,
                  &state.workspace_bytes);
  } else if (state.way == ELEMENTS) {
    const int64_t reduction = params.reduction;
    const bool absolute = reduction == REDUCE_AMAX || reduction == REDUCE_NORM1 || reduction == REDUCE_NORM2;
    state.elements = load_kernel(handle, "reduction", "copy_elements",
                                 "-DFROM=" + std::to_string(x.dtype) + " -DTO=" + std::to_string(params.dtype) +
                                     " -DABSOLUTE=" + std::to_string(absolute));
  } else if (state.way == FILL) {
    const MergedAxes axes = merge_axes(outputs[0].shape, outputs[0].ndim, std::array<bool, DNNOPS_MAX_NDIM>{}.data());
    set_merged_descriptor(state.output, axes, false, params.dtype);
  }
}

void launch(const Kernel &kernel, const void *from, void *to, int64_t count, void *stream) {
  Launch arguments = {from, to, count};
  void *pointers[] = {&arguments};
  const int64_t blocks = std::min<int64_t>(MAX_BLOCKS, (count + THREADS - 1) / THREADS);
  launch_kernel(kernel, static_cast<unsigned>(blocks), THREADS, 0, stream, pointers);
}

// Fills in the results of empty reductions: 0 for sums, 1 for products, NaN for means.
void fill(const ReductionState &state, const ReductionParams &params, const Handle &handle, void *output) {
  const int at = params.reduction == REDUCE_MUL ? 1 : params.reduction == REDUCE_AVG ? 2 : 0;
  static const float floats[] = {0, 1, __builtin_nanf("")};
  static const double doubles[] = {0, 1, __builtin_nan("")};
  static const uint16_t halves[] = {0, 0x3c00, 0x7e00};
  const void *value = params.dtype == DNNOPS_FLOAT64   ? static_cast<const void *>(&doubles[at])
                      : params.dtype == DNNOPS_FLOAT16 ? static_cast<const void *>(&halves[at])
                                                       : &floats[at];
  DNNOPS_LEGACY(cudnnSetTensor, handle.cudnn, state.output, output, value);
}

void shape(const OpCall<ReductionParams> &call) {
  const dnnops_tensor &x = call.inputs[0];
  check_operands(call.params, x);
  set_shape(call.params, x, call.outputs[0], call.params.dtype);
  if (call.params.indices) set_shape(call.params, x, call.outputs[1], DNNOPS_INT64);
}

void run(const OpCall<ReductionParams> &call) {
  const dnnops_context &context = call.context;
  const ReductionParams &params = call.params;
  const dnnops_tensor &x = call.inputs[0], *outputs = call.outputs;
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  HeldState<ReductionState> held(context);
  ReductionState &state = *held;
  ReductionKey key;
  key.handle = handle.number;
  read_key(key.x, x);
  read_key(key.output, outputs[0]);
  state.prepare_for(key, [&] { prepare(state, params, handle, x, outputs); });
  const int64_t results = element_count(outputs[0].shape, outputs[0].ndim);
  if (state.way == NOTHING) return;
  if (state.way == FILL) return fill(state, params, handle, outputs[0].data);
  if (state.way == ELEMENTS) {
    launch(state.elements, x.data, outputs[0].data, results, context.stream);
    if (params.indices)
      DNNOPS_CHECK(cudaMemsetAsync(outputs[1].data, 0, results * sizeof(int64_t),
                                   static_cast<cudaStream_t>(context.stream)));
    return;
  }
  const size_t aligned = (state.indices_bytes + 255) / 256 * 256;
  const Workspace workspace(*handle.arena, static_cast<int64_t>(aligned + state.workspace_bytes));
  char *const scratch = static_cast<char *>(workspace.pointer());
  const Scalar one(1, x.dtype), zero(0, x.dtype);
  DNNOPS_LEGACY(cudnnReduceTensor, handle.cudnn, state.reduction, state.indices_bytes ? scratch : nullptr,
                state.indices_bytes, state.workspace_bytes ? scratch + aligned : nullptr, state.workspace_bytes,
                one.pointer(), state.x, x.data, zero.pointer(), state.output, outputs[0].data);
  if (params.indices) launch(state.widen, scratch, outputs[1].data, results, context.stream);
}

// Makes cuDNN's descriptors; needs no GPU.
void make_descriptors(const OpCall<ReductionParams> &call) {
  const dnnops_tensor &x = call.inputs[0];
  check_operands(call.params, x);
  ReductionState state;
  if (way_of(call.params, x) == CUDNN) describe_reduction(state, call.params, x);
}

}  // namespace

DNNOPS_OP(cudnn_reduction, ReductionParams, shape, run)
DNNOPS_FUNCTION(cudnn_reduction_describe, ReductionParams, make_descriptors)

}  // namespace dnnops
