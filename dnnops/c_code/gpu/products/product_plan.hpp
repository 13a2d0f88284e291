// Matrix products in cuBLASLt, each with the algorithm that its heuristic proposes first, or with the fastest of several.
#ifndef DNNOPS_CUDNN_PRODUCT_PLAN_HPP
#define DNNOPS_CUDNN_PRODUCT_PLAN_HPP

#include <atomic>
#include <memory>
#include <vector>

#include "product_form.hpp"

namespace dnnops {

struct ProductArrays {
  const void *left, *right, *addend;
  void *result;
  const void *bias = nullptr;  // null if the epilogue has none
};

class ProductPlan {
 public:
  ProductPlan(const ProductKey &key, const Handle &handle);
  // Whether cuBLASLt has an algorithm.
  bool exists() const { return !algorithms_.empty(); }
  // result = epilogue(alpha left right + beta addend). Returns false if cuBLASLt refuses the arrays after all. The first
  // run may time the algorithms.
  bool run(const Handle &handle, double alpha, double beta, const ProductArrays &arrays, bool verbose) const;

 private:
  struct Algorithm {
    const ProductForm *form;
    cublasLtMatmulAlgo_t words;
    int64_t workspace;
  };

  // Adds what the heuristic proposes for a form, in its order.
  void add_algorithms(const ProductForm &form);

  cublasStatus_t launch(const Algorithm &algorithm, const Handle &handle, double alpha, double beta,
                        const ProductArrays &arrays) const;
  // The index of the algorithm to use.
  int choose(const Handle &handle, double alpha, double beta, const ProductArrays &arrays, bool verbose) const;
  // The least time of some runs, or infinity if the algorithm fails or lacks memory.
  double milliseconds(const Algorithm &algorithm, const Handle &handle, double alpha, double beta,
                      const ProductArrays &arrays) const;
  int find_fastest(const Handle &handle, double alpha, double beta, const ProductArrays &arrays, bool verbose) const;
  void report(const std::vector<double> &times, int chosen) const;

  cublasLtHandle_t cublaslt_;
  ProductKey key_;
  MatrixLayout addend_, result_;
  std::vector<std::unique_ptr<ProductForm>> forms_;
  std::vector<Algorithm> algorithms_;  // those without copies first
  mutable std::atomic<int> chosen_{-1};  // -1 before the first run
};

// The plan for a key, which the process keeps. The handle's device must be current.
std::shared_ptr<const ProductPlan> product_plan(const ProductKey &key, const Handle &handle);

}  // namespace dnnops
#endif
