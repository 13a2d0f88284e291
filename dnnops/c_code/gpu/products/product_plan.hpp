// Matrix products in cuBLASLt, each with the algorithm that its heuristic proposes.
#ifndef DNNOPS_CUDNN_PRODUCT_PLAN_HPP
#define DNNOPS_CUDNN_PRODUCT_PLAN_HPP

#include <memory>

#include "../base/handle.hpp"
#include "../base/matrix_product.hpp"
#include "../base/tensor.hpp"

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
  int64_t device, dtype, allow_tf32, batches;
  Operand left, right, result;
  Operand addend;    // the result, unless the sum is written elsewhere
  int64_t epilogue;  // a cublasLtEpilogue_t
  int64_t bias_alignment;  // 1 if there is none
  bool operator==(const ProductKey &other) const { return std::memcmp(this, &other, sizeof other) == 0; }
};

struct ProductArrays {
  const void *left, *right, *addend;
  void *result;
  const void *bias = nullptr;  // null if the epilogue has none
};

class ProductPlan {
 public:
  explicit ProductPlan(const ProductKey &key);
  // Whether cuBLASLt has an algorithm.
  bool exists() const { return exists_; }
  // result = epilogue(alpha left right + beta addend). Returns false if cuBLASLt refuses the arrays after all.
  bool run(const Handle &handle, double alpha, double beta, const ProductArrays &arrays) const;

 private:
  cublasLtHandle_t cublaslt_;
  int64_t dtype_, workspace_ = 0;
  Operation operation_;
  MatrixLayout left_, right_, addend_, result_;
  cublasLtMatmulAlgo_t algorithm_;
  bool exists_ = false;
};

// The plan for a key, which the process keeps.
std::shared_ptr<const ProductPlan> product_plan(const ProductKey &key);

}  // namespace dnnops
#endif
