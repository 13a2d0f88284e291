// Dense layers: a product, a bias, the sum with another array and an activation in one call of cuBLASLt.
#include <climits>

#include "../../common/op.hpp"
#include "../../common/shapes.hpp"
#include "../base/merged_axes.hpp"
#include "../kernels/kernel_loader.hpp"
#include "dense_params.hpp"
#include "product_plan.hpp"

namespace dnnops {

namespace {

struct DenseWords {
  int64_t settings, activation, has_bias, has_addend;
  static const char *op() { return "GpuDense"; }
  int input_count() const { return static_cast<int>(2 + has_bias + has_addend); }
};

struct Operands {
  const dnnops_tensor *x, *w, *bias = nullptr, *addend = nullptr;
  explicit Operands(const OpCall<DenseWords> &call) : x(call.inputs), w(call.inputs + 1) {
    const dnnops_tensor *next = call.inputs + 2;
    if (call.params.has_bias) bias = next++;
    if (call.params.has_addend) addend = next;
  }
};

void require_shape(const dnnops_tensor &t, const char *name, std::initializer_list<int64_t> shape) {
  if (t.ndim != static_cast<int64_t>(shape.size()) || !std::equal(shape.begin(), shape.end(), t.shape))
    fail(DNNOPS_VALUE_ERROR, "%s does not have the shape %s", name,
         list_of(shape.begin(), static_cast<int64_t>(shape.size())).c_str());
}

void check(const OpCall<DenseWords> &call) {
  const Operands of(call);
  const dnnops_tensor &x = *of.x, &w = *of.w;
  data_type(x.dtype);
  for (int i = 1; i < call.params.input_count(); ++i)
    if (call.inputs[i].dtype != x.dtype) fail(DNNOPS_TYPE_ERROR, "the operands must have the same dtype");
  if (x.ndim != 2 || w.ndim != 2) fail(DNNOPS_VALUE_ERROR, "x and w must be matrices");
  if (x.shape[1] != w.shape[0]) fail(DNNOPS_VALUE_ERROR, "the matrices cannot be multiplied");
  const int64_t rows = x.shape[0], columns = w.shape[1];
  if (of.bias) require_shape(*of.bias, "the bias", {columns});
  if (of.addend) require_shape(*of.addend, "the addend", {rows, columns});
}

void shape(const OpCall<DenseWords> &call) {
  check(call);
  const dnnops_tensor &x = call.inputs[0];
  set_output(call.outputs[0], x.dtype, {x.shape[0], call.inputs[1].shape[1]});
}

// Some of cuBLASLt's kernels make 0 of NaN in relu, and GELU in float64 has errors of 1e-9. A kernel of dnnops computes
// both after the product.
bool finishes(const DenseWords &words, int64_t dtype) {
  return words.activation == DENSE_RELU || (words.activation == DENSE_GELU && dtype == DNNOPS_FLOAT64);
}

int64_t epilogue_of(const DenseWords &words, int64_t dtype) {
  if (words.activation == DENSE_GELU && !finishes(words, dtype)) return words.has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  return words.has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// A matrix as a batch of one.
Operand matrix_of(const dnnops_tensor &t) {
  dnnops_tensor batch = t;
  batch.ndim = 3;
  batch.shape[0] = 1;
  batch.strides[0] = 0;
  std::copy(t.shape, t.shape + 2, batch.shape + 1);
  std::copy(t.strides, t.strides + 2, batch.strides + 1);
  return operand_of(batch);
}

// Adds what the product lacks, in place.
void finish(const OpCall<DenseWords> &call, const Handle &handle, bool from_zero, bool adds_bias = true) {
  const Operands of(call);
  const dnnops_tensor &out = call.outputs[0];
  DenseParams p = {};
  p.out = out.data;
  p.bias = of.bias && adds_bias ? of.bias->data : nullptr;
  p.rows = out.shape[0];
  p.columns = out.shape[1];
  if (from_zero && of.addend) {
    p.addend = of.addend->data;
    p.addend_row = of.addend->strides[0] / item_size(out.dtype);
  }
  p.activation = static_cast<int>(call.params.activation);
  p.from_zero = from_zero;
  const int64_t elements = 16 / item_size(out.dtype), words = p.rows * p.columns / elements;
  const auto in_words = [&](const void *data, int64_t row) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && row % elements == 0;
  };
  p.by_words = in_words(p.out, p.columns) && in_words(p.bias, 0) && in_words(p.addend, p.addend_row) && words <= INT_MAX;
  const int64_t per_block = DENSE_THREADS * (p.by_words ? DENSE_WORDS : DENSE_ELEMENTS);
  const int64_t blocks = ((p.by_words ? words : p.rows * p.columns) + per_block - 1) / per_block;
  if (blocks > INT_MAX) fail(DNNOPS_NOT_SUPPORTED, "the array is too large");
  void *arguments[] = {&p};
  const Kernel kernel = load_kernel(handle, "dense", "dense", "-DDTYPE=" + std::to_string(out.dtype));
  launch_kernel(kernel, static_cast<unsigned>(blocks), DENSE_THREADS, 0, call.context.stream, arguments);
}

void run(const OpCall<DenseWords> &call) {
  check(call);
  const Operands of(call);
  const DenseWords &words = call.params;
  const dnnops_tensor &out = call.outputs[0];
  require_contiguous(out);
  if (of.bias) require_contiguous(*of.bias);
  if (!element_count(out.shape, 2)) return;
  const DeviceGuard guard(call.context.device);
  const Handle &handle = handle_for(call.context.device, call.context.stream);
  if (!of.x->shape[1]) return finish(call, handle, true);

  const Operand result = matrix_of(out), addend = of.addend ? matrix_of(*of.addend) : result;
  if (addend.transposed) fail(DNNOPS_NOT_SUPPORTED, "the rows of the addend are not contiguous");
  const double beta = of.addend ? 1 : 0;
  const bool verbose = words.settings & DNNOPS_PRODUCT_VERBOSE;
  ProductArrays arrays = {of.w->data, of.x->data, of.addend ? of.addend->data : out.data, out.data};
  ProductKey key;
  std::memset(&key, 0, sizeof key);
  key = {call.context.device, out.dtype, words.settings & ~DNNOPS_PRODUCT_VERBOSE, 1, matrix_of(*of.w), matrix_of(*of.x),
         result,              addend,    epilogue_of(words, out.dtype), 1};
  if (of.bias) {
    arrays.bias = of.bias->data;
    key.bias_alignment = alignment_of(arrays.bias);
  }
  if (auto plan = product_plan(key, handle); plan->exists() && plan->run(handle, 1, beta, arrays, verbose)) {
    if (finishes(words, out.dtype)) finish(call, handle, false, false);
    return;
  }
  if (key.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    arrays.bias = nullptr;
    key.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    key.bias_alignment = 1;
    if (auto plan = product_plan(key, handle); plan->exists() && plan->run(handle, 1, beta, arrays, verbose))
      return finish(call, handle, false);
  }
  fail(DNNOPS_NOT_SUPPORTED, "cuBLASLt has no algorithm");
}

}  // namespace

DNNOPS_OP(cudnn_dense, DenseWords, shape, run)

}  // namespace dnnops
