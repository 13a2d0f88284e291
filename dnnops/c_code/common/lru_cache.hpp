// A bounded map shared by all threads. The least recently used entries are evicted first.
#ifndef DNNOPS_LRU_CACHE_HPP
#define DNNOPS_LRU_CACHE_HPP

#include <cstdint>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace dnnops {

struct CacheStatistics {
  int64_t size, capacity, hits, misses, evictions;
};

// Values are shared pointers, so that an entry in use by one thread outlives its eviction by another. If two
// threads miss the same key, both make the value and the first one is kept.
template <class Key, class Value, class Hash = std::hash<Key>>
class LruCache {
 public:
  explicit LruCache(size_t capacity) : capacity_(capacity) {}

  template <class Make>
  std::shared_ptr<Value> get(const Key &key, Make &&make) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto found = index_.find(key);
      if (found != index_.end()) {
        ++hits_;
        order_.splice(order_.begin(), order_, found->second);
        return found->second->second;
      }
      ++misses_;
    }
    std::shared_ptr<Value> value = make();
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = index_.find(key);
    if (found != index_.end()) return found->second->second;
    order_.emplace_front(key, value);
    index_[key] = order_.begin();
    trim();
    return value;
  }

  // Returns the value, or null.
  std::shared_ptr<Value> find(const Key &key) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = index_.find(key);
    if (found == index_.end()) {
      ++misses_;
      return nullptr;
    }
    ++hits_;
    order_.splice(order_.begin(), order_, found->second);
    return found->second->second;
  }

  // Like find(), but changes neither the statistics nor the order of use.
  std::shared_ptr<Value> peek(const Key &key) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = index_.find(key);
    return found == index_.end() ? nullptr : found->second->second;
  }

  // Sets the value, replacing any existing one.
  void put(const Key &key, std::shared_ptr<Value> value) {
    std::lock_guard<std::mutex> lock(mutex_);
    erase(key);
    order_.emplace_front(key, std::move(value));
    index_[key] = order_.begin();
    trim();
  }

  void remove(const Key &key) {
    std::lock_guard<std::mutex> lock(mutex_);
    erase(key);
  }

  // Removes the entries whose keys fulfil a condition.
  template <class Condition>
  void remove_if(Condition &&is_unwanted) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto item = order_.begin(); item != order_.end();) {
      const auto next = std::next(item);
      if (is_unwanted(item->first)) erase(Key(item->first));
      item = next;
    }
  }

  void clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    index_.clear();
    order_.clear();
  }

  void set_capacity(size_t capacity) {
    std::lock_guard<std::mutex> lock(mutex_);
    capacity_ = capacity;
    trim();
  }

  CacheStatistics statistics() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {(int64_t)order_.size(), (int64_t)capacity_, hits_, misses_, evictions_};
  }

 private:
  using Item = std::pair<Key, std::shared_ptr<Value>>;

  void erase(const Key &key) {
    auto found = index_.find(key);
    if (found == index_.end()) return;
    order_.erase(found->second);
    index_.erase(found);
  }

  void trim() {
    while (order_.size() > capacity_) {
      index_.erase(order_.back().first);
      order_.pop_back();
      ++evictions_;
    }
  }

  std::mutex mutex_;
  size_t capacity_;
  std::list<Item> order_;
  std::unordered_map<Key, typename std::list<Item>::iterator, Hash> index_;
  int64_t hits_ = 0, misses_ = 0, evictions_ = 0;
};

// FNV-1a over the words of a key struct without padding.
template <class Struct>
struct WordHash {
  static_assert(sizeof(Struct) % sizeof(int64_t) == 0, "a key consists of 8-byte words");
  size_t operator()(const Struct &key) const {
    const uint64_t *words = reinterpret_cast<const uint64_t *>(&key);
    uint64_t hash = 1469598103934665603ull;
    for (size_t i = 0; i < sizeof(Struct) / sizeof(uint64_t); ++i) hash = (hash ^ words[i]) * 1099511628211ull;
    return hash ^ (hash >> 32);
  }
};

}  // namespace dnnops
#endif
