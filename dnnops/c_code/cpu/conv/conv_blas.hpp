// float64 convolution as matrix products, since oneDNN does not support float64.
#ifndef DNNOPS_ONEDNN_CONV_BLAS_HPP
#define DNNOPS_ONEDNN_CONV_BLAS_HPP

#include "../../common/conv_problem.hpp"

namespace dnnops {

// Fortran's dgemm with 32-bit integers.
using Dgemm = void (*)(char *, char *, int *, int *, int *, double *, double *, int *, double *, int *, double *,
                       double *, int *);

// Row-major C (m x n) = op(A) op(B) + beta C in float64, with strided rows.
void blas_gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const double *a, int64_t lda,
               const double *b, int64_t ldb, double beta, double *c, int64_t ldc);

void conv_blas(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output);

// The scratch memory that conv_blas() needs.
int64_t blas_scratch_bytes(const ConvProblem &problem, const dnnops_tensor *inputs);

}  // namespace dnnops
#endif
