// The parameters of the attention gradient kernel. c_code/gpu/attention/attention_grad.cuh is compiled with this file, too.
#ifndef DNNOPS_CUDNN_ATTENTION_GRAD_PARAMS_HPP
#define DNNOPS_CUDNN_ATTENTION_GRAD_PARAMS_HPP

// Arrays are indexed by AttentionGradArray. All fields have 8 bytes.
enum AttentionGradArray { GRAD_QUERY, GRAD_KEY, GRAD_VALUE, GRAD_GOUT, GRAD_DQUERY, GRAD_DKEY, GRAD_DVALUE, GRAD_ARRAYS };

struct AttentionGradParams {
  void *arrays[GRAD_ARRAYS];  // of 16-bit elements, with a dense last axis
  const void *mask;           // null if there is none
  const long long *query_lengths, *key_lengths;  // null if all positions are valid
  long long steps[GRAD_ARRAYS][3];               // in elements, for batch, heads and rows
  long long mask_steps[4];                       // in bytes
  long long mask_width;  // bytes per element: 1 for bool, 2 for additive masks
  long long vectors;     // a bit for each array whose rows can be moved 16 bytes at a time
  long long heads, group;  // key heads, and query heads per key head
  long long queries, keys, depth, value_depth;
  long long is_causal;
  double scale;
};

// The pitch in shared memory of rows of 16-bit and of float32 numbers, such that threads of a warp that read
// at the same time use different banks.
#define ATTENTION_GRAD_PITCH(depth) ((depth) % 32 == 16 ? (depth) : ((depth) + 31) / 32 * 32 + 16)
#define ATTENTION_GRAD_SCORE_PITCH(keys) (((keys) + 23) / 32 * 32 + 8)
#define ATTENTION_GRAD_SHARED_BYTES(keys, queries, depth, value_depth)                                        \
  (2 * ((keys) + (queries)) * (ATTENTION_GRAD_PITCH(depth) + ATTENTION_GRAD_PITCH(value_depth)) + \
   8 * (queries) * ATTENTION_GRAD_SCORE_PITCH(keys))

#endif
