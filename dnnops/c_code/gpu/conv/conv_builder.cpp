// Plans of all APIs, built one after the other, or rejected with a reason.
#include <algorithm>

#include "../depthwise/conv_depthwise.hpp"
#include "conv_epilogue.hpp"
#include "conv_relayout.hpp"

namespace dnnops {

namespace {

// The number of values tried for one knob, spread over its range.
constexpr int64_t MAX_KNOB_VALUES = 16;

struct DeviceMemory {
  size_t free = 0, total = 0;
  DeviceMemory() { DNNOPS_CHECK(cudaMemGetInfo(&free, &total)); }
};

// Memory taken by the driver, the kernels of libraries and so on.
constexpr int64_t RESERVED_BYTES = int64_t(1) << 30;

int64_t operand_bytes(const ConvCase &conv) {
  int64_t bytes = 0;
  for (const Tensor &array : conv.tensors) bytes += elements(array) * item_size(conv.dtype);
  return bytes;
}

bool uses_tensor_cores(const ConvCase &conv) {
  return conv.dtype == DNNOPS_FLOAT16 || conv.dtype == DNNOPS_BFLOAT16 ||
         (conv.dtype == DNNOPS_FLOAT32 && conv.allow_tf32);
}

bool all_have_format(const ConvCase &conv, int64_t format) {
  return std::all_of(conv.tensors, conv.tensors + 3,
                     [=](const Tensor &array) { return dense_formats(array) & format; });
}

constexpr int64_t MIN_FAST_CHANNELS = 16;
// With a workspace that is more times as large as the operands, Winograd's algorithm was slower than a product.
constexpr int64_t MOST_FAST_WORKSPACE = 16;
constexpr int WINOGRAD_SIZE = 3;
constexpr int IMPLICIT_PRODUCT = 1;  // the legacy algorithm of each direction

// The largest workspace of a fast algorithm that is guessed.
int64_t most_fast_workspace(const ConvCase &conv) {
  const bool is_winograd = conv.tensors[ROLE_FILTERS].shape[2] == WINOGRAD_SIZE;
  return is_winograd ? MOST_FAST_WORKSPACE * operand_bytes(conv) : INT64_MAX;
}

// Legacy algorithms that are usually faster in float32 than the first choice of cuDNN's heuristics: they
// multiply less, which matters without tensor cores.
std::vector<PlanSpec> fast_algorithms(const ConvCase &conv) {
  const Tensor &filters = conv.tensors[ROLE_FILTERS];
  const bool plain = conv.dtype == DNNOPS_FLOAT32 && !conv.allow_tf32 && conv.groups == 1 && conv.spatial_ndim == 2 &&
                     conv.stride[0] == 1 && conv.stride[1] == 1 && conv.dilation[0] == 1 && conv.dilation[1] == 1;
  const int64_t height = filters.shape[2], width = filters.shape[3];
  if (!plain || height != width || std::min(filters.shape[0], filters.shape[1]) < MIN_FAST_CHANNELS) return {};
  static const int winograd[3] = {7, 5, 5}, fft_tiling[3] = {5, 3, 6};  // by direction
  if (height == WINOGRAD_SIZE) return {legacy_spec(winograd[conv.direction])};
  if (height < 5) return {};
  PlanSpec tiling = legacy_spec(fft_tiling[conv.direction]);
  for (const Tensor &array : conv.tensors)
    if (!(dense_formats(array) & FORMAT_CONTIGUOUS)) tiling.format = FORMAT_CONTIGUOUS;  // all it supports
  return {tiling};
}

// The prefixes of plan names, by Api; dnnops/gpu/algorithms.py has the same.
const char *const api_prefixes[] = {"", "engine", "depthwise", "gemm"};

PlanSpec unspecific(Api api, int64_t id = -1) {
  PlanSpec spec;
  std::memset(&spec, 0, sizeof spec);
  spec.api = api;
  spec.id = id;
  spec.math = USUAL_MATH;
  return spec;
}

std::string format_suffix(int64_t format) {
  std::string suffix;
  switch (format & ~FORMAT_UNFUSED) {
    case FORMAT_CONTIGUOUS: suffix = "_contiguous"; break;
    case FORMAT_CHANNELS_LAST: suffix = "_channels_last"; break;
    case FORMAT_AS_FORWARD: suffix = "_as_forward"; break;
  }
  return format & FORMAT_UNFUSED ? suffix + "_unfused" : suffix;
}

// Engines that no heuristic of cuDNN proposes are not tested as well: several gave wrong results. They are
// only selected by timing for versions in which all of them were compared with the reference.
bool trusts_other_engines() { return cudnnGetVersion() / 100 == 919; }

}  // namespace

bool same_spec(const PlanSpec &a, const PlanSpec &b) { return !std::memcmp(&a, &b, sizeof a); }

std::string plan_name(const PlanSpec &spec, int64_t direction) {
  std::string name;
  if (spec.api == API_LEGACY) {
    const char *algorithm = legacy_algorithm_name(direction, spec.id), *math = legacy_math_name(spec.math);
    name = algorithm ? algorithm : "algorithm " + std::to_string(spec.id);
    if (math) name += std::string("_") + math;
  } else {
    name = api_prefixes[spec.api];
    if (spec.id >= 0) name += std::to_string(spec.id);
  }
  for (int64_t i = 0; i < spec.knob_count; ++i)
    name += "_k" + std::to_string(spec.knobs[2 * i]) + "=" + std::to_string(spec.knobs[2 * i + 1]);
  return name + format_suffix(spec.format);
}

// Another case: on copies of the arrays, or without the epilogue. Its plans, together with the copies or with the
// epilogue's kernel, become plans of this case.
struct PlanBuilder::Twin {
  Relayout relayout;
  Refusals refusals;
  PlanBuilder builder;

