// The parameter words and operands of attention and its gradient, checked.
#ifndef DNNOPS_CUDNN_ATTENTION_CALL_HPP
#define DNNOPS_CUDNN_ATTENTION_CALL_HPP

#include <cstdint>
#include <initializer_list>

#include "../base/tensor.hpp"

namespace dnnops {

enum GivenOperand { GIVEN_MASK = 1, GIVEN_QUERY_LENGTHS = 2, GIVEN_KEY_LENGTHS = 4, GIVEN_STATE = 8 };

// The implementation that computes a gradient: selected by shape, or as requested by tests that compare the two. The
// last one does not avoid cuDNN's known faults, so that they can be checked.
enum AttentionPath { PATH_BY_SHAPE, PATH_KERNEL, PATH_CUDNN, PATH_FAULTY };

struct AttentionParams {
  double scale;
  int64_t has_scale, is_causal, given;  // given: a bit for each optional operand
  double dropout;
  int64_t gradient, deterministic, has_stats, path;  // path: an AttentionPath
  int64_t from_device;                               // whether the state is on the device

  const char *op() const { return gradient ? "GpuDnnAttentionGrad" : "GpuDnnAttention"; }
  int input_count() const { return (gradient ? 6 : 3) + __builtin_popcountll(given); }
  int output_count() const { return gradient ? 3 : has_stats ? 2 : 1; }
};

// query, key, value, the optional operands, and for the gradient out, stats and gout.
struct AttentionCall {
  // Throws if the operands are inconsistent, or have none of these dtypes.
  AttentionCall(const AttentionParams &params, const dnnops_tensor *inputs,
                std::initializer_list<int64_t> dtypes = {DNNOPS_FLOAT16, DNNOPS_BFLOAT16});
  float scale() const;

  const AttentionParams &params;
  const dnnops_tensor *inputs;
  const dnnops_tensor *mask = nullptr, *query_lengths = nullptr, *key_lengths = nullptr, *state = nullptr;
  const dnnops_tensor *out = nullptr, *stats = nullptr, *gout = nullptr;
  bool gradient, has_stats;
  int64_t dtype, batch, query_heads, heads, queries, keys, depth, value_depth;

 private:
  void check(std::initializer_list<int64_t> dtypes);
  void check_mask() const;
};

// Fills in the dtypes and shapes of the results.
void set_attention_outputs(const AttentionCall &call, dnnops_tensor *outputs);

}  // namespace dnnops
#endif
