#include "conv_call.hpp"

#include <cmath>

namespace dnnops {

namespace {

// The input or output that holds the array of each role, by direction; 2 is the output.
const int operand_of_role[3][3] = {{0, 1, 2}, {2, 0, 1}, {0, 2, 1}};

double scalar_operand(const dnnops_tensor &operand) {
  if (operand.dtype != DNNOPS_FLOAT64) fail(DNNOPS_TYPE_ERROR, "alpha and beta have to be float64 scalars");
  return *static_cast<const double *>(operand.data);
}

// Copies a spatial parameter. One axis becomes two, as read_tensor() widens arrays.
void widen(const int64_t *from, int64_t spatial, int64_t unit, int64_t *to) {
  to[0] = unit;
  std::memcpy(spatial == 1 ? to + 1 : to, from, spatial * sizeof(int64_t));
}

}  // namespace

Call::Call(const ConvParams &params_, const dnnops_tensor *inputs_, dnnops_tensor *outputs)
    : params(params_), inputs(inputs_), output(outputs[0]), out(nullptr), beta(0), epilogue() {
  const int first = params.input_count();
  alpha = scalar_operand(inputs[first]);
  if (params.has_out) {
    beta = scalar_operand(inputs[first + 1]);
    out = &inputs[first + 2];
  }
  const dnnops_tensor *next = &inputs[first + 1];
  for (int i = 0; i < 3; ++i)
    if (params.parts >> i & 1) epilogue[i] = next++;
}

const dnnops_tensor &Call::of_role(int role) const {
  const int operand = operand_of_role[params.direction][role];
  return operand == 2 ? output : inputs[operand];
}

void Call::read_pointers(Launch &launch) const {
  for (int role = 0; role < 3; ++role) launch.pointers[role] = of_role(role).data;
  for (int i = 0; i < 3; ++i) launch.pointers[EPILOGUE_SCALE + i] = epilogue[i] ? epilogue[i]->data : nullptr;
}

// The problem of a call. Padding that differs before and after an axis is rejected: the legacy API cannot
// express it, and with the graph API cuDNN 9.19 silently computed wrong gradients with respect to the
// filters. The Ops pad the image themselves instead (dnnops/gpu/conv_padding.py).
ConvProblem checked_problem(const ConvParams &params, const dnnops_tensor *inputs) {
  const ConvProblem problem = conv_problem(params.direction, params.geometry, inputs);
  const ConvGeometry &geometry = problem.geometry;
  for (int64_t i = 0; i < geometry.spatial_ndim; ++i)
    if (geometry.pad_begin[i] != geometry.pad_end[i])
      fail(DNNOPS_NOT_SUPPORTED,
           "padding of %lld before and %lld after spatial axis %lld: cuDNN %zu is not used for asymmetric padding,"
           " because its gradients were wrong; pad the image with zeros",
           (long long)geometry.pad_begin[i], (long long)geometry.pad_end[i], (long long)i, cudnnGetVersion());
  return problem;
}

int64_t compute_dtype(int64_t precision, int64_t dtype) {
  const bool widens = dtype == DNNOPS_FLOAT16 || dtype == DNNOPS_BFLOAT16;
  if (precision == PRECISION_AS_INPUT_F32) return widens ? +DNNOPS_FLOAT32 : dtype;
  if (precision == PRECISION_AS_INPUT) return dtype == DNNOPS_BFLOAT16 ? +DNNOPS_FLOAT32 : dtype;
  if (precision != dtype && !(widens && precision == DNNOPS_FLOAT32))
    fail(DNNOPS_VALUE_ERROR, "precision %s is not supported for %s arrays", dtype_name(precision), dtype_name(dtype));
  return precision;
}

// Describes the operands of the epilogue, which have to suit the result.
void describe_epilogue(Epilogue &epilogue, const Call &call) {
  const dnnops_tensor &output = call.output;
  epilogue.parts = call.params.parts;
  epilogue.activation = call.params.activation;
  epilogue.coef = call.params.coef;
  for (int i = 0; i < 3; ++i) {
    const dnnops_tensor *const operand = call.epilogue[i];
    if (!operand) continue;
    epilogue.alignments[i] = alignment_of(operand->data);
    const bool is_addend = EPILOGUE_SCALE + i == EPILOGUE_ADDEND;
    const char *const name = is_addend ? "the addend" : i ? "the bias" : "the scale";
    bool fits = operand->ndim == output.ndim && (!is_addend || operand->dtype == output.dtype);
    for (int64_t axis = 0; fits && axis < output.ndim; ++axis) {
      const int64_t size = operand->shape[axis];
      fits = size == (is_addend || axis == 1 ? output.shape[axis] : 1);
      if (is_addend && size > 1) fits = fits && operand->strides[axis] == output.strides[axis];
      if (!is_addend && axis == 1 && size > 1) fits = fits && operand->strides[1] == item_size(operand->dtype);
    }
    if (!fits)
      fail(DNNOPS_VALUE_ERROR, "%s does not suit the result: got %s, and %s", name, describe(*operand).c_str(),
           describe(output).c_str());
    if (is_addend) continue;
    const bool is_usual = operand->dtype == output.dtype ||
                          (operand->dtype == DNNOPS_FLOAT32 && output.dtype != DNNOPS_FLOAT64);
    if (!is_usual || (call.epilogue[0] && operand->dtype != call.epilogue[0]->dtype))
      fail(DNNOPS_TYPE_ERROR, "scale and bias have to have one dtype, float32 or that of the arrays, got %s",
           dtype_name(operand->dtype));
    epilogue.vector_dtype = operand->dtype;
  }
}

void describe_case(ConvCase &conv, const ConvProblem &problem, const Call &call, int64_t handle) {
  std::memset(&conv, 0, sizeof conv);
  const ConvGeometry &geometry = problem.geometry;
  const ConvParams &params = call.params;
  const int64_t spatial = geometry.spatial_ndim;
  conv.direction = params.direction;
  conv.spatial_ndim = spatial == 1 ? 2 : spatial;
  conv.dtype = call.inputs[0].dtype;
  conv.compute = compute_dtype(params.precision, conv.dtype);
  conv.groups = geometry.groups;
  conv.flip = geometry.filter_flip && element_count(problem.filters + 2, spatial) > 1;
  widen(geometry.stride, spatial, 1, conv.stride);
  widen(geometry.dilation, spatial, 1, conv.dilation);
  widen(geometry.pad_begin, spatial, 0, conv.pad);
  Tensor *tensors[3];
  for (int role = 0; role < 3; ++role) {
    conv.tensors[role] = read_tensor(call.of_role(role));
    tensors[role] = &conv.tensors[role];
  }
  canonicalize_together(tensors, 3);
  conv.allow_tf32 = params.allow_tf32;
  conv.deterministic = params.deterministic || params.policy == POLICY_DETERMINISTIC;
  conv.workspace_limit = params.workspace_limit;
  conv.time_limit = is_timed(params.policy) ? params.time_limit : 0;
  conv.handle = handle;
  describe_epilogue(conv.epilogue, call);
}

void fix_scalars(ConvCase &conv, const Call &call) {
  conv.fixed_scalars = 1;
  conv.alpha = call.alpha;
  conv.beta = call.beta;
}

}  // namespace dnnops
