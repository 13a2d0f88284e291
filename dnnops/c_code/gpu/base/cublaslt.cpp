#include "cublaslt.hpp"

#include <dlfcn.h>

#include <map>
#include <mutex>

namespace dnnops {
namespace cublaslt {

Address look_up(const char *name) {
  static const std::string library_name = "libcublasLt.so." + std::to_string(CUDART_VERSION / 1000);
  static void *const library = [] {
    void *opened = dlopen(library_name.c_str(), RTLD_NOW);
    if (!opened) fail(DNNOPS_NOT_SUPPORTED, "cuBLASLt cannot be loaded: %s", dlerror());
    return opened;
  }();
  void *const found = dlsym(library, name);
  if (!found) fail(DNNOPS_NOT_SUPPORTED, "%s has no %s", library_name.c_str(), name);
  return {found};
}

const Functions &functions() {
  static const Functions found;
  return found;
}

cublasLtHandle_t handle_of(int device) {
  static std::mutex mutex;
  static auto *handles = new std::map<int, cublasLtHandle_t>;
  std::lock_guard<std::mutex> lock(mutex);
  cublasLtHandle_t &handle = (*handles)[device];
  if (!handle) DNNOPS_CUBLASLT(cublasLtCreate, &handle);
  return handle;
}

void fail_status(cublasStatus_t status, const char *call) {
  const bool unsupported = status == CUBLAS_STATUS_NOT_SUPPORTED;
  const int kind = status == CUBLAS_STATUS_ALLOC_FAILED ? DNNOPS_OUT_OF_MEMORY
                   : unsupported                        ? DNNOPS_NOT_SUPPORTED
                                                        : DNNOPS_LIBRARY_ERROR;
  fail(kind, "%s failed with status %d%s", call, int(status), unsupported ? " (not supported)" : "");
}

}  // namespace cublaslt
}  // namespace dnnops

// Returns 0 if cuBLASLt cannot be loaded.
DNNOPS_EXPORT int64_t dnnops_cudnn_cublaslt_version(void) {
  try {
    return static_cast<int64_t>(dnnops::cublaslt::functions().cublasLtGetVersion());
  } catch (const dnnops::Error &) {
    return 0;
  }
}
