// A convolution on oneDNN: what decides how it is run, and the plan of one implementation.
#ifndef DNNOPS_ONEDNN_CONV_ENTRY_HPP
#define DNNOPS_ONEDNN_CONV_ENTRY_HPP

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "conv_params.hpp"
#include "plan.hpp"

namespace dnnops {

// Arrays are numbered by role, whichever the direction computes.
enum Role { IMAGE, FILTERS, TOP };
struct Roles {
  Role first, second, result;
};
Roles roles_of(int64_t direction);

// Who computes a convolution.
enum class ConvWay { BLAS, WINOGRAD, ONEDNN };
constexpr const char *BLAS_NAME = "gemm (BLAS)", *WINOGRAD_NAME = "winograd";
// What the Op takes for these parameters; throws for a dtype that nothing computes in, and for a plan
// that is named and does not compute this.
ConvWay conv_way(const ConvParams &params, const ConvProblem &problem, int64_t dtype);

// Everything that a plan depends on.
struct ConvKey {
  ConvProblem problem;
  int64_t strides[3][5];  // in elements; zeros for an array that has to be packed first
  int64_t threads;
  char name[PLAN_NAME_SIZE];  // of the implementation that is asked for; zeros: oneDNN's first
};
inline bool operator==(const ConvKey &a, const ConvKey &b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// A null name: oneDNN's first implementation.
ConvKey conv_key(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output,
                 const char *name = nullptr);

struct ConvEntry {
  Plan plan;
  std::string name;  // of the implementation, as oneDNN calls it
  bool packed[3] = {false, false, false};
  bool reordered[3] = {false, false, false};
  size_t pack_offset[3] = {0, 0, 0};
};

// Empties and turns off oneDNN's cache of primitives as long as it lives.  Going on from a first
// implementation that came from the cache, oneDNN 3.2 gives it again instead of the second one.
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

// What oneDNN has for a problem, its first choice in front.  Of several with one name the second ends
// in "#2", and so on.
std::vector<std::string> conv_implementations(const ConvProblem &problem, const NoPrimitiveCache &);

// The plan of one of them; of others than the first only without oneDNN's cache.
std::shared_ptr<ConvEntry> make_conv_entry(const ConvKey &key, int64_t implementation = 0);

// The plan that the key names, or of the first implementation; throws if there is none of that name.
std::shared_ptr<ConvEntry> make_wanted_entry(const ConvKey &key);

void run_conv_entry(const ConvEntry &entry, PlanRun &run, const ConvProblem &problem, const dnnops_tensor *inputs,
                    const dnnops_tensor &output);

}  // namespace dnnops
#endif
