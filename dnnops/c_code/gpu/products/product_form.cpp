#include "product_form.hpp"

namespace dnnops {

namespace {

// Of a copy's address.
constexpr int64_t ALIGNMENT = 256;

cublasComputeType_t compute_type(const ProductKey &key) {
  if (key.dtype == DNNOPS_FLOAT64) return CUBLAS_COMPUTE_64F;
  const bool is_tf32 = key.dtype == DNNOPS_FLOAT32 && key.settings & DNNOPS_PRODUCT_TF32;
  return is_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// An address of the given alignment, for heuristics, which do not read from it.
void *address_of(int64_t alignment) { return reinterpret_cast<void *>((uintptr_t(1) << 20) + alignment); }

int64_t bytes_of(const Operand &operand, int64_t dtype) {
  const int64_t bytes = operand.rows * operand.columns * item_size(dtype);
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

// The same matrix with its axes exchanged in memory.
Operand exchanged(const Operand &operand) {
  return {!operand.transposed, operand.columns, operand.rows, operand.columns, 0, 16};
}

// The copy to the exchanged operand: a channels-last copy of an image whose channels are the columns.
Copy copy_of(const Operand &operand, int64_t dtype) {
  Tensor source = {}, target;
  source.ndim = 3;
  source.shape[0] = 1;
  source.shape[1] = operand.columns;
  source.shape[2] = operand.rows;
  source.alignment = operand.alignment;
  set_dense_strides(source, FORMAT_CONTIGUOUS);
  target = source;
  target.alignment = 16;
  set_dense_strides(target, FORMAT_CHANNELS_LAST);
  return make_copy(source, FORMAT_CONTIGUOUS, target, FORMAT_CHANNELS_LAST, dtype, false);
}

}  // namespace

Operand operand_of(const dnnops_tensor &t) {
  const int64_t size = item_size(t.dtype);
  const int64_t rows = t.shape[1], columns = t.shape[2];
  const int64_t row = t.strides[1] / size, column = t.strides[2] / size;
  const int64_t batch = t.shape[0] > 1 ? t.strides[0] / size : 0;
  const int64_t alignment = alignment_of(t.data);
  // The stride of an axis of length 1 has no meaning.
  if ((column == 1 || columns == 1) && (row >= columns || rows == 1))
    return {0, columns, rows, rows == 1 ? columns : row, batch, alignment};
  if ((row == 1 || rows == 1) && (column >= rows || columns == 1))
    return {1, rows, columns, columns == 1 ? rows : column, batch, alignment};
  fail(DNNOPS_NOT_SUPPORTED, "neither the rows nor the columns of an operand are contiguous");
}

double operations_of(const ProductKey &key) {
  const int64_t inner = key.left.transposed ? key.left.rows : key.left.columns;
  return 2.0 * key.batches * key.result.rows * key.result.columns * inner;
}

ProductForm::ProductForm(const ProductKey &key)
    : key_(key),
      operation_(key.left.transposed, key.right.transposed, compute_type(key),
                 key.dtype == DNNOPS_FLOAT64 ? CUDA_R_64F : CUDA_R_32F),
      left_(stored_matrix(key.left), key.batches, data_type(key.dtype)),
      right_(stored_matrix(key.right), key.batches, data_type(key.dtype)) {
  if (key.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return;
  operation_.set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(key.epilogue));
  // The heuristic expects an array with the alignment of this address.
  if (key.epilogue & CUBLASLT_EPILOGUE_BIAS)
    operation_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, address_of(key.bias_alignment));
}

std::unique_ptr<ProductForm> ProductForm::with_copies(const ProductKey &key, const Handle &handle) {
  const bool copies_left = !key.left.transposed, copies_right = key.right.transposed;
  if (!copies_left && !copies_right) return nullptr;
  ProductKey copied = key;
  std::vector<Copy> copies;
  const auto add = [&](Operand &operand) {
    if (operand.leading != operand.rows) return false;  // the copy reads arrays without gaps
    copies.push_back(copy_of(operand, key.dtype));
    operand = exchanged(operand);
    return true;
  };
  try {
    if ((copies_left && !add(copied.left)) || (copies_right && !add(copied.right))) return nullptr;
    std::unique_ptr<ProductForm> form(new ProductForm(copied));
    form->copies_ = Copies(handle, copies, key.dtype);
    form->copies_left_ = copies_left;
    form->copies_right_ = copies_right;
    form->left_bytes_ = copies_left ? bytes_of(copied.left, key.dtype) : 0;
    form->bytes_ = form->left_bytes_ + (copies_right ? bytes_of(copied.right, key.dtype) : 0);
    return form;
  } catch (const Error &error) {
    if (error.status != DNNOPS_NOT_SUPPORTED) throw;
    return nullptr;  // the arrays are too large for the kernel, or it does not compile
  }
}

void ProductForm::copy(const void *&left, const void *&right, char *memory, void *stream) const {
  if (!bytes_) return;
  const void *sources[2] = {};
  void *targets[2] = {};
  int count = 0;
  const auto replace = [&](const void *&operand, char *place) {
    sources[count] = operand;
    operand = targets[count++] = place;
  };
  if (copies_left_) replace(left, memory);
  if (copies_right_) replace(right, memory + left_bytes_);
  Copies own = copies_;  // other threads run it with other addresses
  own.run(sources, targets, stream);
}

}  // namespace dnnops
