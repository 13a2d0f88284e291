// float32 matrix products, in the same threads as the other oneDNN Ops.
#include <cstring>

#include "../../common/op.hpp"
#include "plan.hpp"

namespace dnnops {
namespace {

// A matrix for dnnl_sgemm: row-major, possibly transposed.
struct Matrix {
  const float *data;
  int64_t leading;
  char transposed;
};

// Describes the matrix without a copy. Returns false if neither axis is contiguous.
bool as_stored(const dnnops_tensor &tensor, Matrix &matrix) {
  int64_t strides[2];
  const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
  if (!addressable_strides(tensor, strides)) return false;
  matrix.data = static_cast<const float *>(tensor.data);
  if ((columns == 1 || strides[1] == 1) && (rows == 1 || strides[0] >= columns)) {
    matrix.transposed = 'N';
    matrix.leading = rows == 1 ? columns : strides[0];
    return true;
  }
  if ((rows == 1 || strides[0] == 1) && (columns == 1 || strides[1] >= rows)) {
    matrix.transposed = 'T';
    matrix.leading = columns == 1 ? rows : strides[1];
    return true;
  }
  return false;
}

float scalar(const dnnops_tensor &operand) {
  if (operand.dtype != DNNOPS_FLOAT32 || operand.ndim != 0)
    fail(DNNOPS_TYPE_ERROR, "alpha and beta have to be float32 scalars");
  return *static_cast<const float *>(operand.data);
}

// Inputs: x, y or, as in PyTensor's Gemm, z, alpha, x, y, beta.
struct Params {
  int64_t is_gemm;
  const char *op() const { return is_gemm ? "OneDnnGemm" : "OneDnnDot"; }
  int input_count() const { return is_gemm ? 5 : 2; }
};

struct Operands {
  const dnnops_tensor *x, *y, *z = nullptr;
  float alpha = 1, beta = 0;
  explicit Operands(const OpCall<Params> &call) : x(call.inputs), y(call.inputs + 1) {
    if (call.params.is_gemm) {
      const dnnops_tensor *inputs = z = call.inputs;
      alpha = scalar(inputs[1]);
      x = inputs + 2;
      y = inputs + 3;
      beta = scalar(inputs[4]);
    }
  }
};

void shape(const OpCall<Params> &call) {
  const Operands operands(call);
  dnnops_tensor &output = call.outputs[0];
  for (const dnnops_tensor *matrix : {operands.x, operands.y, operands.z ? operands.z : operands.x}) {
    dnnl_dtype(matrix->dtype);
    if (matrix->ndim != 2) fail(DNNOPS_TYPE_ERROR, "expected matrices, got %s", describe(*matrix).c_str());
  }
  if (operands.x->shape[1] != operands.y->shape[0])
    fail(DNNOPS_VALUE_ERROR, "%s and %s do not match", list_of(operands.x->shape, 2).c_str(),
         list_of(operands.y->shape, 2).c_str());
  set_output(output, DNNOPS_FLOAT32, {operands.x->shape[0], operands.y->shape[1]});
  if (operands.z && std::memcmp(operands.z->shape, output.shape, 2 * sizeof(int64_t)))
    fail(DNNOPS_VALUE_ERROR, "%s cannot be added to a product of shape %s", list_of(operands.z->shape, 2).c_str(),
         list_of(output.shape, 2).c_str());
}

void run(const OpCall<Params> &call) {
  const Operands operands(call);
  const dnnops_tensor &output = call.outputs[0];
  const int64_t m = output.shape[0], n = output.shape[1], k = operands.x->shape[1];
  if (m == 0 || n == 0) return;
  Matrix x, y, target;
  const bool x_stored = as_stored(*operands.x, x), y_stored = as_stored(*operands.y, y);
  const bool in_place = as_stored(output, target) && target.transposed == 'N';
  const auto bytes = [](int64_t rows, int64_t columns) { return (size_t)(rows * columns) * sizeof(float); };
  const size_t x_bytes = x_stored ? 0 : bytes(m, k), y_bytes = y_stored ? 0 : bytes(k, n);
  char *scratch = thread_scratch(x_bytes + y_bytes + (in_place ? 0 : bytes(m, n)));
  if (!x_stored) {
    pack(*operands.x, scratch, false);
    x = {reinterpret_cast<float *>(scratch), k, 'N'};
  }
  if (!y_stored) {
    pack(*operands.y, scratch + x_bytes, false);
    y = {reinterpret_cast<float *>(scratch + x_bytes), n, 'N'};
  }
  float *result = in_place ? static_cast<float *>(output.data) : reinterpret_cast<float *>(scratch + x_bytes + y_bytes);
  const int64_t leading = in_place ? target.leading : n;
  dnnops_tensor product = output;
  product.data = result;
  product.strides[0] = leading * (int64_t)sizeof(float);
  product.strides[1] = sizeof(float);
  if (operands.z && operands.beta != 0 && operands.z->data != result) copy_matrix(*operands.z, product);
  if (k == 0) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        float &value = result[i * leading + j];
        value = operands.beta == 0 ? 0 : operands.beta * value;
      }
  } else {
    DNNL_CHECK(dnnl_sgemm(x.transposed, y.transposed, m, n, k, operands.alpha, x.data, x.leading, y.data, y.leading,
                          operands.beta, result, leading));
  }
  if (!in_place) copy_matrix(product, output);
}

}  // namespace

DNNOPS_OP(onednn_gemm, Params, shape, run)

}  // namespace dnnops
