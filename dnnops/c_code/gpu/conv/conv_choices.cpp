#include "conv_choices.hpp"

#include <algorithm>
#include <atomic>

namespace dnnops {

namespace {

// Stores selections for later processes.
struct Storage {
  dnnops_find_choice find;
  dnnops_store_choice store;
};
std::atomic<const Storage *> storage{nullptr};

// Only 8-byte fields and no padding.
struct ChoiceKey {
  ConvCase conv;
  int64_t device;
  bool operator==(const ChoiceKey &other) const { return !std::memcmp(this, &other, sizeof *this); }
};

LruCache<ChoiceKey, StoredChoice, WordHash<ChoiceKey>> &choices() {
  static auto *cache = new LruCache<ChoiceKey, StoredChoice, WordHash<ChoiceKey>>(4096);
  return *cache;
}

// The key is the same for all threads, and for all scaling factors that require the same work.
ChoiceKey choice_key(const ConvCase &conv, const Handle &handle) {
  ChoiceKey key;
  std::memset(&key, 0, sizeof key);
  key.conv = conv;
  key.conv.handle = 0;
  if (conv.fixed_scalars) {
    key.conv.alpha = 1;
    key.conv.beta = conv.beta != 0;
  }
  key.device = handle.device;
  return key;
}

}  // namespace

std::shared_ptr<StoredChoice> find_choice(const ConvCase &conv, const Handle &handle) {
  const ChoiceKey key = choice_key(conv, handle);
  if (auto found = choices().find(key)) return found;
  const Storage *from = storage.load();
  if (!from) return nullptr;
  auto choice = std::make_shared<StoredChoice>();
  choice->from_disk = true;
  choice->plans.resize(MAX_STORED_PLANS);
  choice->plans.resize(from->find(&key.conv, key.device, choice->plans.data(), MAX_STORED_PLANS));
  if (choice->plans.empty()) return nullptr;
  choices().put(key, choice);
  return choice;
}

std::shared_ptr<StoredChoice> find_new_choice(const ConvCase &conv, const Handle &handle) {
  return choices().peek(choice_key(conv, handle));
}

void store_choice(const ConvCase &conv, const Handle &handle, const std::vector<TimedPlan> &timed, bool is_lasting) {
  const ChoiceKey key = choice_key(conv, handle);
  auto choice = std::make_shared<StoredChoice>();
  for (size_t i = 0; i < timed.size() && i < MAX_STORED_PLANS && std::isfinite(timed[i].milliseconds); ++i) {
    StoredPlan stored;
    std::memset(&stored, 0, sizeof stored);
    stored.spec = timed[i].plan->spec;
    stored.milliseconds = timed[i].milliseconds;
    stored.workspace = timed[i].plan->workspace;
    std::strncpy(stored.name, timed[i].plan->name.c_str(), MAX_PLAN_NAME - 1);
    choice->plans.push_back(stored);
  }
  choices().put(key, choice);
  const Storage *to = storage.load();
  if (to && is_lasting)
    to->store(&key.conv, key.device, choice->plans.data(), static_cast<int64_t>(choice->plans.size()));
}

void drop_choice(const ConvCase &conv, const Handle &handle) {
  const ChoiceKey key = choice_key(conv, handle);
  choices().remove(key);
  if (const Storage *from = storage.load()) from->store(&key.conv, key.device, nullptr, 0);
}

CacheStatistics choice_statistics() { return choices().statistics(); }
void clear_choices() { choices().clear(); }
void resize_choices(size_t capacity) { choices().set_capacity(capacity); }

}  // namespace dnnops

DNNOPS_EXPORT void dnnops_cudnn_set_choice_storage(dnnops_find_choice find, dnnops_store_choice store) {
  // Never freed, because another thread may be reading it.
  dnnops::storage.store(find && store ? new dnnops::Storage{find, store} : nullptr);
}
