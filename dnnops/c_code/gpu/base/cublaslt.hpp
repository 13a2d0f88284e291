// The cuBLASLt functions that are called here, looked up on first use. The library is not linked: without it,
// its plans are rejected, and others run.
#ifndef DNNOPS_CUDNN_CUBLASLT_HPP
#define DNNOPS_CUDNN_CUBLASLT_HPP

#include <cublasLt.h>

#include "check.hpp"

namespace dnnops {
namespace cublaslt {

// X(name); all return a status.
#define DNNOPS_CUBLASLT_FUNCTIONS(X)      \
  X(cublasLtCreate)                       \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulAlgoCapGetAttribute)    \
  X(cublasLtMatmulAlgoCheck)              \
  X(cublasLtMatmulAlgoConfigGetAttribute) \
  X(cublasLtMatmulAlgoConfigSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulAlgoInit)               \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatrixLayoutSetAttribute)

// Converts to any function pointer.
struct Address {
  void *value;
  template <class Function>
  operator Function *() const {
    return reinterpret_cast<Function *>(value);
  }
};

// Throws with the reason if the library cannot be loaded or lacks the function.
Address look_up(const char *name);

struct Functions {
#define DNNOPS_MEMBER(name) decltype(&::name) name = ::dnnops::cublaslt::look_up(#name);
  DNNOPS_MEMBER(cublasLtGetVersion)
  DNNOPS_CUBLASLT_FUNCTIONS(DNNOPS_MEMBER)
#undef DNNOPS_MEMBER
};

const Functions &functions();
// One handle per device, never destroyed. The device must be current.
cublasLtHandle_t handle_of(int device);

[[noreturn]] void fail_status(cublasStatus_t status, const char *call);

}  // namespace cublaslt

#define DNNOPS_CUBLASLT(name, ...)                                                                             \
  do {                                                                                                         \
    const cublasStatus_t status_ = ::dnnops::cublaslt::functions().name(__VA_ARGS__);                          \
    if (__builtin_expect(status_ != CUBLAS_STATUS_SUCCESS, 0)) ::dnnops::cublaslt::fail_status(status_, #name); \
  } while (0)

}  // namespace dnnops
#endif
