// Plans: the ways to run one convolution, from all APIs in one form.
#ifndef DNNOPS_CUDNN_CONV_PLAN_HPP
#define DNNOPS_CUDNN_CONV_PLAN_HPP

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "conv_case.hpp"
#include "../base/graph_builder.hpp"
#include "../base/handle.hpp"

namespace dnnops {

// The arguments that a call passes to a plan.
struct Launch {
  Handle *handle;
  void *pointers[ARRAY_COUNT];  // by Role and EpilogueOperand
  double alpha, beta;
  void *workspace;
};

// The graph API's list of pointers for one call. The node keeps it, since a memory pool returns the same
// addresses again and again, and making the list costs as much as launching.
struct PointerPack {
  BackendDescriptor descriptor;
  void *pointers[ARRAY_COUNT + 1];  // with the workspace at the end
};

struct Plan {
  PlanSpec spec;
  std::string name;
  int64_t workspace = 0;
  int64_t math = 0;   // a cudnnMathType_t, for legacy plans
  int64_t notes = 0;  // bit i: cudnnBackendNumericalNote_t i
  bool deterministic = true;
  bool takes_scalars = false;  // whether alpha and beta may differ from those that it was made for

  virtual ~Plan() = default;
  virtual void execute(const Launch &launch, PointerPack &pack) = 0;
};

// Why a candidate cannot be used.
struct Refusal {
  std::string name, reason;
  int status;
  PlanSpec spec;
  int64_t notes;
};
using Refusals = std::vector<Refusal>;

std::string plan_name(const PlanSpec &spec, int64_t direction);
bool same_spec(const PlanSpec &a, const PlanSpec &b);

// conv_legacy.cpp
int legacy_algorithm_count(int64_t direction);
const char *legacy_algorithm_name(int64_t direction, int64_t id);
bool legacy_is_deterministic(int64_t direction, int64_t id);
const char *legacy_math_name(int64_t math);
PlanSpec legacy_spec(int64_t id, int64_t math = USUAL_MATH);
// The math types other than the default that a legacy algorithm can be given by name.
std::vector<int64_t> other_math_types(const ConvCase &conv);
// Throws if the algorithm cannot run this case.
std::shared_ptr<Plan> make_legacy_plan(const ConvCase &conv, const Handle &handle, const PlanSpec &spec);

// The output shape as the legacy API computes it; needs no GPU.
void legacy_output_shape(const ConvCase &conv, int64_t *shape);

// conv_graph.cpp
// The possible values of an engine's knob.
struct Knob {
  int64_t type, minimum, maximum, stride;
};

// The engine configurations that cuDNN proposes for a case, before they are made into plans.
class ConvGraph {
 public:
  // The target's handle or described device has to live as long as the graph.
  ConvGraph(const ConvCase &conv, const GraphTarget &target);
  struct Candidate {
    BackendDescriptor config;
    PlanSpec spec;
    int64_t notes;
    bool too_many_knobs;  // too many to be described by a PlanSpec
  };
  std::vector<Candidate> heuristics(cudnnBackendHeurMode_t mode) const;
  Candidate from_spec(const PlanSpec &spec) const;
  // Engines are numbered from 0 to engine_count() - 1.
  int64_t engine_count() const;
  std::vector<Knob> knobs(int64_t engine) const;
  // Throws if the engine cannot run this case.
  std::shared_ptr<Plan> make_plan(const Candidate &candidate) const;

 private:
  BackendDescriptor engine(int64_t id) const;

  GraphTarget target_;
  int64_t direction_;
  std::vector<int> arrays_;
  BackendDescriptor graph_;
};

// Why the settings of a case forbid an engine with these numerical notes; null if they allow it.
const char *forbidden(const ConvCase &conv, const PlanSpec &spec, int64_t notes);

// conv_gemm.cpp
// The algorithms that cuBLASLt proposes. Throws with the reason if a case is not a matrix product.
std::vector<PlanSpec> gemm_specs(const ConvCase &conv, const Handle &handle);
std::shared_ptr<Plan> make_gemm_plan(const ConvCase &conv, const Handle &handle, const PlanSpec &spec);

// conv_wrong.cpp
// Throws with the evidence if the plan is known to compute wrong results in such a case.
void refuse_known_wrong(const ConvCase &conv, const PlanSpec &spec);
// Throws for a tensor-core engine without values for its knobs.
[[noreturn]] void refuse_knobless();

// conv_builder.cpp
// Builds plans of one case, and keeps the reasons for those that cannot be built.
class PlanBuilder {
 public:
  // Returns true to stop visiting.
  using Visit = std::function<bool(std::shared_ptr<Plan>)>;

  PlanBuilder(const ConvCase &conv, const Handle &handle, Refusals &refusals);
  ~PlanBuilder();

  // The plan, or null if it was rejected.
  std::shared_ptr<Plan> from_spec(const PlanSpec &spec);

