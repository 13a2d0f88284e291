#include "attention_graph.hpp"

#include <limits>

#include "../base/tensor.hpp"

namespace dnnops {

float hidden_score() {
  return cudnnGetVersion() < 91000 ? std::numeric_limits<float>::lowest() : -std::numeric_limits<float>::infinity();
}

Sizes AttentionCase::shape_of(int array) const {
  switch (array) {
    case A_QUERY:
    case A_DQUERY: return {batch, query_heads, queries, depth};
    case A_KEY:
    case A_DKEY: return {batch, heads, keys, depth};
    case A_VALUE:
    case A_DVALUE: return {batch, heads, keys, value_depth};
    default: return {batch, query_heads, queries, value_depth};
  }
}

namespace {

using Array = GraphBuilder::Array;
constexpr Array NONE = GraphBuilder::NONE;

Sizes swapped(const Sizes &sizes) { return {sizes[0], sizes[1], sizes[3], sizes[2]}; }

// The part that both graphs share.
struct AttentionBuilder {
  explicit AttentionBuilder(const AttentionCase &attention)
      : c(attention), io(cudnn_dtype(attention.dtype)), scores{c.batch, c.query_heads, c.queries, c.keys},
        rows{c.batch, c.query_heads, c.queries, 1} {
    if (c.has_lengths) {
      query_lengths = graph.array(ID_QUERY_LENGTHS, CUDNN_DATA_INT32, {c.batch, 1, 1, 1}, {1, 1, 1, 1});
      key_lengths = graph.array(ID_KEY_LENGTHS, CUDNN_DATA_INT32, {c.batch, 1, 1, 1}, {1, 1, 1, 1});
    }
    scale = graph.number(ID_SCALE, CUDNN_DATA_FLOAT);
  }

  Sizes strides_of(int array) const {
    const int64_t *given = c.strides[array];
    return {given[0], given[1], given[2], given[3]};
  }
  Array operand(int array) { return graph.array(attention_ids[array], io, c.shape_of(array), strides_of(array)); }
  Array transposed(int array) {
    return graph.array(attention_ids[array], io, swapped(c.shape_of(array)), swapped(strides_of(array)));
  }
  Array stats() { return graph.array(ID_STATS, CUDNN_DATA_FLOAT, rows, packed(rows)); }

  // The indices along an axis of the scores.
  Array indexes(Array x, int64_t axis, cudnnDataType_t compute) {
    return graph.pointwise(CUDNN_POINTWISE_GEN_INDEX, {x}, {compute, CUDNN_DATA_INT32, axis, NONE});
  }
  Array condition(cudnnPointwiseMode_t mode, Array a, Array b) {
    return graph.pointwise(mode, {a, b}, {CUDNN_DATA_BOOLEAN, CUDNN_DATA_BOOLEAN, -1, NONE});
  }

  Array scaled_scores(Array query, Array transposed_key) {
    const Array products = graph.between(scores);
    graph.multiply(query, transposed_key, products, query_lengths, key_lengths);
    const Array x = graph.pointwise(CUDNN_POINTWISE_MUL, {products, scale});
    if (!c.has_bias()) return x;
    const Sizes bias = {c.bias_batch, c.bias_heads, c.queries, c.keys};
    const Sizes strides = {c.bias_heads * c.queries * c.bias_stride, c.queries * c.bias_stride, c.bias_stride, 1};
    return graph.pointwise(CUDNN_POINTWISE_ADD, {x, graph.array(ID_BIAS, io, bias, strides)});
  }

  Array hide_by_lengths(Array x) {
    if (!c.has_lengths) return x;
    const Array row = indexes(x, 2, CUDNN_DATA_INT32), column = indexes(x, 3, CUDNN_DATA_INT32);
    const Array row_counts = condition(CUDNN_POINTWISE_CMP_LT, row, query_lengths);
    const Array column_counts = condition(CUDNN_POINTWISE_CMP_LT, column, key_lengths);
    const Array counts = condition(CUDNN_POINTWISE_LOGICAL_AND, row_counts, column_counts);
    return graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, {x, graph.number(ID_HIDDEN, CUDNN_DATA_FLOAT), counts});
  }

  Array hide_causally(Array x) {
    if (!c.is_causal) return x;
    const Array row = indexes(x, 2, CUDNN_DATA_FLOAT), column = indexes(x, 3, CUDNN_DATA_FLOAT);
    const Array counts = condition(CUDNN_POINTWISE_CMP_GE, row, column);
    return graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT,
                           {x, graph.number(ID_HIDDEN_CAUSAL, CUDNN_DATA_FLOAT), counts});
  }

  // 1 where a weight is kept, else 0.
  Array kept() {
    const Array seed = graph.array(ID_SEED, CUDNN_DATA_INT64, {1, 1, 1, 1}, {1, 1, 1, 1});
    const Array offset = graph.array(ID_OFFSET, CUDNN_DATA_INT64, {1, 1, 1, 1}, {1, 1, 1, 1});
    const Array result = graph.between(scores);
    graph.bernoulli(1 - c.dropout, seed, offset, result);
    return result;
  }

  const AttentionCase &c;
  const cudnnDataType_t io;
  const Sizes scores, rows;
  GraphBuilder graph;
  Array query_lengths = NONE, key_lengths = NONE, scale;
};

