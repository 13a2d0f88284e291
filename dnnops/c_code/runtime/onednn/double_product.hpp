// Matrix products in float64, which oneDNN does not have, for loops that are shared out among threads already: BLAS
// has threads of its own, which would spin beside these.
#ifndef DNNOPS_ONEDNN_DOUBLE_PRODUCT_HPP
#define DNNOPS_ONEDNN_DOUBLE_PRODUCT_HPP

#include <cstdint>
#include <vector>

namespace dnnops {

// One thread's products. Blocks of the operands are copied into its memory, in the order in which they are read.
class DoubleProduct {
 public:
  // Row-major C (m x n) = alpha op(A) op(B) + beta C, with distances between rows, and beta 0 or 1.
  void operator()(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double alpha, const double *a,
                  int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc);

 private:
  std::vector<double> packed_;
};

}  // namespace dnnops
#endif
