// Convolution with cuDNN's graph API: an operation graph, engines, execution plans.
#include "conv_epilogue.hpp"

namespace dnnops {

namespace {

// The attribute names for the operation of one direction.
struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t alpha, beta, conv, arrays[3];  // by Role
};

const OperationNames operation_names[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y}},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY}},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}},
};

const int64_t unique_ids[ARRAY_COUNT] = {1, 2, 3, 4, 5, 6};  // by Role and EpilogueOperand

BackendDescriptor convolution_node(const ConvCase &conv) {
  BackendDescriptor node(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const cudnnDataType_t compute = cudnn_dtype(conv.compute);
  const cudnnConvolutionMode_t mode = conv.flip ? CUDNN_CONVOLUTION : CUDNN_CROSS_CORRELATION;
  const int64_t spatial = conv.spatial_ndim;
  node.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  node.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  node.set_int64(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, spatial);
  node.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, spatial, conv.dilation);
  node.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, spatial, conv.stride);
  node.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, spatial, conv.pad);
  node.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, spatial, conv.pad);
  node.finalize("cudnnBackendFinalize(convolution)");
  return node;
}

BackendDescriptor array_of(const ConvCase &conv, int role) {
  return graph_array(conv.tensors[role], conv.dtype, unique_ids[role]);
}

BackendDescriptor operation_node(const ConvCase &conv, const BackendDescriptor &result) {
  const OperationNames &names = operation_names[conv.direction];
  BackendDescriptor node(names.type);
  node.set(names.conv, convolution_node(conv));
  for (int role = 0; role < 3; ++role)
    if (role != result_role(conv.direction)) node.set(names.arrays[role], array_of(conv, role));
  node.set(names.arrays[result_role(conv.direction)], result);
  const Scalar alpha(conv.alpha, conv.dtype), beta(conv.beta, conv.dtype);
  const cudnnBackendAttributeType_t type = alpha.is_double ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
  node.set(names.alpha, type, 1, alpha.pointer());
  node.set(names.beta, type, 1, beta.pointer());
  node.finalize("cudnnBackendFinalize(operation)");
  return node;
}

// The convolution and its epilogue.
std::vector<BackendDescriptor> operation_nodes(const ConvCase &conv) {
  std::vector<BackendDescriptor> nodes;
  const BackendDescriptor result = array_of(conv, result_role(conv.direction));
  if (!has_epilogue(conv)) {
    nodes.push_back(operation_node(conv, result));
    return nodes;
  }
  BackendDescriptor between = before_epilogue(conv);
  nodes.push_back(operation_node(conv, between));
  for (BackendDescriptor &node : epilogue_operations(conv, std::move(between), result, unique_ids))
    nodes.push_back(std::move(node));
  return nodes;
}

BackendDescriptor engine_of(const BackendDescriptor &config) {
  BackendDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t slot = engine.get();
  config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &slot);
  return engine;
}

int64_t notes_of(const BackendDescriptor &engine) {
  cudnnBackendNumericalNote_t notes[64];
  int64_t bits = 0;
  const int64_t count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 64, notes);
  for (int64_t i = 0; i < count; ++i) bits |= int64_t(1) << notes[i];
  return bits;
}

// Fills in the spec. Returns false if the engine has more knobs than fit.
bool read_spec(PlanSpec &spec, const BackendDescriptor &config, const BackendDescriptor &engine) {
  std::memset(&spec, 0, sizeof spec);
  spec.api = API_GRAPH;
  spec.math = USUAL_MATH;
  spec.id = engine.get_int64(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  std::vector<BackendDescriptor> choices;
  std::vector<cudnnBackendDescriptor_t> slots;
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i) {
    choices.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    slots.push_back(choices.back().get());
  }
  const int64_t count = config.get(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                   CUDNN_KNOB_TYPE_COUNTS, slots.data());
  if (count > MAX_KNOBS) return false;
  for (int64_t i = 0; i < count; ++i) {
    cudnnBackendKnobType_t type;
    choices[i].get(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
    spec.knobs[2 * i] = type;
    spec.knobs[2 * i + 1] = choices[i].get_int64(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
  }
  spec.knob_count = count;
  return true;
}

class GraphPlan : public Plan {
 public:
  GraphPlan(BackendDescriptor plan, std::vector<int> arrays) : plan_(std::move(plan)), arrays_(std::move(arrays)) {
    workspace = plan_.get_int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  }

  void execute(const Launch &launch, PointerPack &pack) override {
    if (!pack.descriptor || std::memcmp(pack.pointers, launch.pointers, sizeof launch.pointers) ||
        pack.pointers[ARRAY_COUNT] != launch.workspace)
      fill(launch, pack);
    DNNOPS_CHECK(cudnnBackendExecute(launch.handle->cudnn, plan_.get(), pack.descriptor.get()));
  }

 private:
  void fill(const Launch &launch, PointerPack &pack) const {
    int64_t ids[ARRAY_COUNT], count = 0;
    void *pointers[ARRAY_COUNT];
    for (const int array : arrays_) {
      ids[count] = unique_ids[array];
      pointers[count++] = launch.pointers[array];
    }
    BackendDescriptor descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    descriptor.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
    descriptor.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
    descriptor.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &launch.workspace);
    descriptor.finalize("cudnnBackendFinalize(variant pack)");
    std::memcpy(pack.pointers, launch.pointers, sizeof launch.pointers);
    pack.pointers[ARRAY_COUNT] = launch.workspace;
    pack.descriptor = std::move(descriptor);
  }

  BackendDescriptor plan_;
  std::vector<int> arrays_;  // of a call, those that the graph has
};

}  // namespace