BackendDescriptor forward_graph(const AttentionCase &c, const GraphTarget &target) {
  AttentionBuilder b(c);
  GraphBuilder &graph = b.graph;
  Array x = b.scaled_scores(b.operand(A_QUERY), b.transposed(A_KEY));
  x = b.hide_causally(b.hide_by_lengths(x));
  const Array largest = graph.between(b.rows), total = graph.between(b.rows);
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, x, largest);
  const Array exponentials = graph.pointwise(CUDNN_POINTWISE_EXP, {graph.pointwise(CUDNN_POINTWISE_SUB, {x, largest})});
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, total);
  // The engines only support this form with the nodes of the statistics, whether or not they are written.
  const Array stats = c.has_stats ? b.stats() : graph.between(b.rows);
  graph.pointwise(CUDNN_POINTWISE_ADD, {largest, graph.pointwise(CUDNN_POINTWISE_LOG, {total})}, stats);
  // The engine requires the product's operand in the dtype of the values.
  GraphBuilder::Elementwise narrow;
  narrow.type = b.io;
  Array weights;
  if (c.dropout > 0) {
    weights = graph.pointwise(CUDNN_POINTWISE_DIV, {exponentials, total});
    weights = graph.pointwise(CUDNN_POINTWISE_MUL, {weights, b.kept()});
    weights = graph.pointwise(CUDNN_POINTWISE_MUL, {weights, graph.number(ID_KEPT_SCALE, CUDNN_DATA_FLOAT)}, narrow);
  } else {
    weights = graph.pointwise(CUDNN_POINTWISE_DIV, {exponentials, total}, narrow);
  }
  graph.multiply(weights, b.operand(A_VALUE), b.operand(A_OUT), b.query_lengths, NONE, b.key_lengths);
  return graph.finish(target);
}

BackendDescriptor backward_graph(const AttentionCase &c, const GraphTarget &target) {
  AttentionBuilder b(c);
  GraphBuilder &graph = b.graph;
  const Array query = b.operand(A_QUERY), gout = b.operand(A_GOUT), transposed_key = b.transposed(A_KEY);
  const Array kept = c.dropout > 0 ? b.kept() : NONE;
  const Array kept_scale = kept == NONE ? NONE : graph.number(ID_KEPT_SCALE, CUDNN_DATA_FLOAT);
  const Array kept_part = graph.number(ID_KEPT, CUDNN_DATA_FLOAT);
  const auto drop = [&](Array x) { return kept == NONE ? x : graph.pointwise(CUDNN_POINTWISE_MUL, {x, kept}); };
  const auto scale_kept = [&](Array x) {
    return kept == NONE ? x : graph.pointwise(CUDNN_POINTWISE_MUL, {x, kept_scale});
  };

  // The sum of out * gout.
  const Array terms = graph.between(c.shape_of(A_OUT)), sums = graph.between(b.rows);
  graph.pointwise(CUDNN_POINTWISE_MUL, {gout, b.operand(A_OUT)}, terms);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, terms, sums);
  const Array products = graph.array(ID_PRODUCTS, CUDNN_DATA_FLOAT, b.rows, packed(b.rows));
  graph.pointwise(CUDNN_POINTWISE_MUL, {sums, kept_part}, products);

  // The weights, computed from the scores and the statistics.
  Array x = b.scaled_scores(query, transposed_key);
  x = graph.pointwise(CUDNN_POINTWISE_SUB, {x, b.stats()});
  x = b.hide_causally(b.hide_by_lengths(x));
  const Array weights = graph.pointwise(CUDNN_POINTWISE_EXP, {x});

  // Goes from the gradient with respect to scores or weights to that with respect to one of their factors.
  const auto gradient_of = [&](Array of_scores, Array factor, int array) {
    const Sizes turned = {c.batch, c.query_heads, c.keys, c.queries};
    const Array across = graph.between(turned, swapped(packed(b.scores)), b.io);
    graph.view(of_scores, across);
    const Array result = b.operand(array);
    if (c.query_heads == c.heads) {
      graph.multiply(across, factor, result, b.key_lengths, NONE, b.query_lengths);
      return;
    }
    Sizes all_heads = c.shape_of(array);
    all_heads[1] = c.query_heads;
    const Array of_all_heads = graph.between(all_heads, b.io);
    graph.multiply(across, factor, of_all_heads, b.key_lengths, NONE, b.query_lengths);
    graph.reduce(CUDNN_REDUCE_TENSOR_ADD, of_all_heads, result);
  };
  gradient_of(scale_kept(drop(weights)), gout, A_DVALUE);

  const Array by_weights = graph.between(b.scores);
  graph.multiply(gout, b.transposed(A_VALUE), by_weights, b.query_lengths, b.key_lengths);
  Array by_scores = graph.pointwise(CUDNN_POINTWISE_SUB, {drop(by_weights), products});
  by_scores = scale_kept(graph.pointwise(CUDNN_POINTWISE_MUL, {by_scores, weights}));
  by_scores = graph.pointwise(CUDNN_POINTWISE_MUL, {by_scores, b.scale});
  gradient_of(by_scores, query, A_DKEY);

  const Array key = graph.between(c.shape_of(A_KEY), b.strides_of(A_KEY), b.io);
  graph.view(transposed_key, key);
  const Array dquery = b.operand(A_DQUERY);
  if (!c.has_wide_dquery()) {
    graph.multiply(by_scores, key, dquery, b.query_lengths, NONE, b.key_lengths);
    return graph.finish(target);
  }
  const Sizes shape = c.shape_of(A_DQUERY);
  const Array wide = graph.array(ID_WIDE_DQUERY, CUDNN_DATA_FLOAT, shape, packed(shape));
  graph.multiply(by_scores, key, wide, b.query_lengths, NONE, b.key_lengths);
  graph.pointwise(CUDNN_POINTWISE_IDENTITY, {wide}, dquery);
  return graph.finish(target);
}

}  // namespace

BackendDescriptor attention_graph(const AttentionCase &attention, const GraphTarget &target) {
  return attention.gradient ? backward_graph(attention, target) : forward_graph(attention, target);
}

}  // namespace dnnops
