// The parameter words and operands of attention and its gradient, checked.
#ifndef DNNOPS_CUDNN_ATTENTION_CALL_HPP
#define DNNOPS_CUDNN_ATTENTION_CALL_HPP

#include <cstdint>

#include "../base/tensor.hpp"

namespace dnnops {

enum AttentionWord {
  WORD_SCALE,
  WORD_HAS_SCALE,
  WORD_CAUSAL,
  WORD_GIVEN,
  WORD_DROPOUT,
  WORD_GRADIENT,
  WORD_DETERMINISTIC,
  WORD_STATS,
  WORD_PATH
};
enum GivenOperand { GIVEN_MASK = 1, GIVEN_QUERY_LENGTHS = 2, GIVEN_KEY_LENGTHS = 4, GIVEN_STATE = 8 };

// The implementation that computes a gradient: selected by shape, or as requested by tests that compare the two.
enum AttentionPath { PATH_BY_SHAPE, PATH_KERNEL, PATH_CUDNN };

int count_operands(const int64_t *words);
int count_results(const int64_t *words);
const char *op_name(const int64_t *words);

// query, key, value, the optional operands, and for the gradient out, stats and gout.
struct AttentionCall {
  // Throws if the operands are inconsistent.
  AttentionCall(const int64_t *words, const dnnops_tensor *inputs);
  float scale() const;
  double dropout() const;

  const int64_t *words;
  const dnnops_tensor *inputs;
  const dnnops_tensor *mask = nullptr, *query_lengths = nullptr, *key_lengths = nullptr, *state = nullptr;
  const dnnops_tensor *out = nullptr, *stats = nullptr, *gout = nullptr;
  bool gradient, has_stats;
  int64_t dtype, batch, query_heads, heads, queries, keys, depth, value_depth;

 private:
  void check();
  void check_mask() const;
};

}  // namespace dnnops
#endif
