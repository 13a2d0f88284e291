// Kernels that run before and after cuDNN's fused attention: lengths in its integer type, masks as additive biases,
// copies of operands with depths that it does not support, and zeros for queries that see no key.
//
// dnnops/gpu/kernels.py compiles this with CuPy, and tests compile it for the host. Elements have 16 bits.
// Macros: MASK_WIDTH, the size of a mask element in bytes (1 for bool); the bits of MINUS_INFINITY, and of HIDDEN,
// the bias of masked keys: minus infinity, or the lowest number if engines require finite scores.

typedef unsigned short element;

// The same structures as in c_code/gpu/attention/attention_kernels.hpp.

// The lengths passed to cuDNN are at least 1, since it may not process entries of length 0. `rows` and `columns`
// are the numbers of valid queries and keys; no query is valid without a key.
struct length_params {
  const long long *queries, *keys;  // null if all are valid
  long long batch, max_queries, max_keys, seed, offset;
  int *inner_queries, *inner_keys, *rows, *columns;
  long long *random;        // the seed and the offset
  const long long *state;   // the same on the device; null if they are given above
};

struct mask_params {
  const unsigned char *mask;
  long long steps[4];  // of the mask, in bytes
  element *bias;
  unsigned char *visible;  // whether a row has a valid key
  const int *columns;      // valid keys of each batch entry; null if all are valid
  long long batch, heads, queries, keys, bias_batch, bias_stride;
  long long is_causal;
};

struct stats_params {
  const float *from;
  float *to;
  long long count;
};

struct row_copy_params {
  const element *from;
  element *to;
  long long sizes[4];  // of the target
  long long rows, columns;  // the source's sizes of the last two axes; the rest becomes zero
  long long from_steps[3], to_steps[3];
  long long negates;  // whether signs change
};

struct hide_params {
  element *array;
  float *stats;              // null if there are none
  const int *lengths;        // of each batch entry; null if all are valid
  const unsigned char *visible;  // null if all are visible
  long long batch, heads, rows, columns, steps[3], visible_batch, visible_heads, hides_all;
};

DEVICE long long first_index() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE long long index_step() { return (long long)gridDim.x * blockDim.x; }
DEVICE long long clamped(long long value, long long limit) { return value < 0 ? 0 : value > limit ? limit : value; }

KERNEL void attention_lengths(GRID_CONSTANT const length_params p) {
  wait_for_stream();
  if (p.random && first_index() == 0) {
    p.random[0] = p.state ? p.state[0] : p.seed;
    p.random[1] = p.state ? p.state[1] : p.offset;
  }
  if (!p.rows) return;
  for (long long n = first_index(); n < p.batch; n += index_step()) {
    const long long queries = p.queries ? clamped(p.queries[n], p.max_queries) : p.max_queries;
    const long long keys = p.keys ? clamped(p.keys[n], p.max_keys) : p.max_keys;
    const long long rows = keys ? queries : 0;
    p.rows[n] = (int)rows;
    p.columns[n] = (int)keys;
    p.inner_queries[n] = (int)(rows ? rows : 1);
    p.inner_keys[n] = (int)(keys ? keys : 1);
  }
}

// One block at a time for each row of the scores that the mask distinguishes.
KERNEL void attention_mask(GRID_CONSTANT const mask_params p) {
  __shared__ int is_visible;
  wait_for_stream();
  for (long long index = blockIdx.x; index < p.batch * p.heads * p.queries; index += gridDim.x) {
    const long long row = index % p.queries, head = index / p.queries % p.heads, n = index / p.queries / p.heads;
    const unsigned char *mask = p.mask + n * p.steps[0] + head * p.steps[1] + row * p.steps[2];
    element *bias = p.bias + ((n * p.heads + head) * p.queries + row) * p.bias_stride;
    const long long count = p.columns ? p.columns[n] : p.keys;
    __syncthreads();
    if (threadIdx.x == 0) is_visible = 0;
    __syncthreads();
    for (long long key = threadIdx.x; key < p.keys; key += blockDim.x) {
#if MASK_WIDTH == 1
      const bool counts = mask[key * p.steps[3]] != 0;
      const element value = counts ? 0 : HIDDEN;
#else
      element value = *(const element *)(mask + key * p.steps[3]);
      const bool counts = value != MINUS_INFINITY;
      if (!counts) value = HIDDEN;
#endif
      if (n < p.bias_batch) bias[key] = value;
      if (counts && key < count && (!p.is_causal || key <= row)) is_visible = 1;
    }
    __syncthreads();
    if (threadIdx.x == 0) p.visible[index] = (unsigned char)is_visible;
  }
}

// For a query that sees no key, weights computed with these statistics are zero for any scores.
KERNEL void attention_stats(GRID_CONSTANT const stats_params p) {
  wait_for_stream();
  for (long long i = first_index(); i < p.count; i += index_step()) {
    const float value = p.from[i];
    p.to[i] = value < -3e38f ? 1e30f : value;
  }
}

KERNEL void attention_copy(GRID_CONSTANT const row_copy_params p) {
  wait_for_stream();
  const long long total = p.sizes[0] * p.sizes[1] * p.sizes[2];
  for (long long index = first_index() / 32; index < total; index += index_step() / 32) {
    const long long row = index % p.sizes[2], head = index / p.sizes[2] % p.sizes[1], n = index / p.sizes[2] / p.sizes[1];
    const element *from = p.from + n * p.from_steps[0] + head * p.from_steps[1] + row * p.from_steps[2];
    element *to = p.to + n * p.to_steps[0] + head * p.to_steps[1] + row * p.to_steps[2];
    for (long long column = threadIdx.x % 32; column < p.sizes[3]; column += 32)
      to[column] = row < p.rows && column < p.columns ? from[column] ^ (p.negates ? 0x8000 : 0) : 0;
  }
}

KERNEL void attention_hide(GRID_CONSTANT const hide_params p) {
  wait_for_stream();
  const long long total = p.batch * p.heads * p.rows;
  for (long long index = first_index() / 32; index < total; index += index_step() / 32) {
    const long long row = index % p.rows, head = index / p.rows % p.heads, n = index / p.rows / p.heads;
    const long long entry =
        ((p.visible_batch > 1 ? n : 0) * p.visible_heads + (p.visible_heads > 1 ? head : 0)) * p.rows + row;
    const bool hidden = p.hides_all || (p.lengths && row >= p.lengths[n]) || (p.visible && !p.visible[entry]);
    if (!hidden) continue;
    element *const to = p.array + n * p.steps[0] + head * p.steps[1] + row * p.steps[2];
    for (long long column = threadIdx.x % 32; column < p.columns; column += 32) to[column] = 0;
    if (p.stats && threadIdx.x % 32 == 0) p.stats[index] = __uint_as_float(0xff800000u);  // minus infinity
  }
}
