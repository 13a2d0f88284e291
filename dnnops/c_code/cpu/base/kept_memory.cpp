// How much freed memory the process keeps.
//
// A step of a network allocates and frees the same arrays each time. By default, glibc's malloc returns what is
// freed to the system, beyond 64 MiB at most, and the system hands out each page again, filled with zeros.
#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>

#ifdef __linux__
#include <malloc.h>
#endif

#include "../../abi/python/dnnops_onednn.h"
#include "../../common/error.hpp"

#ifdef __GLIBC__
namespace {

bool is_tuned() {
  for (const char *name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"})
    if (std::getenv(name)) return true;
  const char *tunables = std::getenv("GLIBC_TUNABLES");
  return tunables && std::strstr(tunables, "glibc.malloc.");
}

}  // namespace
#endif

DNNOPS_EXPORT int dnnops_onednn_keep_freed_memory(int64_t bytes) {
#ifdef __GLIBC__
  if (bytes <= 0 || is_tuned()) return 0;
  // Larger blocks are mapped one by one, and unmapped when they are freed. glibc raises the threshold to 32 MiB by
  // itself, but not once the other one is set.
  constexpr int kMapped = 32 << 20;
  return mallopt(M_MMAP_THRESHOLD, kMapped) && mallopt(M_TRIM_THRESHOLD, (int)std::min<int64_t>(bytes, INT_MAX));
#else
  (void)bytes;
  return 0;
#endif
}