  Twin(Relayout other, const Handle &handle)
      : relayout(std::move(other)), builder(relayout.inner, handle, refusals) {}
};

namespace {

Relayout without_epilogue(const ConvCase &conv) {
  if (!has_epilogue(conv)) fail(DNNOPS_NOT_SUPPORTED, "there is no epilogue");
  Relayout other = {};
  other.inner = conv;
  other.format = FORMAT_UNFUSED;
  std::memset(&other.inner.epilogue, 0, sizeof other.inner.epilogue);
  return other;
}

}  // namespace

PlanBuilder::PlanBuilder(const ConvCase &conv, const Handle &handle, Refusals &refusals)
    : conv_(conv), handle_(handle), refusals_(refusals) {}
PlanBuilder::~PlanBuilder() = default;

template <class Make>
std::shared_ptr<Plan> PlanBuilder::attempt(const PlanSpec &spec, Make make) {
  try {
    return make();
  } catch (const Error &error) {
    refusals_.push_back({plan_name(spec, conv_.direction), error.message, error.status, spec, 0});
    return nullptr;
  }
}

ConvGraph *PlanBuilder::graph() {
  if (!graph_made_) {
    graph_made_ = true;
    try {
      if (!conv_.fixed_scalars) fail(DNNOPS_NOT_SUPPORTED, "not offered because alpha or beta change between calls");
      graph_.reset(new ConvGraph(conv_, {handle_.cudnn, nullptr}));
    } catch (const Error &error) {
      refusals_.push_back({"graph API", error.message, error.status, unspecific(API_GRAPH), 0});
    }
  }
  return graph_.get();
}

// Throws if the workspace is over the limit or exceeds the device's memory.
std::shared_ptr<Plan> PlanBuilder::checked(std::shared_ptr<Plan> plan) const {
  if (conv_.workspace_limit >= 0 && plan->workspace > conv_.workspace_limit)
    fail(DNNOPS_NOT_SUPPORTED, "its workspace of %lld bytes is over the limit of %lld (flag dnn.conv.workspace_limit)",
         (long long)plan->workspace, (long long)conv_.workspace_limit);
  const DeviceMemory memory;
  if (plan->workspace > static_cast<int64_t>(memory.total) - operand_bytes(conv_) - RESERVED_BYTES)
    fail(DNNOPS_NOT_SUPPORTED, "its workspace of %lld bytes is more than the device memory left by the operands",
         (long long)plan->workspace);
  // Memory that the allocator keeps for later also counts as free, but only the allocator knows how much.
  if (plan->workspace > static_cast<int64_t>(memory.free)) {
    Workspace(*handle_.arena, plan->workspace);
    handle_.arena->free_idle();
  }
  return plan;
}

std::shared_ptr<Plan> PlanBuilder::from_candidate(const ConvGraph::Candidate &candidate) {
  const auto refuse = [&](int status, const std::string &reason) {
    refusals_.push_back(
        {plan_name(candidate.spec, conv_.direction), reason, status, candidate.spec, candidate.notes});
    return nullptr;
  };
  if (candidate.too_many_knobs)
    return refuse(DNNOPS_NOT_SUPPORTED, "it has more than " + std::to_string(MAX_KNOBS) + " knobs");
  if (const char *reason = forbidden(conv_, candidate.spec, candidate.notes)) return refuse(DNNOPS_NOT_SUPPORTED, reason);
  try {
    refuse_known_wrong(conv_, candidate.spec);
    const bool is_knobless = !candidate.spec.knob_count && candidate.notes >> CUDNN_NUMERICAL_NOTE_TENSOR_CORE & 1;
    if (is_knobless && !is_proposed(candidate.spec)) refuse_knobless();
    return checked(graph()->make_plan(candidate));
  } catch (const Error &error) {
    return refuse(error.status, error.message);
  }
}

PlanBuilder::Twin *PlanBuilder::twin(TwinKind kind) {
  if (!twin_made_[kind]) {
    twin_made_[kind] = true;
    static const struct {
      Relayout (*make)(const ConvCase &);
      const char *name;
    } kinds[] = {{make_relayout, "other memory format"},
                 {make_forward_relayout, "as a forward convolution"},
                 {without_epilogue, "unfused"}};
    try {
      twins_[kind].reset(new Twin(kinds[kind].make(conv_), handle_));
    } catch (const Error &error) {
      refusals_.push_back({kinds[kind].name, error.message, error.status, unspecific(API_GRAPH), 0});
    }
  }
  return twins_[kind].get();
}

// Runs `body(builder, visit)` with the builder of the other case and a visitor for its plans.
template <class Body>
bool PlanBuilder::in_twin(TwinKind kind, const Visit &visit, Body body) {
  Twin *const other = twin(kind);
  if (!other) return false;
  const int64_t format = other->relayout.format;
  const bool ended = body(other->builder, [&](std::shared_ptr<Plan> inner) {
    PlanSpec spec = inner->spec;
    spec.format |= format;
    if (!is_new(spec)) return false;
    auto plan = attempt(spec, [&] {
      return checked(kind == UNFUSED ? make_unfused_plan(conv_, handle_, std::move(inner))
                                     : make_relayout_plan(conv_, other->relayout, handle_, std::move(inner)));
    });
    return plan && visit(std::move(plan));
  });
  for (Refusal &refusal : other->refusals) {
    refusal.spec.format |= format;
    refusal.name += format_suffix(format);
    refusals_.push_back(std::move(refusal));
  }
  other->refusals.clear();
  return ended;
}

std::shared_ptr<Plan> PlanBuilder::from_spec(const PlanSpec &spec) {
  // Only the graph API computes epilogues.
  if (spec.api != API_GRAPH && !(spec.format & FORMAT_UNFUSED) && has_epilogue(conv_)) {
    PlanSpec unfused = spec;
    unfused.format |= FORMAT_UNFUSED;
    return from_spec(unfused);
  }
  if (spec.format) {
    std::shared_ptr<Plan> found;
    const TwinKind kind = kind_of(spec);
    const PlanSpec inner = inside(spec, kind);
    const auto refuse = [&](const char *reason) {
      return attempt(spec, [&]() -> std::shared_ptr<Plan> { fail(DNNOPS_NOT_SUPPORTED, "%s", reason); });
    };
    if (kind != UNFUSED && twin(kind) && twins_[kind]->relayout.format != spec.format)
      return refuse("the arrays are not copied to this memory format");
    // Their names belong to another direction.
    if (kind == AS_FORWARD && spec.api == API_LEGACY)
      return refuse("legacy algorithms are not offered as forward convolutions");
    const auto seen = seen_;  // a plan that is requested again is built again
    seen_.clear();
    in_twin(kind, [&](std::shared_ptr<Plan> plan) { found = std::move(plan); return true; },
            [&](PlanBuilder &builder, const Visit &visit) {
              auto plan = builder.from_spec(inner);
              return plan && visit(std::move(plan));
            });
    seen_ = seen;
    return found;
  }
  if (spec.api == API_LEGACY)
    return attempt(spec, [&] {
      refuse_known_wrong(conv_, spec);
      return checked(make_legacy_plan(conv_, handle_, spec));
    });
  if (spec.api == API_KERNEL)
    return attempt(spec, [&] { return checked(make_depthwise_plan(conv_, handle_, spec)); });
  if (spec.api == API_CUBLASLT) return attempt(spec, [&] { return checked(make_gemm_plan(conv_, handle_, spec)); });
  if (!graph()) return nullptr;
  return attempt(spec, [&] { return from_candidate(graph()->from_spec(spec)); });
}

// Whether a heuristic of cuDNN proposes exactly this configuration, not counting the fallback heuristic.
bool PlanBuilder::is_proposed(const PlanSpec &spec) {
  if (!proposals_read_) {
    proposals_read_ = true;
    for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B}) {
      try {
        for (const auto &candidate : graph()->heuristics(mode)) proposals_.push_back(candidate.spec);
      } catch (const Error &) {
        // Such a heuristic proposes nothing.
      }
    }
  }
  return std::any_of(proposals_.begin(), proposals_.end(),
                     [&](const PlanSpec &other) { return same_spec(spec, other); });
}

