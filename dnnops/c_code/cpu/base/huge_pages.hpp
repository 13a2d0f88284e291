// Memory for large results.
#ifndef DNNOPS_ONEDNN_HUGE_PAGES_HPP
#define DNNOPS_ONEDNN_HUGE_PAGES_HPP

#include <cstdint>

#include <sys/mman.h>

namespace dnnops {

// Requests huge pages for a result, as NumPy does for its arrays. Numba's arrays have none, and the system
// then takes longer to provide 4 KiB pages than a simple operation takes to fill them.
inline void prefer_huge_pages(void *data, int64_t bytes) {
  constexpr int64_t kPage = 4096, kLarge = 4 << 20;
  if (bytes < kLarge) return;
  const int64_t offset = kPage - (int64_t)(reinterpret_cast<uintptr_t>(data) % kPage);
  // This is only a hint, so a system that does not support it is not an error.
  (void)madvise(static_cast<char *>(data) + offset, bytes - offset, MADV_HUGEPAGE);
}

}  // namespace dnnops
#endif
