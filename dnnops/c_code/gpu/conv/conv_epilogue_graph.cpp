// The epilogue as pointwise operations of the graph API.
//
// For a bias of the arrays' dtype, optionally after an addend and before relu, cuDNN proposes as many kernels that are
// compiled in advance as for a plain convolution. It compiles all other graphs at run time, for channels-last arrays on
// tensor cores and filters that are not flipped.
#include <algorithm>

#include "conv_epilogue.hpp"

namespace dnnops {

namespace {

// Ids of intermediate arrays; those of a call's arrays are small.
constexpr int64_t FIRST_BETWEEN = 1000;

int64_t number_dtype(const ConvCase &conv) { return conv.dtype == DNNOPS_FLOAT64 ? +DNNOPS_FLOAT64 : +DNNOPS_FLOAT32; }

Tensor vector_of(const Tensor &top) {
  Tensor vector = top;
  const int64_t channels = top.shape[1];
  for (int64_t i = 0; i < top.ndim; ++i) {
    vector.shape[i] = i == 1 ? channels : 1;
    vector.strides[i] = i == 1 ? 1 : channels;
  }
  return vector;
}

struct Mode {
  cudnnPointwiseMode_t mode;
  bool has_coef;
  cudnnBackendAttributeName_t coef;
};

Mode mode_of(int64_t activation) {
  switch (activation) {
    case ACTIVATE_RELU: return {CUDNN_POINTWISE_RELU_FWD, false, {}};
    case ACTIVATE_CLIPPED_RELU: return {CUDNN_POINTWISE_RELU_FWD, true, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP};
    case ACTIVATE_TANH: return {CUDNN_POINTWISE_TANH_FWD, false, {}};
    case ACTIVATE_SIGMOID: return {CUDNN_POINTWISE_SIGMOID_FWD, false, {}};
    case ACTIVATE_ELU: return {CUDNN_POINTWISE_ELU_FWD, true, CUDNN_ATTR_POINTWISE_ELU_ALPHA};
    case ACTIVATE_SWISH: return {CUDNN_POINTWISE_SWISH_FWD, true, CUDNN_ATTR_POINTWISE_SWISH_BETA};
    default: fail(DNNOPS_VALUE_ERROR, "activation %lld is unknown", (long long)activation);
  }
}

// Appends operations to a list, each of which takes the result of the last one.
class Chain {
 public:
  Chain(const ConvCase &conv, BackendDescriptor array, const BackendDescriptor &result, int count)
      : conv_(conv), array_(std::move(array)), result_(result), left_(count) {}

  void append(const Mode &how, const BackendDescriptor *operand) {
    const cudnnDataType_t compute = cudnn_dtype(number_dtype(conv_));
    BackendDescriptor operation(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    operation.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &how.mode);
    operation.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (how.has_coef) operation.set(how.coef, CUDNN_TYPE_DOUBLE, 1, &conv_.epilogue.coef);
    if (how.mode == CUDNN_POINTWISE_RELU_FWD) {
      const cudnnNanPropagation_t propagates = CUDNN_PROPAGATE_NAN;
      operation.set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1, &propagates);
    }
    operation.finalize("cudnnBackendFinalize(pointwise)");
    BackendDescriptor between;
    if (--left_) between = graph_array(conv_.tensors[ROLE_TOP], number_dtype(conv_), FIRST_BETWEEN + left_);
    BackendDescriptor node(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    node.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, operation);
    node.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, array_);
    if (operand) node.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *operand);
    node.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, left_ ? between : result_);
    const Scalar one(1, conv_.dtype);
    const cudnnBackendAttributeType_t type = one.is_double ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
    node.set(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, type, 1, one.pointer());
    if (operand) node.set(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, type, 1, one.pointer());
    node.finalize("cudnnBackendFinalize(pointwise operation)");
    nodes.push_back(std::move(node));
    array_ = std::move(between);
  }

  std::vector<BackendDescriptor> nodes;

 private:
  const ConvCase &conv_;
  BackendDescriptor array_;
  const BackendDescriptor &result_;
  int left_;
};

}  // namespace

BackendDescriptor graph_array(const Tensor &tensor, int64_t dtype, int64_t unique_id) {
  BackendDescriptor node(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const cudnnDataType_t type = cudnn_dtype(dtype);
  node.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  node.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, tensor.ndim, tensor.shape);
  node.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, tensor.ndim, tensor.strides);
  node.set_int64(CUDNN_ATTR_TENSOR_UNIQUE_ID, unique_id);
  node.set_int64(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, tensor.alignment);
  const bool is_virtual = unique_id >= FIRST_BETWEEN;
  if (is_virtual) node.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  node.finalize("cudnnBackendFinalize(tensor)");
  return node;
}

bool is_compiled_in_advance(const ConvCase &conv) {
  const Epilogue &epilogue = conv.epilogue;
  return !has_part(epilogue, EPILOGUE_SCALE) && has_part(epilogue, EPILOGUE_BIAS) &&
         epilogue.vector_dtype == conv.dtype && epilogue.activation <= ACTIVATE_RELU;
}

BackendDescriptor before_epilogue(const ConvCase &conv) {
  return graph_array(conv.tensors[ROLE_TOP], number_dtype(conv), FIRST_BETWEEN);
}

std::vector<BackendDescriptor> epilogue_operations(const ConvCase &conv, BackendDescriptor array,
                                                   const BackendDescriptor &result, const int64_t *unique_ids) {
  const Epilogue &epilogue = conv.epilogue;
  const bool activates = epilogue.activation != ACTIVATE_IDENTITY;
  int count = activates;
  for (int operand = EPILOGUE_SCALE; operand < ARRAY_COUNT; ++operand) count += has_part(epilogue, operand);
  Chain chain(conv, std::move(array), result, count);
  for (const int operand : {EPILOGUE_SCALE, EPILOGUE_ADDEND, EPILOGUE_BIAS}) {
    if (!has_part(epilogue, operand)) continue;
    const Tensor &top = conv.tensors[ROLE_TOP];
    const bool is_addend = operand == EPILOGUE_ADDEND;
    Tensor tensor = is_addend ? top : vector_of(top);
    tensor.alignment = epilogue.alignments[operand - EPILOGUE_SCALE];
    const BackendDescriptor described =
        graph_array(tensor, is_addend ? conv.dtype : epilogue.vector_dtype, unique_ids[operand]);
    chain.append({operand == EPILOGUE_SCALE ? CUDNN_POINTWISE_MUL : CUDNN_POINTWISE_ADD, false, {}}, &described);
  }
  if (activates) chain.append(mode_of(epilogue.activation), nullptr);
  return std::move(chain.nodes);
}

}  // namespace dnnops
