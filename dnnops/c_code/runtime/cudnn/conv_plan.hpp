// Plans: the ways in which cuDNN can run one convolution, from both of its APIs in one form.
#ifndef DNNOPS_CUDNN_CONV_PLAN_HPP
#define DNNOPS_CUDNN_CONV_PLAN_HPP

#include <cmath>
#include <functional>
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
// The math types, besides the usual one, that a legacy algorithm may be asked for by name.
std::vector<int64_t> other_math_types(const ConvCase &conv);
// Throws if the algorithm can't run this case.
std::shared_ptr<Plan> make_legacy_plan(const ConvCase &conv, const Handle &handle, const PlanSpec &spec);

// The output's shape as the legacy API works it out, which needs no GPU.
void legacy_output_shape(const ConvCase &conv, int64_t *shape);

// conv_graph.cpp
// The values that a knob of an engine can have.
struct Knob {
  int64_t type, minimum, maximum, stride;
};

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
  // Engines are numbered from 0 to this less 1.
  int64_t engine_count() const;
  std::vector<Knob> knobs(int64_t engine) const;
  // Throws if the engine can't run this case.
  std::shared_ptr<Plan> make_plan(const Candidate &candidate) const;

 private:
  BackendDescriptor engine(int64_t id) const;

  const Handle &handle_;
  int64_t direction_;
  BackendDescriptor graph_;
};

// Whether the settings of a case allow an engine with these numerical notes; else why not.
const char *forbidden(const ConvCase &conv, const PlanSpec &spec, int64_t notes);

// conv_gemm.cpp
// What cuBLASLt proposes; throws with the reason where a case is no matrix product.
std::vector<PlanSpec> gemm_specs(const ConvCase &conv, const Handle &handle);
std::shared_ptr<Plan> make_gemm_plan(const ConvCase &conv, const Handle &handle, const PlanSpec &spec);

// conv_wrong.cpp
// Throws with the evidence if the plan is known to compute wrong results for such a case.
void refuse_known_wrong(const ConvCase &conv, const PlanSpec &spec);
// Throws: of an engine of tensor cores without values for its knobs.
[[noreturn]] void refuse_knobless();

// conv_builder.cpp
// Builds plans of one case and keeps the reasons of those that can't be.
class PlanBuilder {
 public:
  // Returns true to end the visits.
  using Visit = std::function<bool(std::shared_ptr<Plan>)>;

  PlanBuilder(const ConvCase &conv, const Handle &handle, Refusals &refusals);
  ~PlanBuilder();

  // The plan, or null if it was refused.
  std::shared_ptr<Plan> from_spec(const PlanSpec &spec);

  // These build what was not built before, and return whether a visit ended them.
  // What cuDNN proposes in these modes, in turns.
  bool heuristics(const std::vector<cudnnBackendHeurMode_t> &modes, const Visit &visit);
  bool depthwise_kernels(const Visit &visit);
  bool matrix_products(const Visit &visit);
  // With the arrays transposed to the other memory format.
  bool other_format(const Visit &visit);
  // The gradient by the image as a forward convolution.
  bool as_forward(const Visit &visit);
  // What cuDNN proposes if nothing else runs, for the arrays as they are and for their copies; for these also
  // legacy algorithms.
  bool fallbacks(const Visit &visit);
  bool legacy_algorithms(const Visit &visit);
  bool legacy_math_types(const Visit &visit);
  bool other_engines(const Visit &visit);
  // All that a user may choose from by name: the above in the order in which they would be tried.
  bool all(const Visit &visit);
  // Those among which may be chosen; first what guess_* takes, so that timing finds nothing slower.
  bool trusted(const Visit &visit);
  // The same engine with other values of one knob at a time.
  bool neighbors(const PlanSpec &spec, const Visit &visit);

 private:
  bool likely(const Visit &visit);
  bool proposed(const Visit &visit);
  template <class Make>
  std::shared_ptr<Plan> attempt(const PlanSpec &spec, Make make);
  std::shared_ptr<Plan> from_candidate(const ConvGraph::Candidate &candidate);
  std::shared_ptr<Plan> checked(std::shared_ptr<Plan> plan) const;
  bool visit_spec(const PlanSpec &spec, const Visit &visit);
  bool is_new(const PlanSpec &spec);
  bool is_proposed(const PlanSpec &spec);
  ConvGraph *graph();
  struct Twin;
  enum TwinKind { OTHER_FORMAT = 0, AS_FORWARD = 1 };
  static TwinKind kind_of(const PlanSpec &spec) {
    return spec.format == FORMAT_AS_FORWARD ? AS_FORWARD : OTHER_FORMAT;
  }
  Twin *twin(TwinKind kind);
  template <class Body>
  bool in_twin(TwinKind kind, const Visit &visit, Body body);

  const ConvCase &conv_;
  const Handle &handle_;
  Refusals &refusals_;
  bool graph_made_ = false;
  std::unique_ptr<ConvGraph> graph_;
  bool twin_made_[2] = {};
  std::unique_ptr<Twin> twins_[2];
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

// Times plans of one case, on its operands but with a result of its own where the call's is added to.
class PlanTimer {
 public:
  PlanTimer(const ConvCase &conv, const Launch &launch);
  ~PlanTimer();
  // The median of some rounds, or of a long one a single time; infinity as soon as it is clear that it is far over
  // `best`, another plan's.
  double time(Plan &plan, double best = HUGE_VAL);
  void run(Plan &plan, int64_t repeats);

 private:
  // In milliseconds; the host's is that of the launch.
  struct Times {
    double device, host;
  };
  Times once(Plan &plan, double launch_milliseconds, bool is_short);
  void place_other_operands(const ConvCase &conv);

  Launch launch_, other_;  // on the operands, and on memory that is none's
  Workspace scratch_;
  std::unique_ptr<Workspace> other_memory_;
  std::unique_ptr<CacheFiller> filler_;
  PointerPack pack_, other_pack_;
  struct Clock;
  std::unique_ptr<Clock> clock_;
};

// Searches for the fastest plans within a time limit: fastest first, those that were too slow to be timed
// to the end, with an infinite time, last; empty if none ran.
std::vector<TimedPlan> search_plans(const ConvCase &conv, const Launch &launch, double seconds, Refusals &refusals);

// conv_choose.cpp
struct Choosing {
  const ConvCase &conv;
  const ConvParams &params;
  const Launch &launch;  // the operands, for timing
  bool explain = true;   // a plan that can't run: say which can, for which they are timed
};
struct Choice {
  std::shared_ptr<Plan> plan;  // null: none
  double milliseconds = NAN;   // NaN: not timed
  const char *source = "";     // timed, cache, guessed or given
  bool lasts = true;           // else the next call is to choose anew
};
// The plan that a wish stands for; throws with the reasons if there is none.
Choice choose_plan(const Choosing &choosing, int64_t wish, const PlanSpec &spec);
bool is_timed(int64_t wish);
// Work on this stream is being recorded into a CUDA graph.
bool is_capturing(void *stream);

}  // namespace dnnops
#endif
