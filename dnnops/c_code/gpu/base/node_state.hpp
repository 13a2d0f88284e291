// The state that a node keeps between executions: the layout of its last operands, and what was prepared for it.
#ifndef DNNOPS_CUDNN_NODE_STATE_HPP
#define DNNOPS_CUDNN_NODE_STATE_HPP

#include <optional>

#include "tensor.hpp"

namespace dnnops {

// Everything about an operand except its address, of which only the alignment counts. Only 8-byte
// fields and no padding.
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

// The node's state, or a temporary one if the caller gave no slot or another thread holds it.
template <class NodeState>
class HeldState {
 public:
  explicit HeldState(const dnnops_context &context) : lease_(context.state) {
    if (!lease_.get()) local_.emplace();
  }
  // Whether the state belongs to the node, not only to this call.
  bool is_kept() const { return lease_.get(); }
  NodeState &operator*() { return lease_.get() ? *lease_.get() : *local_; }

 private:
  StateLease<NodeState> lease_;
  std::optional<NodeState> local_;
};

}  // namespace dnnops
#endif
