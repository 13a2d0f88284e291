// Products of matrices and of batches of matrices, with cuBLASLt.
#include <climits>

#include "product_plan.hpp"

namespace dnnops {

namespace {

void check_shapes(const dnnops_tensor *inputs, const dnnops_tensor &output) {
  const dnnops_tensor &x = inputs[0], &y = inputs[1];
  for (const dnnops_tensor *t : {&x, &y, &output}) {
    if (t->ndim != 3) fail(DNNOPS_VALUE_ERROR, "the operands must have three axes");
    if (t->dtype != x.dtype) fail(DNNOPS_TYPE_ERROR, "the operands must have the same dtype");
    if (t->shape[0] != x.shape[0] || element_count(t->shape, 3) == 0 || t->shape[0] > INT_MAX)
      fail(DNNOPS_VALUE_ERROR, "the batches differ, are too large, or are empty");
  }
  if (x.shape[2] != y.shape[1] || output.shape[1] != x.shape[1] || output.shape[2] != y.shape[2])
    fail(DNNOPS_VALUE_ERROR, "the shapes do not match");
}

}  // namespace

}  // namespace dnnops

DNNOPS_EXPORT int dnnops_cudnn_product(const dnnops_context *context, int64_t settings, double alpha, double beta,
                                       const dnnops_tensor *inputs, dnnops_tensor *output) {
  using namespace dnnops;
  return guarded("matrix product", inputs, 2, [&] {
    check_shapes(inputs, *output);
    const Operand result = operand_of(*output);
    if (result.transposed) fail(DNNOPS_NOT_SUPPORTED, "the rows of the result are not contiguous");
    ProductKey key;
    std::memset(&key, 0, sizeof key);
    key = {context->device,        inputs[0].dtype,       settings & ~DNNOPS_PRODUCT_VERBOSE, inputs[0].shape[0],
           operand_of(inputs[1]), operand_of(inputs[0]), result,     result,
           CUBLASLT_EPILOGUE_DEFAULT, 1};
    const DeviceGuard guard(context->device);
    const Handle &handle = handle_for(context->device, context->stream);
    const auto plan = product_plan(key, handle);
    const ProductArrays arrays = {inputs[1].data, inputs[0].data, output->data, output->data};
    if (!plan->exists() || !plan->run(handle, alpha, beta, arrays, settings & DNNOPS_PRODUCT_VERBOSE))
      fail(DNNOPS_NOT_SUPPORTED, "cuBLASLt has no algorithm");
  });
}
