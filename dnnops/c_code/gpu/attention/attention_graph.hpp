// Attention and its gradient as operation graphs, in the form that cuDNN's fused engines support.
#ifndef DNNOPS_CUDNN_ATTENTION_GRAPH_HPP
#define DNNOPS_CUDNN_ATTENTION_GRAPH_HPP

#include "../base/graph_builder.hpp"

namespace dnnops {

// The ids of the arrays and numbers of both graphs in a variant pack.
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
  ID_PRODUCTS,   // scratch: the sum of out * gout for each query
  ID_WIDE_DQUERY,  // scratch: dquery in float32
  // Numbers.
  ID_SCALE,
  ID_HIDDEN,          // the score of a key hidden by a length
  ID_HIDDEN_CAUSAL,   // the score of a key hidden by the causal mask
  ID_KEPT_SCALE,      // the scale of the weights that dropout keeps
  ID_KEPT,            // the probability that dropout keeps a weight
  ID_END,
};
constexpr int ATTENTION_ARRAYS = 8;  // query, key, value, out, gout, dquery, dkey, dvalue

// Everything that an engine depends on. Only 8-byte fields, because it is part of cache keys.
struct AttentionCase {
  int64_t gradient, dtype, has_stats;  // statistics: a result of attention, an operand of its gradient
  int64_t batch, query_heads, heads, queries, keys, depth, value_depth;
  int64_t is_causal, has_lengths, bias_batch, bias_heads, bias_stride;  // bias_batch is 0 if there is no bias
  double dropout;
  int64_t deterministic;
  int64_t strides[ATTENTION_ARRAYS][4];

  bool has_bias() const { return bias_batch; }
  Sizes shape_of(int array) const;
  // Deterministic gradients with respect to the queries are not summed in float32 scratch memory.
  bool has_wide_dquery() const { return gradient && !deterministic; }
};

// The index of each array in AttentionCase.strides, and its id.
enum AttentionArray { A_QUERY, A_KEY, A_VALUE, A_OUT, A_GOUT, A_DQUERY, A_DKEY, A_DVALUE };
constexpr AttentionId attention_ids[ATTENTION_ARRAYS] = {ID_QUERY, ID_KEY,    ID_VALUE, ID_OUT,
                                                         ID_GOUT,  ID_DQUERY, ID_DKEY,  ID_DVALUE};

BackendDescriptor attention_graph(const AttentionCase &attention, const GraphTarget &target);

// The score of a hidden key. cuDNN's engines before 9.10 require a finite one.
float hidden_score();

}  // namespace dnnops
#endif
