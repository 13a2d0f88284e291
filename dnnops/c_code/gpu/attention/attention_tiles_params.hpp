// The parameters of the kernels of float32 attention. c_code/gpu/attention/attention_tiles.cuh is compiled with this
// file, too.
#ifndef DNNOPS_CUDNN_ATTENTION_TILES_PARAMS_HPP
#define DNNOPS_CUDNN_ATTENTION_TILES_PARAMS_HPP

enum { TILES_ROW_NUMBERS = 3 };  // of a query, in AttentionTilesParams.rows

// Arrays are indexed by AttentionTilesArray.
enum AttentionTilesArray {
  TILES_QUERY, TILES_KEY, TILES_VALUE, TILES_OUT, TILES_GOUT, TILES_DQUERY, TILES_DKEY, TILES_DVALUE, TILES_ARRAYS
};

// All fields have 8 bytes.
struct AttentionTilesParams {
  void *arrays[TILES_ARRAYS];  // float32, with a dense last axis
  float *stats;                // (batch, query heads, queries)
  // Scratch, which the kernel of dquery writes for that of dkey: three arrays like stats, one after the other. The first
  // two add up to the logarithm with base 2 of the sum of exponentials. The third are the sums of out * gout.
  float *rows;
  const void *mask;            // null if there is none
  const long long *query_lengths, *key_lengths;  // null if all positions are valid
  long long steps[TILES_ARRAYS][3];              // in elements, for batch, heads and rows
  long long mask_steps[4];                       // in elements
  long long heads, group;  // heads of the query, and how many of them share a key
  long long queries, keys, depth, value_depth;
  long long is_causal;
  double scale;
};

// The bytes of shared memory of a block. It keeps `stages` tiles of `columns` rows of two arrays, whose padded depths are
// `first` and `second`, with `extra` numbers for each row, and rows of its own with `own` numbers each, unless these are
// in registers.
#define ATTENTION_TILES_SHARED_BYTES(rows, columns, stages, first, second, own, extra) \
  (4 * ((stages) * (columns) * ((first) + (second) + (extra)) + (rows) * (own)))
// The most of any device up to compute capability 9.0.
#define ATTENTION_TILES_MOST_SHARED_BYTES (227 * 1024)

#endif
