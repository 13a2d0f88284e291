#include "product_plan.hpp"

#include "../../common/lru_cache.hpp"

namespace dnnops {

namespace {

constexpr size_t KEPT_PRODUCTS = 1024;
// What cuBLAS recommends for Hopper.
constexpr uint64_t MAX_WORKSPACE = uint64_t(32) << 20;

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
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(key.addend.alignment));
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

Matrix matrix(const Operand &operand) {
  return {operand.rows, operand.columns, operand.leading, operand.batch_stride};
}

cublasComputeType_t compute_type(const ProductKey &key) {
  if (key.dtype == DNNOPS_FLOAT64) return CUBLAS_COMPUTE_64F;
  return key.dtype == DNNOPS_FLOAT32 && key.allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// An address of the given alignment, for heuristics, which do not read from it.
void *address_of(int64_t alignment) { return reinterpret_cast<void *>((uintptr_t(1) << 20) + alignment); }

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

ProductPlan::ProductPlan(const ProductKey &key)
    : cublaslt_(cublaslt::handle_of(static_cast<int>(key.device))),
      dtype_(key.dtype),
      operation_(key.left.transposed, key.right.transposed, compute_type(key),
                 key.dtype == DNNOPS_FLOAT64 ? CUDA_R_64F : CUDA_R_32F),
      left_(matrix(key.left), key.batches, data_type(key.dtype)),
      right_(matrix(key.right), key.batches, data_type(key.dtype)),
      addend_(matrix(key.addend), key.batches, data_type(key.dtype)),
      result_(matrix(key.result), key.batches, data_type(key.dtype)) {
  if (key.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    operation_.set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(key.epilogue));
    // The heuristic expects an array with the alignment of this address.
    if (key.epilogue & CUBLASLT_EPILOGUE_BIAS)
      operation_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, address_of(key.bias_alignment));
  }
  const Preference preference(key);
  cublasLtMatmulHeuristicResult_t found;
  int count = 0;
  const cublasStatus_t status = cublaslt::functions().cublasLtMatmulAlgoGetHeuristic(
      cublaslt_, operation_, left_, right_, addend_, result_, preference, 1, &found, &count);
  // cuBLASLt rejects epilogues that it does not know for a dtype in several ways.
  if (status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED)
    cublaslt::fail_status(status, "cublasLtMatmulAlgoGetHeuristic");
  if (status != CUBLAS_STATUS_SUCCESS || !count || found.state != CUBLAS_STATUS_SUCCESS) return;
  algorithm_ = found.algo;
  workspace_ = static_cast<int64_t>(found.workspaceSize);
  exists_ = true;
}

bool ProductPlan::run(const Handle &handle, double alpha, double beta, const ProductArrays &arrays) const {
  const Scalar a(alpha, dtype_), b(beta, dtype_);
  const Workspace workspace(*handle.arena, workspace_);
  // Other threads use the plan with other addresses.
  OwnOperation operation(operation_);
  if (arrays.bias) operation.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, arrays.bias);
  const cublasStatus_t status = cublaslt::functions().cublasLtMatmul(
      cublaslt_, operation, a.pointer(), arrays.left, left_, arrays.right, right_, b.pointer(), arrays.addend, addend_,
      arrays.result, result_, &algorithm_, workspace.pointer(), static_cast<size_t>(workspace_),
      static_cast<cudaStream_t>(handle.stream));
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
  if (status != CUBLAS_STATUS_SUCCESS) cublaslt::fail_status(status, "cublasLtMatmul");
  return true;
}

std::shared_ptr<const ProductPlan> product_plan(const ProductKey &key) {
  // Not destroyed with static objects, because cuBLASLt may be unloaded by then.
  static auto *kept = new LruCache<ProductKey, ProductPlan, WordHash<ProductKey>>(KEPT_PRODUCTS);
  return kept->get(key, [&] { return std::make_shared<ProductPlan>(key); });
}

}  // namespace dnnops
