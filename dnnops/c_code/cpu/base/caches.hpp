// The library's caches, which Python lists and clears.
#ifndef DNNOPS_ONEDNN_CACHES_HPP
#define DNNOPS_ONEDNN_CACHES_HPP

#include "../../common/lru_cache.hpp"

namespace dnnops {

struct ListedCache {
  const char *name;
  CacheStatistics (*statistics)();
  void (*clear)();
};

// Adds a cache to the list, during static initialization. Returns true.
bool add_cache(const ListedCache &cache);

}  // namespace dnnops

// Lists a cache, which is an expression, under a name.
#define DNNOPS_EXPORT_CACHE(name, cache)                 \
  [[maybe_unused]] static const bool name##_is_listed = \
      ::dnnops::add_cache({#name, [] { return (cache).statistics(); }, [] { (cache).clear(); }});
#endif
