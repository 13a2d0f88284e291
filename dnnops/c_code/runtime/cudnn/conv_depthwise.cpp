// Plans of the depthwise kernels: which tiles to try, and running them.
#include "conv_depthwise.hpp"

#include <algorithm>

#include "conv_call.hpp"
#include "kernel_loader.hpp"

namespace dnnops {

namespace {

constexpr size_t MAX_SPECS = 6;

class DepthwisePlan : public Plan {
 public:
  DepthwisePlan(const ConvCase &conv, const Handle &handle, const PlanSpec &of)
      : direction_(conv.direction), work_(depthwise_work(conv, of)) {
    spec = of;
    name = plan_name(of, conv.direction);
    workspace = work_.workspace;
    takes_scalars = true;
    for (const DepthwiseLaunch &launch : work_.launches)
      functions_.push_back(load_kernel(handle, "depthwise", launch.kernel, work_.options));
  }

  void execute(const Launch &launch, PointerPack &) override {
    DepthwiseParams params = work_.params;
    params.in = launch.pointers[direction_ == CONV_GRAD_INPUTS ? ROLE_TOP : ROLE_IMAGE];
    params.other = launch.pointers[direction_ == CONV_GRAD_WEIGHTS ? ROLE_TOP : ROLE_FILTERS];
    params.result = launch.pointers[direction_ == CONV_FORWARD       ? ROLE_TOP
                                    : direction_ == CONV_GRAD_INPUTS ? ROLE_IMAGE
                                                                     : ROLE_FILTERS];
    params.partial = launch.workspace;
    params.alpha = launch.alpha;
    params.beta = launch.beta;
    void *arguments[] = {&params};
    for (size_t i = 0; i < functions_.size(); ++i) {
      const DepthwiseLaunch &kernel = work_.launches[i];
      launch_kernel(functions_[i], kernel.grid, kernel.block, kernel.shared, launch.handle->stream, arguments);
    }
  }

 private:
  int64_t direction_;
  DepthwiseWork work_;
  std::vector<KernelFunction> functions_;
};

PlanSpec spec_of(int64_t kernel, std::initializer_list<std::pair<DepthwiseKnob, int64_t>> knobs) {
  PlanSpec spec;
  std::memset(&spec, 0, sizeof spec);
  spec.api = API_KERNEL;
  spec.id = kernel;
  spec.math = USUAL_MATH;
  for (const auto &knob : knobs) {
    spec.knobs[2 * spec.knob_count] = knob.first;
    spec.knobs[2 * spec.knob_count + 1] = knob.second;
    ++spec.knob_count;
  }
  return spec;
}

struct Candidate {
  PlanSpec spec;
  double cost;
};

double padded(int64_t size, int64_t tile) { return static_cast<double>((size + tile - 1) / tile * tile) / size; }

// A rough idea of the instructions that a result pixel takes, for ordering the candidates.
class Guess {
 public:
  explicit Guess(const ConvCase &conv) : conv_(conv) {
    const Tensor &image = conv.tensors[ROLE_IMAGE], &top = conv.tensors[ROLE_TOP];
    up_ = conv.direction == CONV_GRAD_INPUTS;
    for (int axis = 0; axis < 2; ++axis) {
      const int64_t stride = conv.stride[axis];
      filter_[axis] = conv.tensors[ROLE_FILTERS].shape[2 + axis];
      span_[axis] = up_ ? depthwise_span(true, static_cast<int>(filter_[axis]), static_cast<int>(stride),
                                         static_cast<int>(conv.dilation[axis]))
                        : (filter_[axis] - 1) * conv.dilation[axis] + 1;
      units_[axis] = up_ ? (image.shape[2 + axis] + stride - 1) / stride : top.shape[2 + axis];
      step_[axis] = up_ ? 1 : stride;
      of_unit_[axis] = up_ ? stride : 1;
    }
  }

  double operator()(int64_t height, int64_t width, int64_t vector) const {
    const double pixels = static_cast<double>(height * width * of_unit_[0] * of_unit_[1]);
    const double loads = static_cast<double>(((height - 1) * step_[0] + span_[0]) * ((width - 1) * step_[1] + span_[1]));
    const double taps = static_cast<double>(filter_[0] * filter_[1]) / (of_unit_[0] * of_unit_[1]);
    double cost = taps + loads / pixels * (1.5 + 2.0 / vector) + taps * 1.5 / pixels;
    // Registers, and threads enough for the device.
    const double sums = static_cast<double>(std::min(height * of_unit_[0], filter_[0] + of_unit_[0]) * width *
                                            of_unit_[1] * vector);
    const double registers = 30 + sums + taps * vector + 2.0 * ((width - 1) * step_[1] + span_[1]) * vector;
    if (registers > 128) cost *= registers / 128;
    const double threads = static_cast<double>(conv_.tensors[ROLE_IMAGE].shape[0] * conv_.tensors[ROLE_IMAGE].shape[1]) /
                           vector * padded(units_[0], height) * units_[0] / height * padded(units_[1], width) *
                           units_[1] / width;
    constexpr double ENOUGH = 132 * 512;
    if (threads < ENOUGH) cost *= std::min(8.0, ENOUGH / threads);
    return cost * padded(units_[0], height) * padded(units_[1], width);
  }

