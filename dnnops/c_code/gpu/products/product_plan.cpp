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
// Copies of operands cost as much as some 10**9 operations, so they can only pay for larger products.
constexpr double LEAST_COPIED_OPERATIONS = 8.0 * (1 << 30);
constexpr int RUNS = 4;
// Another algorithm than the first must be this much faster, because times vary.
constexpr double MARGIN = 0.98;

class Preference {
 public:
  Preference(const ProductKey &key, const ProductForm &form) {
    DNNOPS_CUBLASLT(cublasLtMatmulPreferenceCreate, &preference_);
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, MAX_WORKSPACE);
    // Partial sums are added up in float32 also if the results are narrower.
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (key.dtype == DNNOPS_FLOAT32 || key.dtype == DNNOPS_FLOAT64) schemes |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(form.left_alignment()));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(form.right_alignment()));
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

bool is_worth_timing(const ProductKey &key) {
  return key.settings & DNNOPS_PRODUCT_TIMED && operations_of(key) >= LEAST_OPERATIONS;
}

// Whether a product may be faster after copies of its operands.
bool is_worth_copying(const ProductKey &key) {
  return is_worth_timing(key) && key.dtype == DNNOPS_FLOAT32 && key.settings & DNNOPS_PRODUCT_TF32 &&
         key.batches == 1 && operations_of(key) >= LEAST_COPIED_OPERATIONS;
}

}  // namespace

ProductPlan::ProductPlan(const ProductKey &key, const Handle &handle)
    : cublaslt_(cublaslt::handle_of(static_cast<int>(key.device))),
      key_(key),
      addend_(stored_matrix(key.addend), key.batches, data_type(key.dtype)),
      result_(stored_matrix(key.result), key.batches, data_type(key.dtype)) {
  forms_.emplace_back(new ProductForm(key));
  add_algorithms(*forms_.back());
  if (algorithms_.empty() || !is_worth_copying(key) || is_capturing(handle.stream)) return;
  if (auto form = ProductForm::with_copies(key, handle)) {
    forms_.push_back(std::move(form));
    add_algorithms(*forms_.back());
  }
}

void ProductPlan::add_algorithms(const ProductForm &form) {
  const Preference preference(key_, form);
  const int wanted = is_worth_timing(key_) ? MOST_ALGORITHMS : 1;
  cublasLtMatmulHeuristicResult_t found[MOST_ALGORITHMS];
  int count = 0;
  const cublasStatus_t status =
      cublaslt::functions().cublasLtMatmulAlgoGetHeuristic(cublaslt_, form.operation(), form.left(), form.right(),
                                                           addend_, result_, preference, wanted, found, &count);
  // cuBLASLt rejects epilogues that it does not know for a dtype in several ways.
  if (status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED)
    cublaslt::fail_status(status, "cublasLtMatmulAlgoGetHeuristic");
  if (status != CUBLAS_STATUS_SUCCESS) return;
  for (int i = 0; i < count; ++i)
    if (found[i].state == CUBLAS_STATUS_SUCCESS)
      algorithms_.push_back({&form, found[i].algo, static_cast<int64_t>(found[i].workspaceSize)});
}

bool ProductPlan::run(const Handle &handle, double alpha, double beta, const ProductArrays &arrays,
                      bool verbose) const {
  const int chosen = choose(handle, alpha, beta, arrays, verbose);
  cublasStatus_t status;
  try {
    status = launch(algorithms_[chosen], handle, alpha, beta, arrays);
  } catch (const Error &error) {
    if (error.status != DNNOPS_OUT_OF_MEMORY || !chosen) throw;
    status = launch(algorithms_[0], handle, alpha, beta, arrays);  // has no copies
  }
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
  if (status != CUBLAS_STATUS_SUCCESS) cublaslt::fail_status(status, "cublasLtMatmul");
  return true;
}

cublasStatus_t ProductPlan::launch(const Algorithm &algorithm, const Handle &handle, double alpha, double beta,
                                   const ProductArrays &arrays) const {
  const ProductForm &form = *algorithm.form;
  const Scalar a(alpha, key_.dtype), b(beta, key_.dtype);
  const Workspace memory(*handle.arena, form.bytes() + algorithm.workspace);
  char *const copies = static_cast<char *>(memory.pointer()), *const workspace = copies + form.bytes();
  const void *left = arrays.left, *right = arrays.right;
  form.copy(left, right, copies, handle.stream);
  // Other threads use the plan with other addresses.
  OwnOperation operation(form.operation());
  if (arrays.bias) operation.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, arrays.bias);
  return cublaslt::functions().cublasLtMatmul(cublaslt_, operation, a.pointer(), left, form.left(), right,
                                              form.right(), b.pointer(), arrays.addend, addend_, arrays.result,
                                              result_, &algorithm.words, workspace,
                                              static_cast<size_t>(algorithm.workspace),
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

double ProductPlan::milliseconds(const Algorithm &algorithm, const Handle &handle, double alpha, double beta,
                                 const ProductArrays &arrays) const {
  const Event ends[RUNS];
  double least = HUGE_VAL;
  try {
    // The first run also loads the kernel. Those after it are launched while it runs.
    for (int i = 0; i <= RUNS; ++i) {
      if (i) DNNOPS_CHECK(cudaEventRecord(ends[i - 1], static_cast<cudaStream_t>(handle.stream)));
      if (i < RUNS && launch(algorithm, handle, alpha, beta, arrays) != CUBLAS_STATUS_SUCCESS) return HUGE_VAL;
    }
    for (int i = 1; i < RUNS; ++i) least = std::min(least, milliseconds_between(ends[i - 1], ends[i]));
  } catch (const Error &error) {
    if (error.status != DNNOPS_OUT_OF_MEMORY) throw;
  }
  return least;
}

int ProductPlan::find_fastest(const Handle &handle, double alpha, double beta, const ProductArrays &arrays,
                              bool verbose) const {
  std::vector<double> times;
  {
    ProductArrays trial = arrays;
    std::optional<Workspace> sum;
    if (beta != 0 && arrays.addend == arrays.result) {
      // Each run would add to the sum.
      const Operand &of = key_.result;
      const int64_t elements = (key_.batches - 1) * of.batch_stride + (of.columns - 1) * of.leading + of.rows;
      try {
        sum.emplace(*handle.arena, elements * item_size(key_.dtype));
      } catch (const Error &error) {
        if (error.status != DNNOPS_OUT_OF_MEMORY) throw;
        return 0;  // the product itself may need less memory
      }
      trial.result = sum->pointer();
    }
    for (const Algorithm &algorithm : algorithms_)
      times.push_back(milliseconds(algorithm, handle, alpha, beta, trial));
  }
  // Free the memory of the largest trial, which may not have been selected.
  handle.arena->free_idle();
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

std::shared_ptr<const ProductPlan> product_plan(const ProductKey &key, const Handle &handle) {
  // Not destroyed with static objects, because cuBLASLt may be unloaded by then.
  static auto *kept = new LruCache<ProductKey, ProductPlan, WordHash<ProductKey>>(KEPT_PRODUCTS);
  // Copies of operands are not tried during a capture, but later calls may need the plan with them.
  if (is_capturing(handle.stream)) {
    const auto found = kept->find(key);
    return found ? found : std::make_shared<ProductPlan>(key, handle);
  }
  return kept->get(key, [&] { return std::make_shared<ProductPlan>(key, handle); });
}

}  // namespace dnnops
