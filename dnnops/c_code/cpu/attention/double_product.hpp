// float64 matrix products for loops that already run in several threads. oneDNN does not support float64, and
// BLAS's own threads would spin beside them.
#ifndef DNNOPS_ONEDNN_DOUBLE_PRODUCT_HPP
#define DNNOPS_ONEDNN_DOUBLE_PRODUCT_HPP

#include <cstdint>
#include <vector>

namespace dnnops {

// The matrix products of one thread. Blocks of the operands are copied to its memory in the order in which
// they are read.
class DoubleProduct {
 public:
  // Row-major C (m x n) = alpha op(A) op(B) + beta C, with strided rows and a beta of 0 or 1.
  void operator()(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double alpha, const double *a,
                  int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc);

 private:
  std::vector<double> packed_;
};

}  // namespace dnnops
#endif
