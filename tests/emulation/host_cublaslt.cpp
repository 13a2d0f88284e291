// The functions of cuBLASLt that products call, on the host, as NVIDIA documents them. Tests link this instead of
// cublaslt.cpp, and choose the epilogues that have an algorithm.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gpu/base/cublaslt.hpp"

namespace {

// Bits of cublasLtEpilogue_t.
constexpr int64_t RELU = 2, BIAS = 4, GELU = 32;
int64_t supported = ~int64_t(0), calls = 0;
// If not empty, the milliseconds of algorithms that compute nothing; those below 0 fail.
std::vector<double> durations;
double now = 0;  // what events record
int64_t last = 0;

struct HostLayout {
  int64_t type, rows, columns, leading, batches, stride;
};
struct HostOperation {
  int64_t transposes[2], epilogue, bias;
};

template <class T, class Opaque>
T &as(Opaque *opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque), "fits");
  return *reinterpret_cast<T *>(opaque);
}
template <class T, class Opaque>
const T &as(const Opaque *opaque) {
  return as<T>(const_cast<Opaque *>(opaque));
}

double load(const void *data, int64_t type, int64_t i) {
  if (type == CUDA_R_64F) return static_cast<const double *>(data)[i];
  if (type == CUDA_R_32F) return static_cast<const float *>(data)[i];
  if (type == CUDA_R_16F) return static_cast<const _Float16 *>(data)[i];
  const uint32_t word = uint32_t(static_cast<const uint16_t *>(data)[i]) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

void store(void *data, int64_t type, int64_t i, double value) {
  if (type == CUDA_R_64F) {
    static_cast<double *>(data)[i] = value;
  } else if (type == CUDA_R_32F) {
    static_cast<float *>(data)[i] = static_cast<float>(value);
  } else if (type == CUDA_R_16F) {
    static_cast<_Float16 *>(data)[i] = static_cast<_Float16>(value);
  } else {
    const float narrow = static_cast<float>(value);
    uint32_t word;
    std::memcpy(&word, &narrow, sizeof word);
    static_cast<uint16_t *>(data)[i] =
        value != value ? 0x7fff : static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

bool is_valid(const HostOperation &op, const HostLayout &a, const HostLayout &b, const HostLayout &c,
              const HostLayout &d) {
  const bool ta = op.transposes[0] == CUBLAS_OP_T, tb = op.transposes[1] == CUBLAS_OP_T;
  const int64_t inner = ta ? a.rows : a.columns;
  for (const HostLayout *t : {&a, &b, &c, &d})
    if (t->leading < t->rows || t->rows < 1 || t->columns < 1 || t->type != d.type) return false;
  if ((op.epilogue & BIAS) && !op.bias) return false;
  return (ta ? a.columns : a.rows) == d.rows && (tb ? b.columns : b.rows) == inner &&
         (tb ? b.rows : b.columns) == d.columns && c.rows == d.rows && c.columns == d.columns;
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130000; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  static int any;
  *handle = reinterpret_cast<cublasLtHandle_t>(&any);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t, cudaDataType_t) {
  *desc = new cublasLtMatmulDescOpaque_t();
  as<HostOperation>(*desc).epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return delete desc, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t size) {
  HostOperation &op = as<HostOperation>(desc);
  int64_t word = 0;
  std::memcpy(&word, value, size);
  size_t expected = 4;
  if (name == CUBLASLT_MATMUL_DESC_TRANSA)
    op.transposes[0] = word;
  else if (name == CUBLASLT_MATMUL_DESC_TRANSB)
    op.transposes[1] = word;
  else if (name == CUBLASLT_MATMUL_DESC_EPILOGUE)
    op.epilogue = word;
  else if (expected = 8; name == CUBLASLT_MATMUL_DESC_BIAS_POINTER)
    op.bias = word;
  else
    return CUBLAS_STATUS_INVALID_VALUE;
  return size == expected ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  *layout = new cublasLtMatrixLayoutOpaque_t();
  as<HostLayout>(*layout) = {type, int64_t(rows), int64_t(columns), leading, 1, 0};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return delete layout, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name,
                                                const void *value, size_t size) {
  std::memcpy(name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? &as<HostLayout>(layout).batches
                                                         : &as<HostLayout>(layout).stride,
              value, size);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  return *preference = new cublasLtMatmulPreferenceOpaque_t(), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return delete preference, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void *, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *count) {
  const HostOperation &op = as<HostOperation>(desc);
  *count = 0;
  if (!is_valid(op, as<HostLayout>(a), as<HostLayout>(b), as<HostLayout>(c), as<HostLayout>(d)))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (op.epilogue & ~1 & ~supported) return CUBLAS_STATUS_NOT_SUPPORTED;
  *count = std::max(1, std::min(wanted, int(durations.size())));
  for (int i = 0; i < *count; ++i) {
    results[i] = {};
    results[i].algo.data[0] = i;
    results[i].workspaceSize = 64;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *left,
                              cublasLtMatrixLayout_t a_layout, const void *right, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *addend, cublasLtMatrixLayout_t c_layout, void *result,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t bytes, cudaStream_t) {
  const HostOperation &op = as<HostOperation>(desc);
  const HostLayout &a = as<HostLayout>(a_layout), &b = as<HostLayout>(b_layout);
  const HostLayout &c = as<HostLayout>(c_layout), &d = as<HostLayout>(d_layout);
  if (!is_valid(op, a, b, c, d) || d.batches != 1) return CUBLAS_STATUS_INVALID_VALUE;
  ++calls;
  std::memset(workspace, 0, bytes);
  if (!durations.empty()) {
    const double duration = durations[last = int64_t(algorithm->data[0])];
    if (duration < 0) return CUBLAS_STATUS_EXECUTION_FAILED;
    now += duration;
    return CUBLAS_STATUS_SUCCESS;
  }
  const bool ta = op.transposes[0] == CUBLAS_OP_T, tb = op.transposes[1] == CUBLAS_OP_T;
  const int64_t scalar = d.type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F, inner = ta ? a.rows : a.columns;
  for (int64_t column = 0; column < d.columns; ++column)
    for (int64_t row = 0; row < d.rows; ++row) {
      double sum = 0;
      for (int64_t k = 0; k < inner; ++k)
        sum += load(left, a.type, ta ? k + row * a.leading : row + k * a.leading) *
               load(right, b.type, tb ? column + k * b.leading : k + column * b.leading);
      sum *= load(alpha, scalar, 0);
      if (const double factor = load(beta, scalar, 0)) sum += factor * load(addend, c.type, row + column * c.leading);
      if (op.epilogue & BIAS) sum += load(reinterpret_cast<void *>(op.bias), d.type, row);
      if ((op.epilogue & RELU) && sum <= 0) sum = 0;
      if (op.epilogue & GELU) sum = gelu(sum);
      store(result, d.type, row + column * d.leading, sum);
    }
  return CUBLAS_STATUS_SUCCESS;
}

// The sum of the bits that epilogues with an algorithm consist of.
void support_epilogues(int64_t bits) { supported = bits; }
// Products now take so many milliseconds, by algorithm, and compute nothing; none compute again.
void set_durations(const double *milliseconds, int64_t count) { durations.assign(milliseconds, milliseconds + count); }
// The algorithm of the last product.
int64_t last_algorithm() { return last; }
cudaError_t cudaEventCreate(cudaEvent_t *event) {
  return *event = reinterpret_cast<cudaEvent_t>(new double), cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete reinterpret_cast<double *>(event), cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  return *reinterpret_cast<double *>(event) = now, cudaSuccess;
}
// The number of products since the last call of this function.
int64_t count_products() {
  const int64_t found = calls;
  return calls = 0, found;
}

}  // extern "C"

namespace dnnops {

double milliseconds_between(cudaEvent_t start, cudaEvent_t stop) {
  return *reinterpret_cast<double *>(stop) - *reinterpret_cast<double *>(start);
}

namespace cublaslt {

Address look_up(const char *name) {
#define DNNOPS_FOUND(function) \
  if (!std::strcmp(name, #function)) return {reinterpret_cast<void *>(&function)};
  DNNOPS_FOUND(cublasLtGetVersion)
  DNNOPS_FOUND(cublasLtCreate)
  DNNOPS_FOUND(cublasLtMatmul)
  DNNOPS_FOUND(cublasLtMatmulAlgoGetHeuristic)
  DNNOPS_FOUND(cublasLtMatmulDescCreate)
  DNNOPS_FOUND(cublasLtMatmulDescDestroy)
  DNNOPS_FOUND(cublasLtMatmulDescSetAttribute)
  DNNOPS_FOUND(cublasLtMatmulPreferenceCreate)
  DNNOPS_FOUND(cublasLtMatmulPreferenceDestroy)
  DNNOPS_FOUND(cublasLtMatmulPreferenceSetAttribute)
  DNNOPS_FOUND(cublasLtMatrixLayoutCreate)
  DNNOPS_FOUND(cublasLtMatrixLayoutDestroy)
  DNNOPS_FOUND(cublasLtMatrixLayoutSetAttribute)
#undef DNNOPS_FOUND
  return {nullptr};  // not called here
}

const Functions &functions() {
  static const Functions found;
  return found;
}

cublasLtHandle_t handle_of(int) {
  static cublasLtHandle_t handle = nullptr;
  if (!handle) DNNOPS_CUBLASLT(cublasLtCreate, &handle);
  return handle;
}

void fail_status(cublasStatus_t status, const char *call) { fail(DNNOPS_LIBRARY_ERROR, "%s: %d", call, int(status)); }

}  // namespace cublaslt
}  // namespace dnnops
