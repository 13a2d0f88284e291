// Plans: the ways in which cuDNN can run one convolution, from both of its APIs in one form.
#ifndef DNNOPS_CUDNN_CONV_PLAN_HPP
#define DNNOPS_CUDNN_CONV_PLAN_HPP

#include <memory>
#include <string>
#include <vector>

#include "conv_case.hpp"
#include "handle.hpp"

namespace dnnops {

// What a call gives a plan to run on.
struct Launch {
  Handle *handle;
  void *pointers[3];  // by Role
  double alpha, beta;
  void *workspace;
};

// The graph API's list of pointers for one call: kept by the node, since the same addresses come
// again and again from a memory pool, and making the list costs as much as launching.
struct PointerPack {
  BackendDescriptor descriptor;
  void *pointers[4];
};

struct Plan {
  PlanSpec spec;
  std::string name;
  int64_t workspace = 0;
  int64_t math = 0;   // a cudnnMathType_t, of legacy plans
  int64_t notes = 0;  // bit i: cudnnBackendNumericalNote_t i
  bool deterministic = true;
  bool takes_scalars = false;  // alpha and beta may differ from those that it was made for

  virtual ~Plan() = default;
  virtual void execute(const Launch &launch, PointerPack &pack) = 0;
};

// Why a candidate can't be used.
struct Refusal {
  std::string name, reason;
  int status;
};
using Refusals = std::vector<Refusal>;

std::string plan_name(const PlanSpec &spec, int64_t direction);

// conv_legacy.cpp
int legacy_algorithm_count(int64_t direction);
const char *legacy_algorithm_name(int64_t direction, int64_t id);
bool legacy_is_deterministic(int64_t direction, int64_t id);
// Throws if the algorithm can't run this case.
std::shared_ptr<Plan> make_legacy_plan(const ConvCase &conv, const Handle &handle, int64_t id);

// The output's shape as the legacy API works it out, which needs no GPU.
void legacy_output_shape(const ConvCase &conv, int64_t *shape);

// conv_graph.cpp
// The engine configurations that cuDNN proposes for a case, each yet to be made into a plan.
class ConvGraph {
 public:
  ConvGraph(const ConvCase &conv, const Handle &handle);
  struct Candidate {
    BackendDescriptor config;
    PlanSpec spec;
    int64_t notes;
    bool too_many_knobs;  // to be described by a PlanSpec
  };
  std::vector<Candidate> heuristics(cudnnBackendHeurMode_t mode) const;
  Candidate from_spec(const PlanSpec &spec) const;
  // Throws if the engine can't run this case.
  std::shared_ptr<Plan> make_plan(const Candidate &candidate) const;

 private:
  const Handle &handle_;
  int64_t direction_;
  BackendDescriptor graph_;
};

// Whether the settings of a case allow an engine with these numerical notes; else why not.
const char *forbidden(const ConvCase &conv, int64_t notes);

// conv_choose.cpp
struct Choosing {
  const ConvCase &conv;
  const ConvParams &params;
  const Launch &launch;  // the operands, for timing
};
// The plan that a wish stands for; throws with the reasons if there is none.
std::shared_ptr<Plan> choose_plan(const Choosing &choosing, int64_t wish, const PlanSpec &spec);

// Every plan that can be built, in the order in which they would be tried; the others with their reasons.
std::vector<std::shared_ptr<Plan>> all_plans(const ConvCase &conv, const Handle &handle, Refusals &refusals);

// conv_time.cpp: the fastest of these plans.
std::shared_ptr<Plan> fastest_plan(const Choosing &choosing, const std::vector<std::shared_ptr<Plan>> &plans,
                                   Refusals &refusals);

}  // namespace dnnops
#endif
