#include "graph_builder.hpp"

#include <cstring>

namespace dnnops {

Sizes packed(const Sizes &shape) {
  return {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1};
}

GraphBuilder::Array GraphBuilder::add(int64_t id, cudnnDataType_t type, const Sizes &shape, const Sizes &strides,
                                      bool is_between, bool by_value) {
  BackendDescriptor array(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  array.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  array.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.data());
  array.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  array.set_int64(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  array.set_int64(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16);
  if (is_between) array.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_between);
  if (by_value) array.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
  array.finalize("cudnnBackendFinalize(tensor)");
  arrays_.push_back(std::move(array));
  shapes_.push_back(shape);
  return static_cast<Array>(arrays_.size()) - 1;
}

GraphBuilder::Array GraphBuilder::array(int64_t id, cudnnDataType_t type, const Sizes &shape, const Sizes &strides) {
  return add(id, type, shape, strides, false, false);
}

GraphBuilder::Array GraphBuilder::number(int64_t id, cudnnDataType_t type) {
  return add(id, type, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
}

GraphBuilder::Array GraphBuilder::between(const Sizes &shape, cudnnDataType_t type) {
  return between(shape, packed(shape), type);
}

GraphBuilder::Array GraphBuilder::between(const Sizes &shape, const Sizes &strides, cudnnDataType_t type) {
  return add(next_id_++, type, shape, strides, true, false);
}

void GraphBuilder::push(BackendDescriptor node, const char *what) {
  node.finalize(what);
  nodes_.push_back(std::move(node));
}

GraphBuilder::Array GraphBuilder::pointwise(cudnnPointwiseMode_t mode, std::initializer_list<Array> operands,
                                            const Elementwise &how) {
  BackendDescriptor operation(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  operation.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &how.compute);
  if (how.axis >= 0) operation.set_int64(CUDNN_ATTR_POINTWISE_AXIS, how.axis);
  operation.finalize("cudnnBackendFinalize(pointwise)");
  const Array *operand = operands.begin();
  const Array result = how.result == NONE ? between(shapes_[operand[0]], how.type) : how.result;
  BackendDescriptor node(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  node.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, operation);
  node.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, (*this)[operand[0]]);
  if (operands.size() > 1) node.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, (*this)[operand[1]]);
  if (operands.size() > 2) node.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, (*this)[operand[2]]);
  node.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, (*this)[result]);
  const float one = 1;
  node.set(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, &one);
  node.set(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, &one);
  push(std::move(node), "cudnnBackendFinalize(pointwise operation)");
  return result;
}

void GraphBuilder::reduce(cudnnReduceTensorOp_t op, Array x, Array result, bool deterministic) {
  BackendDescriptor operation(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  operation.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  operation.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
#if CUDNN_VERSION >= 91100
  if (deterministic && cudnnGetVersion() >= 91100)
    operation.set(CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC, CUDNN_TYPE_BOOLEAN, 1, &deterministic);
#else
  (void)deterministic;
#endif
  operation.finalize("cudnnBackendFinalize(reduction)");
  BackendDescriptor node(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  node.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, operation);
  node.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, (*this)[x]);
  node.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, (*this)[result]);
  push(std::move(node), "cudnnBackendFinalize(reduction operation)");
}

void GraphBuilder::multiply(Array a, Array b, Array result, Array m_lengths, Array n_lengths, Array k_lengths) {
  BackendDescriptor operation(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  operation.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  operation.finalize("cudnnBackendFinalize(matmul)");
  BackendDescriptor node(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  node.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, (*this)[a]);
  node.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, (*this)[b]);
  node.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, (*this)[result]);
  node.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, operation);
  if (m_lengths != NONE) node.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, (*this)[m_lengths]);
  if (n_lengths != NONE) node.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, (*this)[n_lengths]);
  if (k_lengths != NONE) node.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, (*this)[k_lengths]);
  push(std::move(node), "cudnnBackendFinalize(matmul operation)");
}

void GraphBuilder::view(Array x, Array result) {
  BackendDescriptor node(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  node.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, (*this)[x]);
  node.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, (*this)[result]);
  push(std::move(node), "cudnnBackendFinalize(reshape operation)");
}

void GraphBuilder::bernoulli(double probability, Array seed, Array offset, Array result) {
  BackendDescriptor distribution(CUDNN_BACKEND_RNG_DESCRIPTOR);
  const cudnnRngDistribution_t kind = CUDNN_RNG_DISTRIBUTION_BERNOULLI;
  distribution.set(CUDNN_ATTR_RNG_DISTRIBUTION, CUDNN_TYPE_RNG_DISTRIBUTION, 1, &kind);
  distribution.set(CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY, CUDNN_TYPE_DOUBLE, 1, &probability);
  distribution.finalize("cudnnBackendFinalize(rng)");
  BackendDescriptor node(CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR);
  node.set(CUDNN_ATTR_OPERATION_RNG_YDESC, (*this)[result]);
  node.set(CUDNN_ATTR_OPERATION_RNG_DESC, distribution);
  node.set(CUDNN_ATTR_OPERATION_RNG_SEED, (*this)[seed]);
  node.set(CUDNN_ATTR_OPERATION_RNG_OFFSET_DESC, (*this)[offset]);
  push(std::move(node), "cudnnBackendFinalize(rng operation)");
}

