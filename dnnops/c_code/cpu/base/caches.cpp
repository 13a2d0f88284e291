#include "caches.hpp"

#include <vector>

#include "../../common/error.hpp"

namespace dnnops {
namespace {

std::vector<ListedCache> &caches() {
  static auto *list = new std::vector<ListedCache>;
  return *list;
}

}  // namespace

bool add_cache(const ListedCache &cache) {
  caches().push_back(cache);
  return true;
}

// Returns the name of a cache, or null after the last one, and gets its statistics.
DNNOPS_EXPORT const char *dnnops_onednn_cache(int64_t index, CacheStatistics *statistics) {
  if (index >= static_cast<int64_t>(caches().size())) return nullptr;
  *statistics = caches()[index].statistics();
  return caches()[index].name;
}

DNNOPS_EXPORT void dnnops_onednn_clear_caches(void) {
  for (const ListedCache &cache : caches()) cache.clear();
}

}  // namespace dnnops
