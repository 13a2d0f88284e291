// Pooling and its gradient.
#include <algorithm>

#include "../../common/op.hpp"
#include "../../common/pool_problem.hpp"

#include "../base/handle.hpp"
#include "../base/node_state.hpp"
#include "../kernels/kernel_loader.hpp"
#include "pool_cells.hpp"
#include "pool_windows.hpp"

namespace dnnops {

namespace {

enum CudnnPooling { POOLING_MAX = 0, POOLING_INC_PAD = 1, POOLING_EXC_PAD = 2, POOLING_MAX_DETERMINISTIC = 3 };
constexpr int PROPAGATE_NAN = 1;

// Inputs: x; gradient: x, the pooled x, the gradient with respect to it, and perhaps an array to add. Then ws, stride
// and pad, which messages do not describe.
struct PoolParams : PoolWords {
  int64_t gradient, deterministic, adds;
  const char *op() const { return adds ? "GpuDnnPoolGradSum" : gradient ? "GpuDnnPoolGrad" : "GpuDnnPool"; }
  int input_count() const { return gradient ? 3 + static_cast<int>(adds) : 1; }
};

constexpr int ADDEND = 3, MOST_INPUTS = 4;

using PoolCall = OpCall<PoolParams>;

PoolProblem problem_of(const PoolCall &call) {
  return pool_problem(call.params, call.inputs[0], call.inputs + call.params.input_count());
}

const int64_t *result_shape(const PoolCall &call, const PoolProblem &problem) {
  return call.params.gradient ? problem.image : problem.top;
}

struct PoolKey {
  int64_t handle;
  OperandKey arrays[MOST_INPUTS + 1];
  int64_t vectors[9];
};

void read_key(PoolKey &key, const PoolCall &call, const Handle &handle) {
  key.handle = handle.number;
  const int count = call.params.input_count();
  for (int i = 0; i < MOST_INPUTS; ++i) {
    if (i < count)
      read_key(key.arrays[i], call.inputs[i]);
    else
      std::memset(&key.arrays[i], 0, sizeof key.arrays[i]);
  }
  read_key(key.arrays[MOST_INPUTS], call.outputs[0]);
  for (int which = 0; which < 3; ++which) {
    const dnnops_tensor &vector = call.inputs[count + which];
    for (int i = 0; i < 3; ++i)
      key.vectors[3 * which + i] =
          i < vector.shape[0] ? *reinterpret_cast<const int64_t *>(static_cast<const char *>(vector.data) +
                                                                   i * vector.strides[0])
                              : 0;
  }
}

// The addend as rows of bytes, which fill the result: one for each pixel of a channels-last image, otherwise a single
// one.
struct AddendRows {
  int64_t pitch, width, count;
};

struct PoolState : KeyedState<PoolKey> {
  bool empty = false;    // there is nothing to compute
  bool no_windows = false;  // the gradient is zero
  double scale = 1;
  PoolingDescriptor pooling;
  TensorDescriptor image, top, pooled, gradient;
  PoolCells cells;
  PoolWindows windows;
  Kernel kernel;  // if cells or windows exist
  AddendRows addend;
};

int cudnn_mode(const PoolCall &call) {
  switch (call.params.mode) {
    case POOL_MAX: return call.params.deterministic ? POOLING_MAX_DETERMINISTIC : POOLING_MAX;
    case POOL_AVERAGE_EXC_PAD: return POOLING_EXC_PAD;
    default: return POOLING_INC_PAD;  // a sum is this average times the size of the window
  }
}

// cuDNN leaves out windows that extend past the end.
void require_whole_windows(const PoolProblem &problem) {
  for (int64_t i = 0; i < problem.spatial_ndim; ++i) {
    const int64_t padded = problem.image[2 + i] + 2 * problem.pad[i];
    if (padded < problem.window[i] || (padded - problem.window[i]) / problem.stride[i] + 1 != problem.top[2 + i])
      fail(DNNOPS_NOT_SUPPORTED,
           "with ignore_border=False, cuDNN does not support windows that extend past the end, as on spatial axis %lld",
           (long long)i);
  }
}

void set_pooling(PoolState &state, const PoolCall &call, const PoolProblem &problem) {
  const int spatial = static_cast<int>(problem.spatial_ndim);
  const bool widen = spatial == 1;
  int window[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, pad[3] = {0, 0, 0};
  to_int(problem.window, spatial, window + widen);
  to_int(problem.stride, spatial, stride + widen);
  to_int(problem.pad, spatial, pad + widen);
  DNNOPS_LEGACY(cudnnSetPoolingNdDescriptor, state.pooling, cudnn_mode(call), PROPAGATE_NAN, spatial + widen, window,
                pad, stride);
  state.scale = 1;
  if (problem.mode == POOL_SUM)
    for (int i = 0; i < spatial; ++i) state.scale *= static_cast<double>(problem.window[i]);
}

// Whether the channels of each pixel are adjacent and begin at a multiple of 16 bytes, if they fill vectors.
bool has_vectors(const Tensor &tensor) {
  return dense_formats(tensor) & FORMAT_CHANNELS_LAST && is_packed(tensor) && tensor.alignment == 16;
}

AddendRows addend_rows(const PoolCall &call) {
  const Tensor addend = read_tensor(call.inputs[ADDEND]), result = read_tensor(call.outputs[0]);
  const int64_t item = item_size(call.outputs[0].dtype), bytes = elements(result) * item;
  if (!(dense_formats(result) & FORMAT_CHANNELS_LAST)) return {bytes, bytes, 1};
  // All pixels have the same distance, also across rows and images.
  int64_t axis = addend.ndim - 1;
  while (axis > 1 && addend.shape[axis] == 1) --axis;
  if (axis == 1) axis = 0;
  const int64_t width = addend.shape[1] * item;
  return {addend.shape[axis] == 1 ? width : addend.strides[axis] * item, width, bytes / width};
}

PoolAddend addend_kind(const PoolState &state, const PoolCall &call) {
  if (!call.params.adds) return NO_ADDEND;
  const bool aligned = alignment_of(call.inputs[ADDEND].data) == 16 && state.addend.pitch % 16 == 0;
  return aligned ? ADDEND_OF_VECTORS : ADDEND_OF_ELEMENTS;
}

// Lets what follows add to the addend, in the result.
void copy_addend(const PoolState &state, const PoolCall &call) {
  const AddendRows &rows = state.addend;
  const auto stream = static_cast<cudaStream_t>(call.context.stream);
  void *const to = call.outputs[0].data;
  const void *const from = call.inputs[ADDEND].data;
  if (rows.pitch == rows.width)
    DNNOPS_CHECK(cudaMemcpyAsync(to, from, rows.count * rows.width, cudaMemcpyDeviceToDevice, stream));
  else
    DNNOPS_CHECK(cudaMemcpy2DAsync(to, rows.width, from, rows.pitch, rows.width, rows.count, cudaMemcpyDeviceToDevice,
                                   stream));
}

// cuDNN's maximum of a window of -infinity is the lowest finite number.
PoolWindows windows_of(const PoolProblem &problem, const dnnops_tensor &image, const Tensor &top) {
  const int64_t formats = is_packed(top) ? dense_formats(top) : 0;
  if (!formats) return {};
  int64_t strides[5];
  for (int64_t i = 0; i < image.ndim; ++i) strides[i] = image.strides[i] / item_size(image.dtype);
  return pool_windows(problem, strides, !(formats & FORMAT_CONTIGUOUS), image.dtype);
}

// Loads a kernel. Returns false if there is none: cuDNN needs no kernel.
bool loads(PoolState &state, const Handle &handle, const char *program, const char *name, const std::string &options) {
  try {
    state.kernel = load_kernel(handle, program, name, options);
    return true;
  } catch (const Error &error) {
    if (error.status != DNNOPS_NOT_SUPPORTED) throw;
    return false;
  }
}

void prepare(PoolState &state, const PoolCall &call, const Handle &handle) {
  const PoolProblem problem = problem_of(call);
  const dnnops_tensor &output = call.outputs[0];
  const int64_t dtype = call.inputs[0].dtype, ndim = problem.spatial_ndim + 2;
  cudnn_dtype(dtype);
  const int64_t *shape = result_shape(call, problem);
  if (output.ndim != ndim || std::memcmp(output.shape, shape, ndim * sizeof(int64_t)))
    fail(DNNOPS_VALUE_ERROR, "the output has to have the shape %s", list_of(shape, ndim).c_str());
  if (call.params.gradient)
    for (int i = 1; i < 3; ++i)
      if (call.inputs[i].dtype != dtype || call.inputs[i].ndim != ndim ||
          std::memcmp(call.inputs[i].shape, problem.top, ndim * sizeof(int64_t)))
        fail(DNNOPS_VALUE_ERROR, "pooled arrays have to be %s%s", dtype_name(dtype),
             list_of(problem.top, ndim).c_str());
  if (call.params.adds) {
    const dnnops_tensor &addend = call.inputs[ADDEND];
    if (addend.dtype != dtype || addend.ndim != ndim || std::memcmp(addend.shape, shape, ndim * sizeof(int64_t)))
      fail(DNNOPS_VALUE_ERROR, "the addend has to be %s%s", dtype_name(dtype), list_of(shape, ndim).c_str());
  }
  state.empty = element_count(shape, ndim) == 0;
  state.no_windows = element_count(problem.top, ndim) == 0;
  if (call.params.adds && !state.empty) state.addend = addend_rows(call);
  if (!state.empty && !state.no_windows) {
    require_whole_windows(problem);
    Tensor tensors[4];
    Tensor *all[4];
    const int count = call.params.gradient ? 4 : 2;
    for (int i = 0; i < count; ++i) {
      tensors[i] = read_tensor(i == count - 1 ? output : call.inputs[i]);  // the addend has no descriptor
      all[i] = &tensors[i];
    }
    state.cells = {};
    // The kernels do not read the pooled image.
    if (has_vectors(tensors[0]) && (call.params.gradient ? has_vectors(tensors[2]) && has_vectors(tensors[3])
                                                         : has_vectors(tensors[1])))
      state.cells = pool_cells(problem, call.params.gradient, dtype, item_size(dtype), addend_kind(state, call));
    if (state.cells.exist) {
      state.cells.exist = loads(state, handle, state.cells.program, state.cells.kernel, state.cells.options);
      if (state.cells.exist) return;
    }
    state.windows = {};
    const auto is_channels_last = [](const Tensor &t) {
      return is_packed(t) && dense_formats(t) == FORMAT_CHANNELS_LAST;
    };
    if (!call.params.gradient)
      state.windows = windows_of(problem, call.inputs[0], tensors[1]);
    else if (std::all_of(tensors, tensors + 4, is_channels_last))
      state.windows = pool_windows_grad(problem, call.params.adds, dtype);
    if (state.windows.exist) {
      const char *name = call.params.gradient ? "max_pool_windows_grad" : "max_pool_windows";
      state.windows.exist = loads(state, handle, "pool_windows", name, state.windows.options);
      if (state.windows.exist) return;
    }
    set_pooling(state, call, problem);
    canonicalize_together(all, count);
    set_descriptor(state.image, tensors[0], dtype);
    if (call.params.gradient) {
      set_descriptor(state.pooled, tensors[1], dtype);
      set_descriptor(state.top, tensors[2], dtype);
      set_descriptor(state.gradient, tensors[3], dtype);
    } else {
      set_descriptor(state.top, tensors[1], dtype);
    }
  }
}

void shape(const PoolCall &call) {
  const PoolProblem problem = problem_of(call);
  const int64_t dtype = call.inputs[0].dtype;
  cudnn_dtype(dtype);
  describe_output(call.outputs[0], dtype, result_shape(call, problem), problem.spatial_ndim + 2, FORMAT_CONTIGUOUS);
}

void run(const PoolCall &call) {
  const dnnops_context &context = call.context;
  const dnnops_tensor &output = call.outputs[0];
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  HeldState<PoolState> held(context);
  PoolState &state = *held;
  PoolKey key;
  read_key(key, call, handle);
  state.prepare_for(key, [&] { prepare(state, call, handle); });
  if (state.empty) return;
  if (state.no_windows && call.params.adds) return copy_addend(state, call);
  if (state.no_windows) {
    const int64_t count = element_count(output.shape, output.ndim);
    DNNOPS_CHECK(cudaMemsetAsync(output.data, 0, count * item_size(output.dtype),
                                 static_cast<cudaStream_t>(context.stream)));
    return;
  }
  if (state.cells.exist) {
    PoolCellsParams params = state.cells.params;
    params.x = call.inputs[0].data;
    if (call.params.gradient) params.gz = call.inputs[2].data;
    if (call.params.adds) {
      params.addend = call.inputs[ADDEND].data;
      params.addend_pitch = state.addend.pitch / item_size(output.dtype);
    }
    params.result = output.data;
    void *arguments[] = {&params};
    launch_kernel(state.kernel, state.cells.blocks, CELL_THREADS, 0, context.stream, arguments);
    return;
  }
  if (state.windows.exist) {
    if (call.params.adds) copy_addend(state, call);
    PoolWindowsParams params = state.windows.params;
    params.x = call.inputs[0].data;
    if (call.params.gradient) {
      params.pooled = call.inputs[1].data;
      params.gz = call.inputs[2].data;
    }
    params.result = output.data;
    void *arguments[] = {&params};
    launch_kernel(state.kernel, state.windows.blocks, WINDOW_THREADS, 0, context.stream, arguments);
    return;
  }
  const Scalar scale(state.scale, output.dtype), zero(0, output.dtype), one(1, output.dtype);
  if (call.params.adds) copy_addend(state, call);
  if (call.params.gradient)
    DNNOPS_LEGACY(cudnnPoolingBackward, handle.cudnn, state.pooling, scale.pointer(), state.pooled,
                  call.inputs[1].data, state.top, call.inputs[2].data, state.image, call.inputs[0].data,
                  (call.params.adds ? one : zero).pointer(), state.gradient, output.data);
  else
    DNNOPS_LEGACY(cudnnPoolingForward, handle.cudnn, state.pooling, scale.pointer(), state.image, call.inputs[0].data,
                  zero.pointer(), state.top, output.data);
}

}  // namespace

DNNOPS_OP(cudnn_pool, PoolParams, shape, run)

}  // namespace dnnops