bool PlanBuilder::is_seen(const PlanSpec &spec) const {
  return std::any_of(seen_.begin(), seen_.end(), [&](const PlanSpec &other) { return same_spec(spec, other); });
}

bool PlanBuilder::is_new(const PlanSpec &spec) {
  if (is_seen(spec)) return false;
  seen_.push_back(spec);
  return true;
}

bool PlanBuilder::visit_spec(const PlanSpec &spec, const Visit &visit) {
  if (!is_new(spec)) return false;
  auto plan = from_spec(spec);
  return plan && visit(std::move(plan));
}

bool PlanBuilder::heuristics(const std::vector<cudnnBackendHeurMode_t> &modes, const Visit &visit) {
  if (!graph()) return false;
  std::vector<std::vector<ConvGraph::Candidate>> proposals(modes.size());
  size_t most = 1;  // as far as known
  for (size_t i = 0; i < most; ++i)
    for (size_t mode = 0; mode < modes.size(); ++mode) {
      if (i == 0) {
        try {
          proposals[mode] = graph()->heuristics(modes[mode]);
        } catch (const Error &error) {
          refusals_.push_back({"graph API", error.message, error.status, unspecific(API_GRAPH), 0});
        }
        most = std::max(most, proposals[mode].size());
      }
      if (i >= proposals[mode].size()) continue;
      const ConvGraph::Candidate &candidate = proposals[mode][i];
      // An engine without a full spec cannot be told from another, so it is rejected each time.
      if (!candidate.too_many_knobs && !is_new(candidate.spec)) continue;
      auto plan = from_candidate(candidate);
      if (plan && visit(std::move(plan))) return true;
    }
  return false;
}

