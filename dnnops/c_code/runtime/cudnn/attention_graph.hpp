// Attention and its gradient as operation graphs, in the form that cuDNN's fused engines know.
#ifndef DNNOPS_CUDNN_ATTENTION_GRAPH_HPP
#define DNNOPS_CUDNN_ATTENTION_GRAPH_HPP

#include "graph_builder.hpp"

namespace dnnops {

// The arrays and numbers of both graphs: their ids in a variant pack.
enum AttentionId : int64_t {
  ID_QUERY = 1,
  ID_KEY,
  ID_VALUE,
  ID_OUT,
  ID_STATS,
  ID_BIAS,
  ID_QUERY_LENGTHS,
  ID_KEY_LENGTHS,
  ID_SEED,
  ID_OFFSET,
  ID_GOUT,
  ID_DQUERY,
  ID_DKEY,
  ID_DVALUE,
  ID_PRODUCTS,   // scratch: of each query, the sum of out * gout
  ID_WIDE_DQUERY,  // scratch: dquery in float32
  // Numbers.
  ID_SCALE,
  ID_HIDDEN,          // the score of a key that is hidden by a length
  ID_HIDDEN_CAUSAL,   // likewise by the causal mask
  ID_KEPT_SCALE,      // of the weights that dropout keeps
  ID_KEPT,            // and their part of all
  ID_END,
};
constexpr int ATTENTION_ARRAYS = 8;  // query, key, value, out, gout, dquery, dkey, dvalue

// All that a plan depends on.  Only 8-byte fields: a part of cache keys.
struct AttentionCase {
  int64_t gradient, dtype, has_stats;  // statistics: a result of attention, an operand of its gradient
  int64_t batch, query_heads, heads, queries, keys, depth, value_depth;
  int64_t is_causal, has_lengths, bias_batch, bias_heads, bias_stride;  // bias_batch 0: no bias
  double dropout;
  int64_t deterministic;
  int64_t strides[ATTENTION_ARRAYS][4];

  bool has_bias() const { return bias_batch; }
  Sizes shape_of(int array) const;
  // Deterministic gradients by queries are not summed in float32 scratch memory.
  bool has_wide_dquery() const { return gradient && !deterministic; }
};

// Which of AttentionCase.strides each is, and its id.
enum AttentionArray { A_QUERY, A_KEY, A_VALUE, A_OUT, A_GOUT, A_DQUERY, A_DKEY, A_DVALUE };
constexpr AttentionId attention_ids[ATTENTION_ARRAYS] = {ID_QUERY, ID_KEY,    ID_VALUE, ID_OUT,
                                                         ID_GOUT,  ID_DQUERY, ID_DKEY,  ID_DVALUE};

BackendDescriptor attention_graph(const AttentionCase &attention, const GraphTarget &target);

// The score of a key that is hidden: cuDNN's engines before 9.10 want a finite one.
float hidden_score();

}  // namespace dnnops
#endif
