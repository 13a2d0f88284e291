// The operands of a matrix product as cuBLASLt gets them: as they are, or as copies in the layout of its fastest kernels.
#ifndef DNNOPS_CUDNN_PRODUCT_FORM_HPP
#define DNNOPS_CUDNN_PRODUCT_FORM_HPP

#include <memory>

#include "../base/handle.hpp"
#include "../base/matrix_product.hpp"
#include "../base/tensor.hpp"
#include "../copy/copies.hpp"

namespace dnnops {

// A row-major operand as a column-major matrix, or as the transpose of one.
struct Operand {
  int64_t transposed, rows, columns, leading, batch_stride, alignment;
};

// The axes are batch, row and column. Throws DNNOPS_NOT_SUPPORTED if neither rows nor columns are contiguous.
Operand operand_of(const dnnops_tensor &t);

// Only 8-byte fields and no padding. In column-major order the result is the transpose, so the operands have swapped
// places.
struct ProductKey {
  int64_t device, dtype, settings, batches;  // settings: DNNOPS_PRODUCT_TF32 and DNNOPS_PRODUCT_TIMED
  Operand left, right, result;
  Operand addend;    // the result, unless the sum is written elsewhere
  int64_t epilogue;  // a cublasLtEpilogue_t
  int64_t bias_alignment;  // 1 if there is none
  bool operator==(const ProductKey &other) const { return std::memcmp(this, &other, sizeof other) == 0; }
};

// The matrix that is stored.
inline Matrix stored_matrix(const Operand &operand) {
  return {operand.rows, operand.columns, operand.leading, operand.batch_stride};
}

// The number of multiplications and additions of a product.
double operations_of(const ProductKey &key);

class ProductForm {
 public:
  explicit ProductForm(const ProductKey &key);

  // With copies of the operands whose elements along the axis that is summed over are not adjacent. Tensor cores read
  // TF32 only if they are, and the other kernels exchange axes in shared memory for each tile. Null if no operand needs
  // a copy, or one cannot be copied. The handle's device must be current.
  static std::unique_ptr<ProductForm> with_copies(const ProductKey &key, const Handle &handle);

  const Operation &operation() const { return operation_; }
  cublasLtMatrixLayout_t left() const { return left_; }
  cublasLtMatrixLayout_t right() const { return right_; }
  // The alignment of the operands' addresses.
  int64_t left_alignment() const { return key_.left.alignment; }
  int64_t right_alignment() const { return key_.right.alignment; }
  // The bytes of the copies.
  int64_t bytes() const { return bytes_; }
  // Replaces the addresses of the operands by those of copies in `memory`, which it makes.
  void copy(const void *&left, const void *&right, char *memory, void *stream) const;

 private:
  ProductKey key_;
  Operation operation_;
  MatrixLayout left_, right_;
  bool copies_left_ = false, copies_right_ = false;
  int64_t left_bytes_ = 0, bytes_ = 0;
  Copies copies_;
};

}  // namespace dnnops
#endif
