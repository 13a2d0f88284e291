// The state that a node keeps between executions: the layout of its last operands, and what was prepared for it.
#ifndef DNNOPS_CUDNN_NODE_STATE_HPP
#define DNNOPS_CUDNN_NODE_STATE_HPP

#include <cstring>
#include <optional>
#include <type_traits>

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

// A state that is prepared for the last operands, which a key describes.
template <class Key>
struct KeyedState : State {
  // Calls `prepare` unless it was last called, and succeeded, for an equal key.
  template <class Prepare>
  void prepare_for(const Key &key, Prepare &&prepare) {
    static_assert(std::has_unique_object_representations_v<Key>, "keys are compared as bytes");
    if (is_prepared_ && !std::memcmp(&key, &key_, sizeof key)) return;
    is_prepared_ = false;
    prepare();
    key_ = key;
    is_prepared_ = true;
  }

 private:
  bool is_prepared_ = false;
  Key key_;
};

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
