#include "caches.hpp"

#include <cstring>
#include <vector>

#include "../../abi/python/dnnops_onednn.h"
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

DNNOPS_EXPORT const char *dnnops_onednn_cache(int64_t index, int64_t *statistics) {
  if (index >= static_cast<int64_t>(caches().size())) return nullptr;
  const CacheStatistics found = caches()[index].statistics();
  std::memcpy(statistics, &found, sizeof found);
  return caches()[index].name;
}

DNNOPS_EXPORT void dnnops_onednn_clear_caches(void) {
  for (const ListedCache &cache : caches()) cache.clear();
}

}  // namespace dnnops
