// What the kernel of attention's gradient gets: c_code/cudnn/attention_grad.cuh is compiled with this, too.
#ifndef DNNOPS_CUDNN_ATTENTION_GRAD_PARAMS_HPP
#define DNNOPS_CUDNN_ATTENTION_GRAD_PARAMS_HPP

// Arrays by AttentionGradArray; all fields have 8 bytes.
enum AttentionGradArray { GRAD_QUERY, GRAD_KEY, GRAD_VALUE, GRAD_GOUT, GRAD_DQUERY, GRAD_DKEY, GRAD_DVALUE, GRAD_ARRAYS };

struct AttentionGradParams {
  void *arrays[GRAD_ARRAYS];  // of 16-bit elements, their last axis dense
  const float *stats;         // (batch, query heads, queries)
  const void *mask;           // null: none
  const long long *query_lengths, *key_lengths;  // null: all count
  long long steps[GRAD_ARRAYS][3];               // in elements: of batch, heads and rows
  long long mask_steps[4];                       // in bytes
  long long mask_width;  // bytes of an element: 1 for bool, 2 for numbers to add
  long long vectors;     // a bit for each array whose rows can be moved 16 bytes at a time
  long long heads, group;  // heads of keys, and heads of queries for each of them
  long long queries, keys, depth, value_depth;
  long long is_causal;
  double scale;
};

// How far apart rows of 16-bit and of float32 numbers lie in shared memory: so that the threads of a warp that read at
// once are in different banks.
#define ATTENTION_GRAD_PITCH(depth) ((depth) % 32 == 16 ? (depth) : ((depth) + 31) / 32 * 32 + 16)
#define ATTENTION_GRAD_SCORE_PITCH(keys) (((keys) + 23) / 32 * 32 + 8)
#define ATTENTION_GRAD_SHARED_BYTES(keys, queries, depth, value_depth)                                        \
  (2 * ((keys) + (queries)) * (ATTENTION_GRAD_PITCH(depth) + ATTENTION_GRAD_PITCH(value_depth)) + \
   8 * (queries) * ATTENTION_GRAD_SCORE_PITCH(keys))

#endif
