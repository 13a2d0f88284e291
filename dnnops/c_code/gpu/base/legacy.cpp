#include "legacy.hpp"

#include <dlfcn.h>

namespace dnnops {
namespace legacy {

namespace {

// The library may have been loaded without RTLD_GLOBAL, so search it directly.
void *look_up(const char *name) {
  static void *library = [] {
    Dl_info where;
    return dladdr(reinterpret_cast<void *>(&cudnnGetVersion), &where)
               ? dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
               : nullptr;
  }();
  return dlsym(library ? library : RTLD_DEFAULT, name);
}

}  // namespace

#define DNNOPS_DEFINE(name, parameters) \
  cudnnStatus_t(*const name) parameters = reinterpret_cast<cudnnStatus_t(*) parameters>(look_up(#name));
DNNOPS_LEGACY_FUNCTIONS(DNNOPS_DEFINE)
#undef DNNOPS_DEFINE

void fail_missing(const char *name) {
  fail(DNNOPS_NOT_SUPPORTED, "cuDNN %zu no longer has %s, which this Op needs; use an older cuDNN 9",
       cudnnGetVersion(), name);
}

}  // namespace legacy
}  // namespace dnnops
