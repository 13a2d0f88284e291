// The descriptors of a matrix product in cuBLASLt.
#ifndef DNNOPS_CUDNN_MATRIX_PRODUCT_HPP
#define DNNOPS_CUDNN_MATRIX_PRODUCT_HPP

#include "cublaslt.hpp"

namespace dnnops {

// A column-major matrix, as in cuBLAS.
struct Matrix {
  int64_t rows, columns, leading, batch_stride;
};

inline cudaDataType_t data_type(int64_t dtype) {
  switch (dtype) {
    case DNNOPS_FLOAT32: return CUDA_R_32F;
    case DNNOPS_FLOAT64: return CUDA_R_64F;
    case DNNOPS_FLOAT16: return CUDA_R_16F;
    case DNNOPS_BFLOAT16: return CUDA_R_16BF;
  }
  fail(DNNOPS_NOT_SUPPORTED, "matrix products of %s arrays are not supported", dtype_name(dtype));
}

class MatrixLayout {
 public:
  MatrixLayout(const Matrix &matrix, int64_t batches, cudaDataType_t type) {
    DNNOPS_CUBLASLT(cublasLtMatrixLayoutCreate, &layout_, type, matrix.rows, matrix.columns, matrix.leading);
    const int32_t count = static_cast<int32_t>(batches);
    DNNOPS_CUBLASLT(cublasLtMatrixLayoutSetAttribute, layout_, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                    sizeof count);
    DNNOPS_CUBLASLT(cublasLtMatrixLayoutSetAttribute, layout_, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                    &matrix.batch_stride, sizeof matrix.batch_stride);
  }
  ~MatrixLayout() { cublaslt::functions().cublasLtMatrixLayoutDestroy(layout_); }
  MatrixLayout(const MatrixLayout &) = delete;
  MatrixLayout &operator=(const MatrixLayout &) = delete;
  operator cublasLtMatrixLayout_t() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

class Operation {
 public:
  Operation(bool transpose_left, bool transpose_right, cublasComputeType_t compute, cudaDataType_t scale) {
    DNNOPS_CUBLASLT(cublasLtMatmulDescCreate, &desc_, compute, scale);
    transpose(CUBLASLT_MATMUL_DESC_TRANSA, transpose_left);
    transpose(CUBLASLT_MATMUL_DESC_TRANSB, transpose_right);
  }
  ~Operation() { cublaslt::functions().cublasLtMatmulDescDestroy(desc_); }
  Operation(const Operation &) = delete;
  Operation &operator=(const Operation &) = delete;
  operator cublasLtMatmulDesc_t() const { return desc_; }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t which, Value value) {
    DNNOPS_CUBLASLT(cublasLtMatmulDescSetAttribute, desc_, which, &value, sizeof value);
  }

 private:
  void transpose(cublasLtMatmulDescAttributes_t which, bool yes) { set(which, yes ? CUBLAS_OP_T : CUBLAS_OP_N); }
  cublasLtMatmulDesc_t desc_ = nullptr;
};

// A copy of an operation for one call. The struct behind the handle may be copied as it is.
class OwnOperation {
 public:
  explicit OwnOperation(const Operation &of) : copy_(*static_cast<cublasLtMatmulDesc_t>(of)) {}
  operator cublasLtMatmulDesc_t() { return &copy_; }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t which, Value value) {
    DNNOPS_CUBLASLT(cublasLtMatmulDescSetAttribute, &copy_, which, &value, sizeof value);
  }

 private:
  cublasLtMatmulDescOpaque_t copy_;
};

}  // namespace dnnops
#endif
