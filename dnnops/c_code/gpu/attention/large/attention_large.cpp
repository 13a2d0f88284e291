#include "attention_large.hpp"

#include <algorithm>
#include <limits>

#include "attention_large_params.hpp"

namespace dnnops {

namespace {

// From this size on, the weights that cuDNN computes from statistics are off by more than what rounding to 16 bits
// changes: by 2^-24 of the statistics, times ln(2).
double limit_of(int64_t dtype) { return dtype == DNNOPS_FLOAT16 ? 1 << 14 : 1 << 16; }

unsigned blocks_of(int64_t heads, int64_t rows) {
  const int64_t blocks = heads * ((rows + LARGE_ROWS - 1) / LARGE_ROWS);
  if (blocks > std::numeric_limits<int>::max()) fail(DNNOPS_NOT_SUPPORTED, "there are too many queries or keys");
  return static_cast<unsigned>(blocks);
}

bool has_vectors(const dnnops_tensor &array) {
  constexpr int64_t BYTES = 16;
  bool fits = alignment_of(array.data) == BYTES && array.shape[3] * item_size(array.dtype) % BYTES == 0;
  for (int i = 0; i < 3; ++i) fits = fits && (array.shape[i] == 1 || array.strides[i] % BYTES == 0);
  return fits;
}

}  // namespace

int64_t AttentionLargeKernels::bytes(const AttentionCall &call) {
  return LARGE_ROW_NUMBERS * call.batch * call.query_heads * call.queries * sizeof(float);
}

AttentionLargeKernels::AttentionLargeKernels(const AttentionCall &call, const Handle &handle) {
  int64_t columns = 32;
  while (columns < std::max(call.depth, call.value_depth)) columns *= 2;
  const std::string options =
      "-DDTYPE=" + std::to_string(call.dtype) + " -DMOST_COLUMNS=" + std::to_string(columns);
  const auto load = [&](const char *name) { return load_kernel(handle, "attention_large", name, options); };
  const int64_t heads = call.batch * call.heads;
  dquery_ = load("attention_large_dquery");
  dkey_ = load("attention_large_dkey");
  dquery_blocks_ = blocks_of(heads, call.query_heads / call.heads * call.queries);
  dkey_blocks_ = blocks_of(heads, call.keys);
}

void AttentionLargeKernels::run(const AttentionCall &call, const dnnops_tensor *results, void *scratch,
                                void *stream) const {
  AttentionLargeParams params = {};
  const dnnops_tensor *const arrays[LARGE_ARRAYS] = {&call.inputs[0], &call.inputs[1], &call.inputs[2], call.gout,
                                                     &results[0],     &results[1],     &results[2]};
  params.vectors = 1;
  for (int i = 0; i < LARGE_ARRAYS; ++i) {
    params.arrays[i] = arrays[i]->data;
    for (int axis = 0; axis < 3; ++axis) params.steps[i][axis] = arrays[i]->strides[axis] / item_size(call.dtype);
    if (i < LARGE_DQUERY && !has_vectors(*arrays[i])) params.vectors = 0;
  }
  params.stats = static_cast<const float *>(call.stats->data);
  params.rows = static_cast<float *>(scratch);
  if (call.mask) {
    params.mask = call.mask->data;
    params.mask_width = item_size(call.mask->dtype);
    for (int i = 0; i < 4; ++i) params.mask_steps[i] = call.mask->shape[i] == 1 ? 0 : call.mask->strides[i];
  }
  if (call.query_lengths) params.query_lengths = static_cast<const long long *>(call.query_lengths->data);
  if (call.key_lengths) params.key_lengths = static_cast<const long long *>(call.key_lengths->data);
  params.heads = call.heads, params.group = call.query_heads / call.heads;
  params.queries = call.queries, params.keys = call.keys;
  params.depth = call.depth, params.value_depth = call.value_depth;
  params.is_causal = call.params.is_causal;
  params.scale = call.scale(), params.limit = limit_of(call.dtype);
  void *arguments[] = {&params};
  launch_kernel(dquery_, dquery_blocks_, LARGE_THREADS, 0, stream, arguments);
  launch_kernel(dkey_, dkey_blocks_, LARGE_THREADS, 0, stream, arguments);
}

}  // namespace dnnops