BackendDescriptor GraphBuilder::finish(const GraphTarget &target) {
  BackendDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (target.handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
  std::vector<cudnnBackendDescriptor_t> nodes;
  for (const BackendDescriptor &node : nodes_) nodes.push_back(node.get());
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(nodes.size()),
            nodes.data());
  graph.finalize("cudnnBackendFinalize(operation graph)");
  return graph;
}

// -- execution plans ------------------------------------------------------------------------

BackendDescriptor describe_device(const char *json) {
#if CUDNN_VERSION >= 90800
  BackendDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<int64_t>(std::strlen(json)), json);
  device.finalize("cudnnBackendFinalize(device)");
  return device;
#else
  (void)json;
  fail(DNNOPS_NOT_SUPPORTED, "describing a device requires cuDNN 9.8 or newer");
#endif
}

void set_device(BackendDescriptor &of, cudnnBackendAttributeName_t name, const GraphTarget &target) {
  if (target.device) of.set(name, *target.device);
}

namespace {

std::vector<BackendDescriptor> proposed(const BackendDescriptor &graph, const GraphTarget &target,
                                        cudnnBackendHeurMode_t mode) {
  BackendDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if CUDNN_VERSION >= 90800
  set_device(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target);
#endif
  heuristics.finalize("cudnnBackendFinalize(heuristics)");
  int64_t count = 0;
  DNNOPS_CHECK(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                        0, &count, nullptr));
  std::vector<BackendDescriptor> configs;
  std::vector<cudnnBackendDescriptor_t> slots;
  for (int64_t i = 0; i < count; ++i) {
    configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    slots.push_back(configs.back().get());
  }
  count = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, slots.data());
  configs.resize(count);
  return configs;
}

ExecutionPlan make_plan(const BackendDescriptor &config, const GraphTarget &target) {
  ExecutionPlan plan;
  BackendDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t slot = engine.get();
  config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &slot);
  plan.engine = engine.get_int64(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  cudnnBackendNumericalNote_t numerical[64];
  int64_t count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 64, numerical);
  for (int64_t i = 0; i < count; ++i) plan.numerical_notes |= int64_t(1) << numerical[i];
  cudnnBackendBehaviorNote_t behavior[64];
  count = engine.get(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, 64, behavior);
  for (int64_t i = 0; i < count; ++i) plan.behavior_notes |= int64_t(1) << behavior[i];
  BackendDescriptor descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  if (target.handle) descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
#if CUDNN_VERSION >= 90800
  set_device(descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target);
#endif
  descriptor.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  descriptor.finalize("cudnnBackendFinalize(execution plan)");
  plan.workspace = descriptor.get_int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  plan.descriptor = std::move(descriptor);
  return plan;
}

}  // namespace

std::string ExecutionPlan::describe() const {
  return "engine " + std::to_string(engine) + ", workspace " + std::to_string(workspace) + ", numerical notes " +
         std::to_string(numerical_notes) + ", behavior notes " + std::to_string(behavior_notes);
}

ExecutionPlan plan_graph(const BackendDescriptor &graph, const GraphTarget &target, bool deterministic) {
  std::string tried;
  const auto note = [&tried](const std::string &words) {
    if (tried.size() < 1500) tried += "\n  " + words;
  };
  for (const auto &mode : {std::pair{CUDNN_HEUR_MODE_A, "A"}, std::pair{CUDNN_HEUR_MODE_FALLBACK, "fallback"}}) {
    std::vector<BackendDescriptor> configs;
    try {
      configs = proposed(graph, target, mode.first);
    } catch (const Error &error) {
      note(std::string("heuristics ") + mode.second + ": " + error.message);
    }
    if (configs.empty()) note(std::string("heuristics ") + mode.second + " propose nothing");
    for (const BackendDescriptor &config : configs) {
      try {
        ExecutionPlan plan = make_plan(config, target);
        if (!deterministic || !(plan.numerical_notes >> CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC & 1)) return plan;
        note(plan.describe() + ": not deterministic (flag dnn.deterministic)");
      } catch (const Error &error) {
        if (error.status == DNNOPS_OUT_OF_MEMORY) throw;
        note(error.message);
      }
    }
  }
  throw Error(DNNOPS_NOT_SUPPORTED, "cuDNN " + std::to_string(cudnnGetVersion()) + " has no plan for it; tried:" + tried);
}

}  // namespace dnnops
