#include "product_plan.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "../../common/lru_cache.hpp"
#include "../kernels/cache.hpp"

namespace dnnops {

namespace {

constexpr size_t KEPT_PRODUCTS = 1024;
// What cuBLAS recommends for Hopper.
constexpr uint64_t MAX_WORKSPACE = uint64_t(32) << 20;
// Algorithms that are timed at most. The heuristic orders them by the time that it expects.
constexpr int MOST_ALGORITHMS = 8;
// Products with fewer multiplications and additions take microseconds, of which events measure too little.
constexpr double LEAST_OPERATIONS = 1 << 30;
constexpr int RUNS = 4;
// Another algorithm than the first must be this much faster, because times vary.
constexpr double MARGIN = 0.98;

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
  const bool is_tf32 = key.dtype == DNNOPS_FLOAT32 && key.settings & DNNOPS_PRODUCT_TF32;
  return is_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

bool is_worth_timing(const ProductKey &key) {
  const int64_t inner = key.left.transposed ? key.left.rows : key.left.columns;
  const double operations = 2.0 * key.batches * key.result.rows * key.result.columns * inner;
  return key.settings & DNNOPS_PRODUCT_TIMED && operations >= LEAST_OPERATIONS;
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
      key_(key),
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
  cublasLtMatmulHeuristicResult_t found[MOST_ALGORITHMS];
  int count = 0;
  const cublasStatus_t status = cublaslt::functions().cublasLtMatmulAlgoGetHeuristic(
      cublaslt_, operation_, left_, right_, addend_, result_, preference, is_worth_timing(key) ? MOST_ALGORITHMS : 1, found,
      &count);
  // cuBLASLt rejects epilogues that it does not know for a dtype in several ways.
  if (status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED)
    cublaslt::fail_status(status, "cublasLtMatmulAlgoGetHeuristic");
  if (status != CUBLAS_STATUS_SUCCESS) return;
  for (int i = 0; i < count; ++i)
    if (found[i].state == CUBLAS_STATUS_SUCCESS)
      algorithms_.push_back({found[i].algo, static_cast<int64_t>(found[i].workspaceSize)});
}

bool ProductPlan::run(const Handle &handle, double alpha, double beta, const ProductArrays &arrays,
                      bool verbose) const {
  const int chosen = choose(handle, alpha, beta, arrays, verbose);
  const cublasStatus_t status = launch(algorithms_[chosen], handle, alpha, beta, arrays);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
  if (status != CUBLAS_STATUS_SUCCESS) cublaslt::fail_status(status, "cublasLtMatmul");
  return true;
}

cublasStatus_t ProductPlan::launch(const Algorithm &algorithm, const Handle &handle, double alpha, double beta,
                                   const ProductArrays &arrays) const {
  const Scalar a(alpha, key_.dtype), b(beta, key_.dtype);
  const Workspace workspace(*handle.arena, algorithm.workspace);
  // Other threads use the plan with other addresses.
  OwnOperation operation(operation_);
  if (arrays.bias) operation.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, arrays.bias);
  return cublaslt::functions().cublasLtMatmul(
      cublaslt_, operation, a.pointer(), arrays.left, left_, arrays.right, right_, b.pointer(), arrays.addend, addend_,
      arrays.result, result_, &algorithm.words, workspace.pointer(), static_cast<size_t>(algorithm.workspace),
      static_cast<cudaStream_t>(handle.stream));
}

int ProductPlan::choose(const Handle &handle, double alpha, double beta, const ProductArrays &arrays,
                        bool verbose) const {
  if (algorithms_.size() == 1) return 0;
  int chosen = chosen_.load();
  // No lock is held while algorithms run: their workspaces may wait for the interpreter.
  if (chosen >= 0 || is_capturing(handle.stream)) return std::max(chosen, 0);
  const int fastest = find_fastest(handle, alpha, beta, arrays, verbose);
  // If another thread was faster, its selection is used.
  return chosen_.compare_exchange_strong(chosen, fastest) ? fastest : chosen;
}

int ProductPlan::find_fastest(const Handle &handle, double alpha, double beta, const ProductArrays &arrays,
                              bool verbose) const {
  std::vector<double> times;
  try {
    ProductArrays trial = arrays;
    std::optional<Workspace> sum;
    if (beta != 0 && arrays.addend == arrays.result) {
      // Each run would add to the sum.
      const Operand &of = key_.result;
      const int64_t elements =
          (key_.batches - 1) * of.batch_stride + (of.columns - 1) * of.leading + of.rows;
      sum.emplace(*handle.arena, elements * item_size(key_.dtype));
      trial.result = sum->pointer();
    }
    const Event ends[RUNS];
    for (const Algorithm &algorithm : algorithms_) {
      double least = HUGE_VAL;
      // The first run also loads the kernel. Those after it are launched while it runs.
      bool runs = launch(algorithm, handle, alpha, beta, trial) == CUBLAS_STATUS_SUCCESS;
      for (int i = 0; i < RUNS && runs; ++i) {
        DNNOPS_CHECK(cudaEventRecord(ends[i], static_cast<cudaStream_t>(handle.stream)));
        runs = i + 1 == RUNS || launch(algorithm, handle, alpha, beta, trial) == CUBLAS_STATUS_SUCCESS;
      }
      for (int i = 1; i < RUNS && runs; ++i) least = std::min(least, milliseconds_between(ends[i - 1], ends[i]));
      times.push_back(least);
    }
  } catch (const Error &error) {
    // The product itself may need less memory.
    if (error.status != DNNOPS_OUT_OF_MEMORY) throw;
    return 0;
  }
  const int fastest = static_cast<int>(std::min_element(times.begin(), times.end()) - times.begin());
  const int chosen = times[fastest] < MARGIN * times[0] ? fastest : 0;
  if (verbose) report(times, chosen);
  return chosen;
}

void ProductPlan::report(const std::vector<double> &times, int chosen) const {
  std::string list;
  for (double time : times) {
    char text[32] = " failed";
    if (std::isfinite(time)) std::snprintf(text, sizeof text, " %.4g", time);
    list += (list.empty() ? "" : ",") + std::string(text);
  }
  // In row-major order, the operands are swapped and transposed.
  std::fprintf(stderr, "dnnops: product %lldx%lldx%lldx%lld, %s: algorithm %d of cuBLASLt's %zu (timed, ms:%s)\n",
               (long long)key_.batches, (long long)key_.result.columns,
               (long long)(key_.right.transposed ? key_.right.columns : key_.right.rows), (long long)key_.result.rows,
               dtype_name(key_.dtype), chosen, times.size(), list.c_str());
}

std::shared_ptr<const ProductPlan> product_plan(const ProductKey &key) {
  // Not destroyed with static objects, because cuBLASLt may be unloaded by then.
  static auto *kept = new LruCache<ProductKey, ProductPlan, WordHash<ProductKey>>(KEPT_PRODUCTS);
  return kept->get(key, [&] { return std::make_shared<ProductPlan>(key); });
}

}  // namespace dnnops
