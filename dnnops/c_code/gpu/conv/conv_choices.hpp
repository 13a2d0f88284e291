// Selections made by timing, for all threads of the process and, through Python, for later processes.
#ifndef DNNOPS_CUDNN_CONV_CHOICES_HPP
#define DNNOPS_CUDNN_CONV_CHOICES_HPP

#include "../../common/lru_cache.hpp"
#include "conv_plan.hpp"

namespace dnnops {

constexpr int MAX_PLAN_NAME = DNNOPS_MAX_PLAN_NAME;
constexpr int MAX_STORED_PLANS = 8;

using StoredPlan = dnnops_stored_plan;

struct StoredChoice {
  std::vector<StoredPlan> plans;  // fastest first
  bool from_disk = false;
};

// The fastest plans of a case, timed in this process or an earlier one; null if it was not timed.
std::shared_ptr<StoredChoice> find_choice(const ConvCase &conv, const Handle &handle);
// Searches only this process, when nothing was found a moment ago: another thread may have timed the case since.
std::shared_ptr<StoredChoice> find_new_choice(const ConvCase &conv, const Handle &handle);
// Stores a selection, also for later processes if it is lasting.
void store_choice(const ConvCase &conv, const Handle &handle, const std::vector<TimedPlan> &timed, bool is_lasting);
// Removes a selection if none of its plans can be built any more.
void drop_choice(const ConvCase &conv, const Handle &handle);

CacheStatistics choice_statistics();
void clear_choices();
void resize_choices(size_t capacity);

}  // namespace dnnops
#endif