bool PlanBuilder::matrix_products(const Visit &visit) {
  if (products_visited_ || has_epilogue(conv_)) return false;
  products_visited_ = true;
  std::vector<PlanSpec> specs;
  attempt(unspecific(API_CUBLASLT), [&]() -> std::shared_ptr<Plan> {
    specs = gemm_specs(conv_, handle_);
    return nullptr;
  });
  for (const PlanSpec &spec : specs)
    if (visit_spec(spec, visit)) return true;
  return false;
}

bool PlanBuilder::depthwise_kernels(const Visit &visit) {
  if (has_epilogue(conv_)) return false;
  for (const PlanSpec &spec : depthwise_specs(conv_))
    if (visit_spec(spec, visit)) return true;
  return false;
}

bool PlanBuilder::other_format(const Visit &visit) {
  return in_twin(OTHER_FORMAT, visit, [](PlanBuilder &builder, const Visit &inner) {
    return builder.heuristics({CUDNN_HEUR_MODE_A}, inner) || builder.matrix_products(inner) ||
           builder.heuristics({CUDNN_HEUR_MODE_B}, inner);
  });
}

bool PlanBuilder::as_forward(const Visit &visit) {
  if (conv_.direction != CONV_GRAD_INPUTS) return false;
  return in_twin(AS_FORWARD, visit, [](PlanBuilder &builder, const Visit &inner) {
    return builder.heuristics({CUDNN_HEUR_MODE_A}, inner) || builder.heuristics({CUDNN_HEUR_MODE_B}, inner);
  });
}

