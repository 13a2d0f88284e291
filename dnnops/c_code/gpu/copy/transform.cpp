// Scaled sums of arrays, one of which may be broadcast, and scaled copies in another memory format.
#include "../../common/op.hpp"
#include "../../common/shapes.hpp"
#include "../base/handle.hpp"
#include "../base/merged_axes.hpp"
#include "../base/node_state.hpp"

namespace dnnops {

namespace {

// cudnnAddTensor supports 4 or 5 axes.
constexpr int MAX_ADDED = 5;

double read_factor(const char *name, const dnnops_tensor &factor) {
  if (factor.dtype != DNNOPS_FLOAT64 || factor.ndim != 0)
    fail(DNNOPS_TYPE_ERROR, "%s has to be a float64 scalar", name);
  double value;
  std::memcpy(&value, factor.data, sizeof value);
  return value;
}

void check_dtype(const dnnops_tensor &array) {
  cudnn_dtype(array.dtype);
  if (array.dtype == DNNOPS_BFLOAT16) fail(DNNOPS_TYPE_ERROR, "expected float16, float32 or float64, got bfloat16");
}

void require_shape(const dnnops_tensor &x, const dnnops_tensor &output) {
  if (!same_shape(output, x))
    fail(DNNOPS_VALUE_ERROR, "the output has to have the shape %s", list_of(x.shape, x.ndim).c_str());
}

// -- alpha * a + beta * c ------------------------------------------------------------------------

// Inputs: a, c, alpha, beta.
struct AddParams {
  static const char *op() { return "GpuDnnAddTensor"; }
  static int input_count() { return 4; }
};

struct AddKey {
  int64_t handle;
  OperandKey a, c, output;
};

struct AddState : KeyedState<AddKey> {
  bool empty = false;
  TensorDescriptor a, c;
};

void check_add(const dnnops_tensor &a, const dnnops_tensor &c) {
  check_dtype(a);
  bool fits = a.dtype == c.dtype && a.ndim == c.ndim;
  for (int64_t i = 0; fits && i < a.ndim; ++i) fits = a.shape[i] == c.shape[i] || a.shape[i] == 1;
  if (!fits)
    fail(DNNOPS_VALUE_ERROR, "a must have the dtype of c and a shape that broadcasts to that of c");
}

void describe(AddState &state, const dnnops_tensor &a, const dnnops_tensor &c) {
  bool marked[DNNOPS_MAX_NDIM];
  for (int64_t i = 0; i < c.ndim; ++i) marked[i] = a.shape[i] != c.shape[i];
  const MergedAxes axes = merge_axes(c.shape, c.ndim, marked);
  if (axes.count > MAX_ADDED)
    fail(DNNOPS_NOT_SUPPORTED,
         "cuDNN adds arrays of up to %d dimensions, got %d after merging adjacent axes",
         MAX_ADDED, axes.count);
  set_merged_descriptor(state.a, axes, true, a.dtype);
  set_merged_descriptor(state.c, axes, false, c.dtype);
}

void shape(const OpCall<AddParams> &call) {
  check_add(call.inputs[0], call.inputs[1]);
  read_factor("alpha", call.inputs[2]);
  read_factor("beta", call.inputs[3]);
  set_output(call.outputs[0], call.inputs[1]);
}

void run(const OpCall<AddParams> &call) {
  const dnnops_context &context = call.context;
  const dnnops_tensor *inputs = call.inputs, &output = call.outputs[0];
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  const dnnops_tensor &a = inputs[0], &c = inputs[1];
  HeldState<AddState> held(context);
  AddState &state = *held;
  AddKey key;
  key.handle = handle.number;
  read_key(key.a, a);
  read_key(key.c, c);
  read_key(key.output, output);
  state.prepare_for(key, [&] {
    check_add(a, c);
    require_shape(c, output);
    require_contiguous(a);
    require_contiguous(c);
    require_contiguous(output);
    state.empty = !element_count(c.shape, c.ndim);
    if (!state.empty) describe(state, a, c);
  });
  if (state.empty) return;
  const double beta_value = read_factor("beta", inputs[3]);
  // With a beta of 0, the contents of c do not matter, even NaN.
  if (output.data != c.data && beta_value != 0)
    DNNOPS_CHECK(cudaMemcpyAsync(output.data, c.data, element_count(c.shape, c.ndim) * item_size(c.dtype),
                                 cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(context.stream)));
  const Scalar alpha(read_factor("alpha", inputs[2]), c.dtype), beta(beta_value, c.dtype);
  DNNOPS_LEGACY(cudnnAddTensor, handle.cudnn, alpha.pointer(), state.a, a.data, beta.pointer(), state.c, output.data);
}

// -- alpha * x, in another memory format -----------------------------------------------------------

// Inputs: x, alpha.
struct TransformParams {
  static const char *op() { return "GpuDnnTransform"; }
  static int input_count() { return 2; }
};

struct TransformKey {
  int64_t handle;
  OperandKey x, output;
};

struct TransformState : KeyedState<TransformKey> {
  bool empty = false;
  TensorDescriptor x, output;
};

void describe(TransformState &state, const dnnops_tensor &x, const dnnops_tensor &output) {
  Tensor tensors[2] = {read_tensor(x), read_tensor(output)};
  for (Tensor &tensor : tensors) canonicalize(tensor, dense_format(tensor, FORMAT_CONTIGUOUS));
  set_descriptor(state.x, tensors[0], x.dtype);
  set_descriptor(state.output, tensors[1], x.dtype);
}

void shape(const OpCall<TransformParams> &call) {
  check_dtype(call.inputs[0]);
  read_factor("alpha", call.inputs[1]);
  set_output(call.outputs[0], call.inputs[0]);
}

void run(const OpCall<TransformParams> &call) {
  const dnnops_context &context = call.context;
  const dnnops_tensor *inputs = call.inputs, &output = call.outputs[0];
  const DeviceGuard device(context.device);
  const Handle &handle = handle_for(context.device, context.stream);
  const dnnops_tensor &x = inputs[0];
  HeldState<TransformState> held(context);
  TransformState &state = *held;
  TransformKey key;
  key.handle = handle.number;
  read_key(key.x, x);
  read_key(key.output, output);
  state.prepare_for(key, [&] {
    check_dtype(x);
    require_shape(x, output);
    state.empty = !element_count(x.shape, x.ndim);
    if (!state.empty) describe(state, x, output);
  });
  if (state.empty) return;
  const Scalar alpha(read_factor("alpha", inputs[1]), x.dtype), zero(0, x.dtype);
  DNNOPS_LEGACY(cudnnTransformTensor, handle.cudnn, alpha.pointer(), state.x, x.data, zero.pointer(), state.output,
                output.data);
}

// -- cuDNN's descriptors, for tests without a GPU --------------------------------------------------

void make_descriptors(const OpCall<AddParams> &call) {
  const dnnops_tensor &a = call.inputs[0], &c = call.inputs[1];
  check_add(a, c);
  AddState state;
  if (element_count(c.shape, c.ndim)) describe(state, a, c);
}

void make_descriptors(const OpCall<TransformParams> &call) {
  const dnnops_tensor &x = call.inputs[0];
  check_dtype(x);
  TransformState state;
  if (element_count(x.shape, x.ndim)) describe(state, x, call.outputs[0]);
}

}  // namespace

DNNOPS_OP(cudnn_add_tensor, AddParams, shape, run)
DNNOPS_FUNCTION(cudnn_add_tensor_describe, AddParams, make_descriptors)
DNNOPS_OP(cudnn_transform, TransformParams, shape, run)
DNNOPS_FUNCTION(cudnn_transform_describe, TransformParams, make_descriptors)

}  // namespace dnnops
