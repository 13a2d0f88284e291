// Matrix products in cuBLASLt, each with the algorithm that its heuristic proposes first, or with the fastest of several.
#ifndef DNNOPS_CUDNN_PRODUCT_PLAN_HPP
#define DNNOPS_CUDNN_PRODUCT_PLAN_HPP

#include <atomic>
#include <memory>
#include <vector>

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
  int64_t device, dtype, settings, batches;  // settings: DNNOPS_PRODUCT_TF32 and DNNOPS_PRODUCT_TIMED
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
  bool exists() const { return !algorithms_.empty(); }
  // result = epilogue(alpha left right + beta addend). Returns false if cuBLASLt refuses the arrays after all. The first
  // run may time the algorithms.
  bool run(const Handle &handle, double alpha, double beta, const ProductArrays &arrays, bool verbose) const;

 private:
  struct Algorithm {
    cublasLtMatmulAlgo_t words;
    int64_t workspace;
  };

  cublasStatus_t launch(const Algorithm &algorithm, const Handle &handle, double alpha, double beta,
                        const ProductArrays &arrays) const;
  // The index of the algorithm to use.
  int choose(const Handle &handle, double alpha, double beta, const ProductArrays &arrays, bool verbose) const;
  int find_fastest(const Handle &handle, double alpha, double beta, const ProductArrays &arrays, bool verbose) const;
  void report(const std::vector<double> &times, int chosen) const;

  cublasLtHandle_t cublaslt_;
  ProductKey key_;
  Operation operation_;
  MatrixLayout left_, right_, addend_, result_;
  std::vector<Algorithm> algorithms_;  // as the heuristic orders them
  mutable std::atomic<int> chosen_{-1};  // -1 before the first run
};

// The plan for a key, which the process keeps.
std::shared_ptr<const ProductPlan> product_plan(const ProductKey &key);

}  // namespace dnnops
#endif