ConvGraph::ConvGraph(const ConvCase &conv, const GraphTarget &target)
    : target_(target), direction_(conv.direction), graph_(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
  for (int array = 0; array < ARRAY_COUNT; ++array)
    if (array < EPILOGUE_SCALE || has_part(conv.epilogue, array)) arrays_.push_back(array);
  const std::vector<BackendDescriptor> operations = operation_nodes(conv);
  std::vector<cudnnBackendDescriptor_t> slots;
  for (const BackendDescriptor &operation : operations) slots.push_back(operation.get());
  if (target.handle) graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(slots.size()),
             slots.data());
  graph_.finalize("cudnnBackendFinalize(operation graph)");
}

std::vector<ConvGraph::Candidate> ConvGraph::heuristics(cudnnBackendHeurMode_t mode) const {
  BackendDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if CUDNN_VERSION >= 90800
  set_device(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target_);
#endif
  heuristics.finalize("cudnnBackendFinalize(heuristics)");
  int64_t count = 0;
  DNNOPS_CHECK(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
  std::vector<Candidate> candidates;
  std::vector<cudnnBackendDescriptor_t> slots;
  for (int64_t i = 0; i < count; ++i) {
    candidates.push_back({BackendDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR), PlanSpec(), 0, false});
    slots.push_back(candidates.back().config.get());
  }
  count = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, slots.data());
  candidates.resize(count);
  for (Candidate &candidate : candidates) {
    const BackendDescriptor engine = engine_of(candidate.config);
    candidate.notes = notes_of(engine);
    candidate.too_many_knobs = !read_spec(candidate.spec, candidate.config, engine);
  }
  return candidates;
}

int64_t ConvGraph::engine_count() const { return graph_.get_int64(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT); }

BackendDescriptor ConvGraph::engine(int64_t id) const {
  BackendDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph_);
  engine.set_int64(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, id);
  engine.finalize("cudnnBackendFinalize(engine)");
  return engine;
}

std::vector<Knob> ConvGraph::knobs(int64_t id) const {
  const BackendDescriptor of = engine(id);
  std::vector<BackendDescriptor> infos;
  std::vector<cudnnBackendDescriptor_t> slots;
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i) {
    infos.emplace_back(CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR);
    slots.push_back(infos.back().get());
  }
  const int64_t count =
      of.get(CUDNN_ATTR_ENGINE_KNOB_INFO, CUDNN_TYPE_BACKEND_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS, slots.data());
  std::vector<Knob> found;
  for (int64_t i = 0; i < count; ++i) {
    cudnnBackendKnobType_t type;
    infos[i].get(CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
    found.push_back({type, infos[i].get_int64(CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE),
                     infos[i].get_int64(CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE),
                     infos[i].get_int64(CUDNN_ATTR_KNOB_INFO_STRIDE)});
  }
  return found;
}

ConvGraph::Candidate ConvGraph::from_spec(const PlanSpec &spec) const {
  BackendDescriptor engine = this->engine(spec.id);
  BackendDescriptor config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  config.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  std::vector<BackendDescriptor> choices;
  std::vector<cudnnBackendDescriptor_t> slots;
  for (int64_t i = 0; i < spec.knob_count; ++i) {
    choices.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    const cudnnBackendKnobType_t type = static_cast<cudnnBackendKnobType_t>(spec.knobs[2 * i]);
    choices.back().set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
    choices.back().set_int64(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, spec.knobs[2 * i + 1]);
    choices.back().finalize("cudnnBackendFinalize(knob choice)");
    slots.push_back(choices.back().get());
  }
  if (!slots.empty())
    config.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
               static_cast<int64_t>(slots.size()), slots.data());
  config.finalize("cudnnBackendFinalize(engine configuration)");
  return {std::move(config), spec, notes_of(engine), false};
}

std::shared_ptr<Plan> ConvGraph::make_plan(const Candidate &candidate) const {
  BackendDescriptor descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  if (target_.handle) descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target_.handle);
#if CUDNN_VERSION >= 90800
  set_device(descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target_);
#endif
  descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, candidate.config);
  descriptor.finalize("cudnnBackendFinalize(execution plan)");
  auto plan = std::make_shared<GraphPlan>(std::move(descriptor), arrays_);
  plan->spec = candidate.spec;
  plan->name = plan_name(candidate.spec, direction_);
  plan->notes = candidate.notes;
  plan->deterministic = !(candidate.notes >> CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC & 1);
  return plan;
}

const char *forbidden(const ConvCase &conv, const PlanSpec &spec, int64_t notes) {
  const auto has = [notes](cudnnBackendNumericalNote_t note) { return notes >> note & 1; };
  if (conv.deterministic && has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC))
    return "not deterministic (flag dnn.deterministic)";
  if (has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)) return "it rounds its inputs to a narrower type";
  if (conv.dtype == DNNOPS_FLOAT32 && !conv.allow_tf32 && has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE))
    return "it computes in TF32, and dnn.allow_tf32 is False";
  // Engine 63, for the first layers of networks, has a note that it sums in float16, but forward its errors
  // are only those of rounding the result: test_first_layers in tests/plans/test_choice.py.
  const bool sums_in_float32 = spec.id == 63 && !has_epilogue(conv) && conv.direction == CONV_FORWARD && cudnnGetVersion() / 100 == 919;
  if (conv.compute != DNNOPS_FLOAT16 && !sums_in_float32 && has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION))
    return "it sums in a narrower type than requested (flag dnn.conv.precision)";
  return nullptr;
}

}  // namespace dnnops
