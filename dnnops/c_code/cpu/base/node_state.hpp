// The state that a node keeps between calls: the plan for its last operands, so that repeated calls on the same
// shapes need no lookup.
#ifndef DNNOPS_ONEDNN_NODE_STATE_HPP
#define DNNOPS_ONEDNN_NODE_STATE_HPP

#include <cstring>
#include <memory>

#include "plan.hpp"

namespace dnnops {

// The entry of a plan that needs no further data.
struct PlanEntry {
  Plan plan;
};

// The cache for one kind of keys. Never destroyed, because threads may outlive static objects.
template <class Key, class Entry>
LruCache<Key, Entry, WordHash<Key>> &entry_cache() {
  static auto *entries = new LruCache<Key, Entry, WordHash<Key>>(256);
  return *entries;
}

// Entry holds a Plan as its base or as its member `plan`.
template <class Key, class Entry>
struct NodeState : State {
  Key key;
  std::shared_ptr<Entry> entry;
  std::unique_ptr<PlanRun> run;
};

// Calls use(entry, run) with the entry for key: the node's last one, one from the cache, or a new one from
// make(). With a null node, nothing is kept.
template <class Key, class Entry, class Make, class Use>
void with_entry(NodeState<Key, Entry> *node, LruCache<Key, Entry, WordHash<Key>> &cache, const Key &key, Make &&make,
                Use &&use) {
  if (node && node->run && std::memcmp(&node->key, &key, sizeof key) == 0) {
    use(*node->entry, *node->run);
    return;
  }
  std::shared_ptr<Entry> entry = cache.get(key, make);
  // The entry owns its plan; the run's pointer to the plan keeps the entry alive.
  auto run = std::make_unique<PlanRun>(std::shared_ptr<const Plan>(entry, &entry->plan));
  use(*entry, *run);
  if (!node) return;
  node->key = key;
  node->entry = std::move(entry);
  node->run = std::move(run);
}

template <class Key, class Entry, class Make, class Use>
void with_entry(const dnnops_context &context, LruCache<Key, Entry, WordHash<Key>> &cache, const Key &key,
                Make &&make, Use &&use) {
  const StateLease<NodeState<Key, Entry>> lease(context.state);
  with_entry(lease.get(), cache, key, make, use);
}

}  // namespace dnnops
#endif