 private:
  const ConvCase &conv_;
  bool up_;
  int64_t filter_[2], span_[2], units_[2], step_[2], of_unit_[2];
};

void add_channels_last(const ConvCase &conv, std::vector<Candidate> &candidates) {
  const Guess guess(conv);
  const int64_t most = 16 / item_size(conv.dtype);
  for (int64_t vector = most; vector >= 1; vector /= 2)
    for (int64_t height : {2, 4, 7, 8, 14})
      for (int64_t width : {1, 2, 4}) {
        const bool filter = conv.direction == CONV_GRAD_WEIGHTS;
        const PlanSpec spec =
            filter ? spec_of(DEPTHWISE_CHANNELS_LAST, {{KNOB_TILE_HEIGHT, height},
                                                       {KNOB_TILE_WIDTH, width},
                                                       {KNOB_VECTOR, vector},
                                                       {KNOB_THREADS, 256},
                                                       {KNOB_BLOCKS, 4}})
                   : spec_of(DEPTHWISE_CHANNELS_LAST, {{KNOB_TILE_HEIGHT, height},
                                                       {KNOB_TILE_WIDTH, width},
                                                       {KNOB_VECTOR, vector},
                                                       {KNOB_THREADS, 256}});
        // Narrow vectors take more instructions to load.
        candidates.push_back({spec, guess(height, width, vector) * (1 + 0.1 * most / vector)});
      }
}

void add_contiguous(const ConvCase &conv, std::vector<Candidate> &candidates) {
  const Guess guess(conv);
  for (int64_t height : {2, 4, 7, 8, 14})
    for (int64_t width : {1, 2, 4})
      for (int64_t threads : {256, 128}) {
        const double cost = guess(height, width, 1) * (threads == 256 ? 1 : 1.03);
        if (conv.direction == CONV_GRAD_WEIGHTS) {
          for (int64_t blocks : {4, 8})
            candidates.push_back({spec_of(DEPTHWISE_CONTIGUOUS, {{KNOB_TILE_HEIGHT, height},
                                                                 {KNOB_TILE_WIDTH, width},
                                                                 {KNOB_THREADS, threads},
                                                                 {KNOB_BLOCKS, blocks}}),
                                  cost * (blocks == 4 ? 1 : 1.02)});
        } else {
          for (int64_t staged : {1, 0})
            candidates.push_back({spec_of(DEPTHWISE_CONTIGUOUS, {{KNOB_TILE_HEIGHT, height},
                                                                 {KNOB_TILE_WIDTH, width},
                                                                 {KNOB_THREADS, threads},
                                                                 {KNOB_STAGED, staged}}),
                                  cost * (staged ? 1 : 1.04)});
        }
      }
}

bool can_run(const ConvCase &conv, const PlanSpec &spec) {
  try {
    depthwise_work(conv, spec);
    return true;
  } catch (const Error &) {
    return false;
  }
}

}  // namespace

std::vector<PlanSpec> depthwise_specs(const ConvCase &conv) {
  std::vector<PlanSpec> specs;
  const Tensor &image = conv.tensors[ROLE_IMAGE];
  if (conv.groups != image.shape[1] || conv.groups != conv.tensors[ROLE_FILTERS].shape[0] || conv.spatial_ndim != 2)
    return specs;
  std::vector<Candidate> candidates;
  const int64_t formats = dense_formats(image) & dense_formats(conv.tensors[ROLE_TOP]);
  if (formats & FORMAT_CONTIGUOUS) add_contiguous(conv, candidates);
  // One channel: the formats are the same, and there are no vectors.
  if (formats & FORMAT_CHANNELS_LAST && image.shape[1] > 1) add_channels_last(conv, candidates);
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate &a, const Candidate &b) { return a.cost < b.cost; });
  for (const Candidate &candidate : candidates)
    if (specs.size() < MAX_SPECS && can_run(conv, candidate.spec)) specs.push_back(candidate.spec);
  return specs;
}

std::shared_ptr<Plan> make_depthwise_plan(const ConvCase &conv, const Handle &handle, const PlanSpec &spec) {
  return std::make_shared<DepthwisePlan>(conv, handle, spec);
}

}  // namespace dnnops

namespace {

// What a test gets of a plan, to run its kernels elsewhere.
struct DepthwiseRow {
  char name[128];
  char options[512];
  int64_t launch_count, workspace;
  char kernels[2][32];
  int64_t grid[2], block[2], shared[2];
  DepthwiseParams params;
};

}  // namespace

// Describes the plans of a call, at most `capacity`, without a GPU; of the params of the call's own plan if it
// has one.  The number of them goes to `count`.
DNNOPS_EXPORT int dnnops_cudnn_depthwise_rows(const int64_t *words, const dnnops_tensor *inputs, dnnops_tensor *outputs,
                                              DepthwiseRow *rows, int64_t capacity, int64_t *count) {
  using namespace dnnops;
  const ConvParams &params = conv_params_of(words);
  return guarded(conv_op_names[params.direction], inputs, input_count(params), [&] {
    const Call call(params, inputs, outputs);
    ConvCase conv;
    describe_case(conv, checked_problem(params, inputs), call, 0);
    const std::vector<PlanSpec> specs =
        params.wish == WISH_PLAN ? std::vector<PlanSpec>{params.plan} : depthwise_specs(conv);
    *count = 0;
    for (const PlanSpec &spec : specs) {
      if (*count == capacity) break;
      const DepthwiseWork work = depthwise_work(conv, spec);
      DepthwiseRow &row = rows[(*count)++];
      std::memset(static_cast<void *>(&row), 0, sizeof row);
      std::snprintf(row.name, sizeof row.name, "%s", plan_name(spec, conv.direction).c_str());
      std::snprintf(row.options, sizeof row.options, "%s", work.options.c_str());
      row.launch_count = static_cast<int64_t>(work.launches.size());
      row.workspace = work.workspace;
      row.params = work.params;
      for (size_t i = 0; i < work.launches.size(); ++i) {
        std::snprintf(row.kernels[i], sizeof row.kernels[i], "%s", work.launches[i].kernel);
        row.grid[i] = work.launches[i].grid;
        row.block[i] = work.launches[i].block;
        row.shared[i] = work.launches[i].shared;
      }
    }
  });
}