  // These build plans that were not built before, and return whether a visit stopped them.
  // The proposals of cuDNN in these modes, in turns.
  bool heuristics(const std::vector<cudnnBackendHeurMode_t> &modes, const Visit &visit);
  bool depthwise_kernels(const Visit &visit);
  bool matrix_products(const Visit &visit);
  // Plans with the arrays transposed to the other memory format.
  bool other_format(const Visit &visit);
  // The gradient with respect to the image as a forward convolution.
  bool as_forward(const Visit &visit);
  // Plans of the case without its epilogue, and a kernel that computes it.
  bool unfused(const Visit &visit, bool (PlanBuilder::*which)(const Visit &));
  // The proposals of cuDNN's fallback heuristic, for the arrays and for their copies; for copies
  // also legacy algorithms.
  bool fallbacks(const Visit &visit);
  bool legacy_algorithms(const Visit &visit);
  bool legacy_math_types(const Visit &visit);
  bool other_engines(const Visit &visit);
  // All plans that a user can select by name: those above, in the order in which they would be tried.
  bool all(const Visit &visit);
  // The plans that may be selected. Those that guess_* would select come first, so that timing never selects
  // a slower one.
  bool trusted(const Visit &visit);
  // The same engine with other values for one knob at a time.
  bool neighbors(const PlanSpec &spec, const Visit &visit);

 private:
  bool likely(const Visit &visit);
  bool proposed(const Visit &visit);
  bool proposed_with_epilogue(const Visit &visit);
  template <class Make>
  std::shared_ptr<Plan> attempt(const PlanSpec &spec, Make make);
  std::shared_ptr<Plan> from_candidate(const ConvGraph::Candidate &candidate);
  std::shared_ptr<Plan> checked(std::shared_ptr<Plan> plan) const;
  bool visit_spec(const PlanSpec &spec, const Visit &visit);
  bool is_seen(const PlanSpec &spec) const;
  bool is_new(const PlanSpec &spec);
  bool is_proposed(const PlanSpec &spec);
  ConvGraph *graph();
  struct Twin;
  enum TwinKind { OTHER_FORMAT = 0, AS_FORWARD = 1, UNFUSED = 2 };
  static TwinKind kind_of(const PlanSpec &spec) {
    if (spec.format & FORMAT_UNFUSED) return UNFUSED;
    return spec.format == FORMAT_AS_FORWARD ? AS_FORWARD : OTHER_FORMAT;
  }
  // The spec within the twin of this kind.
  static PlanSpec inside(PlanSpec spec, TwinKind kind) {
    spec.format = kind == UNFUSED ? spec.format & ~FORMAT_UNFUSED : 0;
    return spec;
  }
  Twin *twin(TwinKind kind);
  template <class Body>
  bool in_twin(TwinKind kind, const Visit &visit, Body body);

  const ConvCase &conv_;
  const Handle &handle_;
  Refusals &refusals_;
  bool graph_made_ = false;
  std::unique_ptr<ConvGraph> graph_;
  bool twin_made_[3] = {};
  std::unique_ptr<Twin> twins_[3];
  bool products_visited_ = false;
  std::vector<PlanSpec> seen_;
  bool proposals_read_ = false;
  std::vector<PlanSpec> proposals_;
};

// conv_time.cpp
struct TimedPlan {
  std::shared_ptr<Plan> plan;
  double milliseconds;
};

class CacheFiller;

// Times plans of one case on its operands, with a separate result if the call adds to its output.
class PlanTimer {
 public:
  PlanTimer(const ConvCase &conv, const Launch &launch);
  ~PlanTimer();
  // The median of several rounds, or a single time if the rounds are long. Infinity as soon as it is clearly
  // far above `best`, the time of another plan.
  double time(Plan &plan, double best = HUGE_VAL);
  void run(Plan &plan, int64_t repeats);

 private:
  // In milliseconds; the host's time is that of the launch.
  struct Times {
    double device, host;
  };
  Times once(Plan &plan, double launch_milliseconds, bool is_short);
  void place_other_operands(const ConvCase &conv);

  Launch launch_, other_;  // on the operands, and on unrelated memory
  Workspace scratch_;
  std::unique_ptr<Workspace> other_memory_;
  std::unique_ptr<CacheFiller> filler_;
  PointerPack pack_, other_pack_;
  struct Clock;
  std::unique_ptr<Clock> clock_;
};

// Searches for the fastest plans within a time limit. Returns the fastest first; plans that were too slow to
// be timed to the end come last, with an infinite time. Empty if no plan ran.
std::vector<TimedPlan> search_plans(const ConvCase &conv, const Launch &launch, double seconds, Refusals &refusals);

// conv_choose.cpp
struct Choosing {
  const ConvCase &conv;
  const ConvParams &params;
  const Launch &launch;  // the operands, for timing
  bool explain = true;   // if a plan cannot run, say which plans can, timing them if needed
};
struct Choice {
  std::shared_ptr<Plan> plan;  // null if there is none
  double milliseconds = NAN;   // NaN if it was not timed
  const char *source = "";     // timed, cache, guessed or given
  bool lasts = true;           // if false, the next call selects again
};
// Selects the plan for a policy. Throws with the reasons if there is none.
Choice choose_plan(const Choosing &choosing, int64_t policy, const PlanSpec &spec);
bool is_timed(int64_t policy);

}  // namespace dnnops
#endif