bool PlanBuilder::unfused(const Visit &visit, bool (PlanBuilder::*which)(const Visit &)) {
  return in_twin(UNFUSED, visit,
                 [which](PlanBuilder &builder, const Visit &inner) { return (builder.*which)(inner); });
}

bool PlanBuilder::fallbacks(const Visit &visit) {
  const auto fallback = [](PlanBuilder &builder, const Visit &inner) {
    return builder.heuristics({CUDNN_HEUR_MODE_FALLBACK}, inner);
  };
  const auto fallback_and_legacy = [&](PlanBuilder &builder, const Visit &inner) {
    return fallback(builder, inner) || builder.legacy_algorithms(inner);
  };
  return fallback(*this, visit) || in_twin(OTHER_FORMAT, visit, fallback_and_legacy) ||
         (conv_.direction == CONV_GRAD_INPUTS && in_twin(AS_FORWARD, visit, fallback));
}

bool PlanBuilder::legacy_algorithms(const Visit &visit) {
  if (has_epilogue(conv_)) return false;
  for (int id = 0; id < legacy_algorithm_count(conv_.direction); ++id)
    if (visit_spec(legacy_spec(id), visit)) return true;
  return false;
}

bool PlanBuilder::legacy_math_types(const Visit &visit) {
  for (int64_t math : other_math_types(conv_))
    for (int id = 0; id < legacy_algorithm_count(conv_.direction); ++id)
      if (visit_spec(legacy_spec(id, math), visit)) return true;
  return false;
}

bool PlanBuilder::other_engines(const Visit &visit) {
  if (!graph()) return false;
  int64_t count = 0;
  attempt(unspecific(API_GRAPH), [&]() -> std::shared_ptr<Plan> {
    count = graph()->engine_count();
    return nullptr;
  });
  for (int64_t id = 0; id < count; ++id) {
    const bool proposed = std::any_of(seen_.begin(), seen_.end(), [&](const PlanSpec &spec) {
      return spec.api == API_GRAPH && spec.id == id;
    });
    if (!proposed && visit_spec(unspecific(API_GRAPH, id), visit)) return true;
  }
  return false;
}

bool PlanBuilder::trusted(const Visit &visit) {
  if (has_epilogue(conv_)) return proposed_with_epilogue(visit) || unfused(visit, &PlanBuilder::trusted);
  return proposed(visit) || (trusts_other_engines() && other_engines(visit)) || legacy_math_types(visit);
}

bool PlanBuilder::all(const Visit &visit) {
  if (has_epilogue(conv_)) return proposed_with_epilogue(visit) || unfused(visit, &PlanBuilder::all);
  return proposed(visit) || other_engines(visit) || legacy_math_types(visit);
}

// Plans that guess_* tries first, where cuDNN's heuristics are known to prefer something slower.
bool PlanBuilder::likely(const Visit &visit) {
  const std::vector<PlanSpec> kernels = depthwise_specs(conv_);
  if (!kernels.empty() && depthwise_is_fast(conv_, kernels.front()) && depthwise_kernels(visit)) return true;
  // For float32, cuBLAS has far better kernels; with tensor cores, cuDNN's are as good.
  if (conv_.dtype == DNNOPS_FLOAT32 && !conv_.allow_tf32 && matrix_products(visit)) return true;
  for (const PlanSpec &spec : fast_algorithms(conv_)) {
    if (is_seen(spec)) continue;
    auto plan = from_spec(spec);
    if (plan && plan->workspace > most_fast_workspace(conv_)) {
      // It may still be timed, as one of all legacy algorithms.
      if (visit_spec(legacy_spec(IMPLICIT_PRODUCT), visit)) return true;
      continue;
    }
    seen_.push_back(spec);
    if (plan && visit(std::move(plan))) return true;
  }
  return false;
}

