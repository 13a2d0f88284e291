// Operation graphs of cuDNN's graph API, built node by node, and their execution plans.
#ifndef DNNOPS_CUDNN_GRAPH_BUILDER_HPP
#define DNNOPS_CUDNN_GRAPH_BUILDER_HPP

#include <array>
#include <string>
#include <vector>

#include "descriptor.hpp"

namespace dnnops {

using Sizes = std::array<int64_t, 4>;

// The strides of a contiguous array.
Sizes packed(const Sizes &shape);

// The target of a graph: the device of a handle, or a described device, which needs no GPU.
struct GraphTarget {
  cudnnHandle_t handle = nullptr;
  const BackendDescriptor *device = nullptr;
};

// A device in cuDNN's JSON form. Throws DNNOPS_NOT_SUPPORTED if cuDNN is older than 9.8.
BackendDescriptor describe_device(const char *json);
// Sets the device of a descriptor, if it is described.
void set_device(BackendDescriptor &of, cudnnBackendAttributeName_t name, const GraphTarget &target);

class GraphBuilder {
 public:
  // The number of one of the graph's arrays.
  using Array = int;
  static constexpr Array NONE = -1;

  // An operand or result in device memory, aligned to 16 bytes.
  Array array(int64_t id, cudnnDataType_t type, const Sizes &shape, const Sizes &strides);
  // A number that the host passes when the graph is executed.
  Array number(int64_t id, cudnnDataType_t type);
  // An intermediate array between two nodes.
  Array between(const Sizes &shape, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Array between(const Sizes &shape, const Sizes &strides, cudnnDataType_t type);

  // An elementwise operation on one to three operands. The result is an intermediate array unless `result` is given.
  struct Elementwise {
    cudnnDataType_t compute = CUDNN_DATA_FLOAT, type = CUDNN_DATA_FLOAT;  // `type` is the result's type
    int64_t axis = -1;                                                    // for indices
    Array result = NONE;
  };
  Array pointwise(cudnnPointwiseMode_t mode, std::initializer_list<Array> operands, const Elementwise &how);
  Array pointwise(cudnnPointwiseMode_t mode, std::initializer_list<Array> operands, Array result = NONE) {
    Elementwise how;
    how.result = result;
    return pointwise(mode, operands, how);
  }
  void reduce(cudnnReduceTensorOp_t op, Array x, Array result, bool deterministic = false);
  // Lengths give the valid part of an axis for each batch entry; with NONE, all of it is valid.
  void multiply(Array a, Array b, Array result, Array m_lengths = NONE, Array n_lengths = NONE, Array k_lengths = NONE);
  // Views the same memory with other strides.
  void view(Array x, Array result);
  // 1 with this probability, otherwise 0.
  void bernoulli(double probability, Array seed, Array offset, Array result);

  // Must be called once, at the end.
  BackendDescriptor finish(const GraphTarget &target);

 private:
  Array add(int64_t id, cudnnDataType_t type, const Sizes &shape, const Sizes &strides, bool is_between, bool by_value);
  const BackendDescriptor &operator[](Array index) const { return arrays_[index]; }
  void push(BackendDescriptor node, const char *what);

  std::vector<BackendDescriptor> arrays_, nodes_;
  std::vector<Sizes> shapes_;
  int64_t next_id_ = 1000;
};

// A way to run a graph.
struct ExecutionPlan {
  BackendDescriptor descriptor;
  int64_t workspace = 0, engine = 0, numerical_notes = 0, behavior_notes = 0;
  std::string describe() const;
};

// The first proposal of the heuristics that can be built; with `deterministic`, the first one with
// reproducible results. Throws DNNOPS_NOT_SUPPORTED, listing what was tried, if there is none.
ExecutionPlan plan_graph(const BackendDescriptor &graph, const GraphTarget &target, bool deterministic);

}  // namespace dnnops
#endif
