// Products of matrices and of batches of matrices, with cuBLASLt.
#include <algorithm>
#include <climits>

#include "../../common/lru_cache.hpp"

#include "../base/handle.hpp"
#include "../base/matrix_product.hpp"
#include "../base/tensor.hpp"

namespace dnnops {

namespace {

constexpr size_t KEPT_PRODUCTS = 1024;
// What cuBLAS recommends for Hopper.
constexpr uint64_t MAX_WORKSPACE = uint64_t(32) << 20;

// A row-major operand as a column-major matrix, or as the transpose of one.
struct Operand {
  int64_t transposed, rows, columns, leading, batch_stride, alignment;
};

// Only 8-byte fields and no padding.
struct ProductKey {
  int64_t device, dtype, allow_tf32, batches;
  Operand left, right, result;
  bool operator==(const ProductKey &other) const { return std::memcmp(this, &other, sizeof other) == 0; }
};

int64_t alignment_of(const void *data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  int64_t alignment = 16;
  while (address % alignment) alignment /= 2;
  return alignment;
}

// The axes are batch, row and column.
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

// A product with the algorithm that cuBLASLt proposes.
class ProductPlan {
 public:
  explicit ProductPlan(const ProductKey &key)
      : cublaslt_(cublaslt::handle_of(static_cast<int>(key.device))),
        dtype_(key.dtype),
        operation_(key.left.transposed, key.right.transposed, compute_type(key),
                   key.dtype == DNNOPS_FLOAT64 ? CUDA_R_64F : CUDA_R_32F),
        left_(matrix(key.left), key.batches, data_type(key.dtype)),
        right_(matrix(key.right), key.batches, data_type(key.dtype)),
        result_(matrix(key.result), key.batches, data_type(key.dtype)) {
    const Preference preference(key);
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    DNNOPS_CUBLASLT(cublasLtMatmulAlgoGetHeuristic, cublaslt_, operation_, left_, right_, result_, result_, preference,
                    1, &found, &count);
    if (!count || found.state != CUBLAS_STATUS_SUCCESS) fail(DNNOPS_NOT_SUPPORTED, "cuBLASLt has no algorithm");
    algorithm_ = found.algo;
    workspace_ = static_cast<int64_t>(found.workspaceSize);
  }

  void run(const Handle &handle, double alpha, const void *left, const void *right, double beta, void *result) const {
    const Scalar a(alpha, dtype_), b(beta, dtype_);
    const Workspace workspace(*handle.arena, workspace_);
    DNNOPS_CUBLASLT(cublasLtMatmul, cublaslt_, operation_, a.pointer(), left, left_, right, right_, b.pointer(), result,
                    result_, result, result_, &algorithm_, workspace.pointer(), static_cast<size_t>(workspace_),
                    static_cast<cudaStream_t>(handle.stream));
  }

 private:
  class Preference {
   public:
    explicit Preference(const ProductKey &key) {
      DNNOPS_CUBLASLT(cublasLtMatmulPreferenceCreate, &preference_);
      set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, MAX_WORKSPACE);
      // Partial sums are added up in float32 also if the results are narrower.
      uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
      if (key.dtype == DNNOPS_FLOAT32 || key.dtype == DNNOPS_FLOAT64) schemes |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
      set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(key.left.alignment));
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(key.right.alignment));
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(key.result.alignment));
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(key.result.alignment));
    }
    ~Preference() { cublaslt::functions().cublasLtMatmulPreferenceDestroy(preference_); }
    Preference(const Preference &) = delete;
    Preference &operator=(const Preference &) = delete;
    operator cublasLtMatmulPreference_t() const { return preference_; }

   private:
    template <class Value>
    void set(cublasLtMatmulPreferenceAttributes_t name, Value value) {
      DNNOPS_CUBLASLT(cublasLtMatmulPreferenceSetAttribute, preference_, name, &value, sizeof value);
    }
    cublasLtMatmulPreference_t preference_ = nullptr;
  };

  static Matrix matrix(const Operand &operand) {
    return {operand.rows, operand.columns, operand.leading, operand.batch_stride};
  }
  static cublasComputeType_t compute_type(const ProductKey &key) {
    if (key.dtype == DNNOPS_FLOAT64) return CUBLAS_COMPUTE_64F;
    return key.dtype == DNNOPS_FLOAT32 && key.allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  }

  cublasLtHandle_t cublaslt_;
  int64_t dtype_, workspace_ = 0;
  Operation operation_;
  MatrixLayout left_, right_, result_;
  cublasLtMatmulAlgo_t algorithm_;
};

using Products = LruCache<ProductKey, ProductPlan, WordHash<ProductKey>>;

Products &products() {
  // Not destroyed with static objects, because cuBLASLt may be unloaded by then.
  static auto *kept = new Products(KEPT_PRODUCTS);
  return *kept;
}

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

DNNOPS_EXPORT int dnnops_cudnn_product(const dnnops_context *context, int64_t allow_tf32, double alpha, double beta,
                                       const dnnops_tensor *inputs, dnnops_tensor *output) {
  using namespace dnnops;
  return guarded("matrix product", inputs, 2, [&] {
    check_shapes(inputs, *output);
    // In column-major order, the result is the transpose, so the operands swap places.
    ProductKey key;
    std::memset(&key, 0, sizeof key);
    key = {context->device,        inputs[0].dtype,       allow_tf32,          inputs[0].shape[0],
           operand_of(inputs[1]), operand_of(inputs[0]), operand_of(*output)};
    if (key.result.transposed) fail(DNNOPS_NOT_SUPPORTED, "the rows of the result are not contiguous");
    const DeviceGuard guard(context->device);
    const Handle &handle = handle_for(context->device, context->stream);
    products()
        .get(key, [&] { return std::make_shared<ProductPlan>(key); })
        ->run(handle, alpha, inputs[1].data, inputs[0].data, beta, output->data);
  });
}