bool PlanBuilder::proposed(const Visit &visit) {
  if (likely(visit)) return true;
  // The most promising plans come first, since time may run out. With tensor cores, those are rarely plans
  // for contiguous arrays.
  const std::vector<cudnnBackendHeurMode_t> both = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B};
  if (uses_tensor_cores(conv_) && all_have_format(conv_, FORMAT_CHANNELS_LAST))
    return heuristics(both, visit) || depthwise_kernels(visit) || matrix_products(visit) || as_forward(visit) ||
           legacy_algorithms(visit) || other_format(visit) || fallbacks(visit);
  // Of channels-last images and contiguous filters, only the filters are copied.
  const bool is_mixed = !all_have_format(conv_, FORMAT_CONTIGUOUS);
  if (uses_tensor_cores(conv_) && is_mixed && other_format(visit)) return true;
  return heuristics({CUDNN_HEUR_MODE_A}, visit) || depthwise_kernels(visit) || matrix_products(visit) ||
         other_format(visit) || as_forward(visit) || legacy_algorithms(visit) || heuristics(both, visit) ||
         fallbacks(visit);
}

// Plans that compute the epilogue, too, and those without it that guess_* would try first.
bool PlanBuilder::proposed_with_epilogue(const Visit &visit) {
  if (unfused(visit, &PlanBuilder::likely)) return true;
  const std::vector<cudnnBackendHeurMode_t> both = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B};
  // Without tensor cores, the fastest plans are mostly not of the graph API, and cuDNN would have to compile.
  if (!uses_tensor_cores(conv_) || !is_compiled_in_advance(conv_))
    return unfused(visit, &PlanBuilder::proposed) || heuristics(both, visit) || other_format(visit);
  const bool is_mixed = !all_have_format(conv_, FORMAT_CONTIGUOUS) && !all_have_format(conv_, FORMAT_CHANNELS_LAST);
  if (is_mixed && other_format(visit)) return true;
  return heuristics(both, visit) || other_format(visit) || unfused(visit, &PlanBuilder::proposed) ||
         fallbacks(visit);
}

bool PlanBuilder::neighbors(const PlanSpec &spec, const Visit &visit) {
  if (spec.format) {
    const PlanSpec inner = inside(spec, kind_of(spec));
    return in_twin(kind_of(spec), visit,
                   [&](PlanBuilder &builder, const Visit &wrap) { return builder.neighbors(inner, wrap); });
  }
  if (spec.api != API_GRAPH || !graph()) return false;
  std::vector<Knob> knobs;
  attempt(spec, [&]() -> std::shared_ptr<Plan> {
    knobs = graph()->knobs(spec.id);
    return nullptr;
  });
  for (int64_t i = 0; i < spec.knob_count; ++i)
    for (const Knob &knob : knobs) {
      if (knob.type != spec.knobs[2 * i]) continue;
      const int64_t stride = std::max<int64_t>(knob.stride, 1);
      const int64_t count = (knob.maximum - knob.minimum) / stride + 1;
      const int64_t step = (count + MAX_KNOB_VALUES - 1) / MAX_KNOB_VALUES * stride;
      for (int64_t value = knob.minimum; value <= knob.maximum; value += step) {
        PlanSpec other = spec;
        other.knobs[2 * i + 1] = value;
        if (!is_new(other)) continue;
        // Most combinations are invalid; such rejections are not worth reporting.
        const size_t before = refusals_.size();
        auto plan = from_spec(other);
        refusals_.erase(std::remove_if(refusals_.begin() + before, refusals_.end(),
                                       [](const Refusal &refusal) { return refusal.status != DNNOPS_OUT_OF_MEMORY; }),
                        refusals_.end());
        if (plan && visit(std::move(plan))) return true;
      }
    }
  return false;
}

}  // namespace dnnops
