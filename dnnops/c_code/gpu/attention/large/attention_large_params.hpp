// The parameters of the kernels for large scores. c_code/gpu/attention/large/attention_large.cuh is compiled with this file, too.
#ifndef DNNOPS_CUDNN_ATTENTION_LARGE_PARAMS_HPP
#define DNNOPS_CUDNN_ATTENTION_LARGE_PARAMS_HPP

// Arrays are indexed by AttentionLargeArray. All fields have 8 bytes.
enum AttentionLargeArray {
  LARGE_QUERY, LARGE_KEY, LARGE_VALUE, LARGE_GOUT, LARGE_DQUERY, LARGE_DKEY, LARGE_DVALUE, LARGE_ARRAYS
};

struct AttentionLargeParams {
  void *arrays[LARGE_ARRAYS];  // of 16-bit elements, with a dense last axis
  const float *stats;          // (batch, query heads, queries)
  float *rows;                 // scratch: LARGE_ROW_NUMBERS for each of the statistics
  const void *mask;            // null if there is none
  const long long *query_lengths, *key_lengths;  // null if all positions are valid
  long long steps[LARGE_ARRAYS][3];              // in elements, for batch, heads and rows
  long long mask_steps[4];                       // in bytes
  long long mask_width;                          // bytes per element: 1 for bool, 2 for additive masks
  long long heads, group;                        // key heads, and query heads per key head
  long long queries, keys, depth, value_depth;
  long long vectors;  // whether rows of operands can be read 16 bytes at a time
  long long is_causal;
  double scale, limit;  // statistics are large from this limit on
};

constexpr int LARGE_THREADS = 256;    // of a block
constexpr int LARGE_ROWS = 256;       // queries or keys of a block: each reads all statistics of a head
constexpr int LARGE_ROW_NUMBERS = 3;  // of a query

#endif
