// What a node keeps between its executions: the operands' layout of the last one, and what was
// prepared for it.
#ifndef DNNOPS_CUDNN_NODE_STATE_HPP
#define DNNOPS_CUDNN_NODE_STATE_HPP

#include "tensor.hpp"

namespace dnnops {

// All of an operand but its address; of that the alignment.  Only 8-byte fields and no padding.
struct OperandKey {
  int64_t dtype, ndim, shape[DNNOPS_MAX_NDIM], strides[DNNOPS_MAX_NDIM], alignment;
};

inline void read_key(OperandKey &key, const dnnops_tensor &operand) {
  key.dtype = operand.dtype;
  key.ndim = operand.ndim;
  for (int i = 0; i < DNNOPS_MAX_NDIM; ++i) {
    key.shape[i] = i < operand.ndim ? operand.shape[i] : 0;
    key.strides[i] = i < operand.ndim ? operand.strides[i] : 0;
  }
  key.alignment = alignment_of(operand.data);
}

// The node's state, made at its first execution; `local` if the caller gave no slot for one.
template <class NodeState>
NodeState &node_state(const dnnops_context &context, NodeState &local) {
  if (!context.state) return local;
  if (!*context.state) *context.state = static_cast<State *>(new NodeState);
  return *static_cast<NodeState *>(static_cast<State *>(*context.state));
}

}  // namespace dnnops
#endif
