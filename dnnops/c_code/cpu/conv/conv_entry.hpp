// Convolution with oneDNN: the plan of one implementation.
#ifndef DNNOPS_ONEDNN_CONV_ENTRY_HPP
#define DNNOPS_ONEDNN_CONV_ENTRY_HPP

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "conv_params.hpp"
#include "../base/plan.hpp"

namespace dnnops {

// Arrays are numbered by role, independently of the direction.
enum Role { IMAGE, FILTERS, TOP };
struct Roles {
  Role first, second, result;
};
Roles roles_of(int64_t direction);

// Everything that a plan depends on.
struct ConvKey {
  ConvProblem problem;
  int64_t strides[3][5];  // in elements; zeros for an array that must be packed first
  int64_t threads;
  char name[PLAN_NAME_SIZE];  // the requested implementation; zeros for oneDNN's first
};
inline bool operator==(const ConvKey &a, const ConvKey &b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// With a null name, the key asks for oneDNN's first implementation.
ConvKey conv_key(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output,
                 const char *name = nullptr);

struct ConvEntry {
  Plan plan;
  std::string name;  // the implementation's name in oneDNN
  bool packed[3] = {false, false, false};
  bool reordered[3] = {false, false, false};
  size_t pack_offset[3] = {0, 0, 0};
};

// Empties and disables oneDNN's primitive cache during its lifetime. If the first implementation came from
// the cache, oneDNN 3.2 returns it again instead of the second one.
class NoPrimitiveCache {
 public:
  NoPrimitiveCache();
  ~NoPrimitiveCache();
  NoPrimitiveCache(const NoPrimitiveCache &) = delete;
  NoPrimitiveCache &operator=(const NoPrimitiveCache &) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  int capacity_;
};

// The names of oneDNN's implementations of a problem, its first choice in front. If several have the same
// name, the second gets the suffix "#2", and so on.
std::vector<std::string> conv_implementations(const ConvProblem &problem, const NoPrimitiveCache &);

// Makes the plan of one implementation. Implementations other than the first can only be reached without
// oneDNN's cache.
std::shared_ptr<ConvEntry> make_conv_entry(const ConvKey &key, int64_t implementation = 0);

// Makes the plan of the implementation with this name, of those that conv_implementations() returned while oneDNN's
// cache was disabled, as it still has to be. Throws if there is none.
std::shared_ptr<ConvEntry> make_named_entry(const ConvKey &key, const std::string &name,
                                            const std::vector<std::string> &names);

// Makes the plan that the key names, or that of the first implementation. Throws if no implementation has that name.
std::shared_ptr<ConvEntry> make_wanted_entry(const ConvKey &key);

void run_conv_entry(const ConvEntry &entry, PlanRun &run, const ConvProblem &problem, const dnnops_tensor *inputs,
                    const dnnops_tensor &output);

}  // namespace dnnops
#endif
