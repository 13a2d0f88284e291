#include "attention_call.hpp"

#include <algorithm>
#include <cmath>

#include "../../common/shapes.hpp"

namespace dnnops {

AttentionCall::AttentionCall(const AttentionParams &params_, const dnnops_tensor *inputs_,
                             std::initializer_list<int64_t> dtypes)
    : params(params_), inputs(inputs_) {
  gradient = params.gradient, has_stats = params.has_stats;
  const dnnops_tensor *next = inputs + 3;
  const int64_t given = params.given;
  if (given & GIVEN_MASK) mask = next++;
  if (given & GIVEN_QUERY_LENGTHS) query_lengths = next++;
  if (given & GIVEN_KEY_LENGTHS) key_lengths = next++;
  if (given & GIVEN_STATE) state = next++;
  if (gradient) out = next, stats = next + 1, gout = next + 2;
  check(dtypes);
}

void AttentionCall::check(std::initializer_list<int64_t> dtypes) {
  const dnnops_tensor &query = inputs[0], &key = inputs[1], &value = inputs[2];
  dtype = query.dtype;
  if (std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) {
    std::string names;
    for (const int64_t allowed : dtypes) names += (names.empty() ? "" : " and ") + std::string(dtype_name(allowed));
    fail(DNNOPS_TYPE_ERROR, "this attention takes %s, not %s", names.c_str(), dtype_name(dtype));
  }
  for (int i = 0; i < 3; ++i)
    if (inputs[i].ndim != 4 || inputs[i].dtype != dtype)
      fail(DNNOPS_TYPE_ERROR, "query, key and value have to have 4 dimensions and one dtype");
  batch = query.shape[0], query_heads = query.shape[1], queries = query.shape[2], depth = query.shape[3];
  heads = key.shape[1], keys = key.shape[2], value_depth = value.shape[3];
  if (key.shape[0] != batch || value.shape[0] != batch || value.shape[1] != heads || value.shape[2] != keys ||
      key.shape[3] != depth)
    fail(DNNOPS_VALUE_ERROR, "batch, heads, keys or depth of query, key and value differ");
  if (heads == 0 ? query_heads != 0 : query_heads % heads != 0)
    fail(DNNOPS_VALUE_ERROR, "the heads of query have to be a multiple of those of key and value");
  if (mask) check_mask();
  for (const dnnops_tensor *lengths : {query_lengths, key_lengths})
    if (lengths && (lengths->dtype != DNNOPS_INT64 || lengths->ndim != 1 || lengths->shape[0] != batch))
      fail(DNNOPS_VALUE_ERROR, "lengths have to be int64, and one for each batch entry");
  if (state && params.from_device && (state->dtype != DNNOPS_INT64 || state->ndim != 1 || state->shape[0] != 2))
    fail(DNNOPS_VALUE_ERROR, "the state has to be int64, with two elements");
  if (!gradient) return;
  const int64_t expected[4] = {batch, query_heads, queries, value_depth};
  for (const dnnops_tensor *array : {out, stats, gout}) {
    const int64_t ndim = array == stats ? 3 : 4;
    if (array->ndim != ndim || std::memcmp(array->shape, expected, ndim * sizeof(int64_t)) ||
        array->dtype != (array == stats ? DNNOPS_FLOAT32 : dtype))
      fail(DNNOPS_VALUE_ERROR, "the output, its gradient or the scores' statistics do not have the shape %s, or "
           "another dtype", list_of(expected, ndim).c_str());
  }
}

void AttentionCall::check_mask() const {
  const int64_t sizes[4] = {batch, query_heads, queries, keys};
  bool fits = mask->ndim == 4 && (mask->dtype == DNNOPS_BOOL || mask->dtype == dtype);
  for (int i = 0; fits && i < 4; ++i) fits = mask->shape[i] == sizes[i] || mask->shape[i] == 1;
  if (!fits)
    fail(DNNOPS_VALUE_ERROR, "mask must be bool or have the dtype of query, with a shape that broadcasts to %s",
         list_of(sizes, 4).c_str());
}

float AttentionCall::scale() const {
  // With a depth of 0, all scores are 0 for any scale.
  const double least_one = static_cast<double>(std::max<int64_t>(depth, 1));
  return static_cast<float>(params.has_scale ? params.scale : 1 / std::sqrt(least_one));
}

void set_attention_outputs(const AttentionCall &call, dnnops_tensor *outputs) {
  if (call.gradient) {
    for (int i = 0; i < 3; ++i) set_output(outputs[i], call.dtype, call.inputs[i].shape, 4);
  } else {
    set_output(outputs[0], call.dtype, {call.batch, call.query_heads, call.queries, call.value_depth});
    if (call.has_stats) set_output(outputs[1], DNNOPS_FLOAT32, {call.batch, call.query_heads, call.queries});
  }
}

}  // namespace dnnops
