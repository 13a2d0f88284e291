// The launch parameters of the batch normalization kernels. dnnops/gpu/kernels.py prepends this file to the
// source of the kernels.
#ifndef DNNOPS_BATCHNORM_PARAMS_HPP
#define DNNOPS_BATCHNORM_PARAMS_HPP

// Arrays are viewed as (batch, channel, inner), and statistics are taken over batch and inner. Parameters
// have one element per channel, float64 for float64 arrays and float32 otherwise.
struct BatchNormParams {
  const void *x, *other;  // `other`: the gradient with respect to the output, or an array to add to it
  const void *result;     // for the gradient behind relu of a sum, the result of relu
  void *masked;           // and the gradient with respect to the sum
  void *out;              // or the gradient with respect to x
  const void *scale, *bias;   // for the gradient behind relu, `bias` holds the offsets of the training
  const void *mean, *spread;  // given statistics: the mean, and invstd or the variance
  void *results[2];           // mean and invstd, or the gradients with respect to scale and bias
  void *offsets;              // results of training with relu, or null
  const void *running[2];     // running averages of mean and variance, or null
  void *new_running[2];
  double epsilon, factor;
  void *workspace;
  long long batch, channels, inner;
  int groups;  // groups of channels that a block processes together
  int splits;  // blocks per group
  int share;   // units of a block: vectors of a channel, or rows; if swept, rows between the starts of two splits
  int lag;     // blocks that sum before the first one normalizes
  int slots;   // vectors of an array for which a share has room in shared memory
  // If by warps:
  int pieces;   // shares per image; 1 if a share has whole images
  int abreast;  // channels whose shares take turns
  int bundles;  // bundles of a channel's shares; 0 if the sums of each share are awaited
  int across;   // vectors per image
  // If held:
  int members;     // blocks that share a channel
  int jump_at;     // vectors within an image from a lane's vector to its next one
  long long jump;  // the corresponding number of array elements
  long long wrap;  // elements from the end of an image to the start of the next
  // If swept:
  int lanes;        // threads side by side along a row
  int stride;       // rows from one step of a thread to the next
  int kept;         // the last steps of a thread, whose vectors stay in shared memory
  int cached;       // the steps before those, whose vectors should stay in the level 2 cache
  long long reach;  // rows from the start of a split to its end
};

// The kinds of kernels.
enum BatchNormKind { BATCHNORM_TRAIN = 0, BATCHNORM_GRADIENT = 1, BATCHNORM_INFERENCE = 2 };

// What else a kernel computes, as bits: relu of the result, or the gradient behind it; the sum of the result and
// another array, before relu, or the gradient behind relu of a sum; for the gradient, whether relu has the slope 1 rather than 0 at zero and at NaN.
enum BatchNormFused {
  BATCHNORM_RELU = 1,
  BATCHNORM_ADDEND = 2,
  BATCHNORM_SLOPE_AT_ZERO = 4,
  BATCHNORM_SLOPE_AT_NAN = 8
};

// The ways to compute it, explained in c_code/gpu/norm/batchnorm.cuh.
enum BatchNormWay {
  BATCHNORM_BY_GIVEN = 0,
  BATCHNORM_ALONE = 1,
  BATCHNORM_KEPT = 2,
  BATCHNORM_STREAMED = 3,
  BATCHNORM_SWEPT = 4,
  BATCHNORM_BY_WARPS = 5,
  BATCHNORM_HELD = 6,
  BATCHNORM_SHORT = 7
};

// The workspace holds, in this order: the sums of each group (two or, for the gradient, three per channel and split,
// in float64); the values computed from them (two per channel, in float64); for each group, the number of splits that
// have been added up and whether it is complete; and a count of all blocks. If swept, it ends with a count of blocks
// and one of tiles. If by warps, it only holds sums: for each channel, the first sums of all its splits, then the
// second ones; then likewise for bundles. If held, it holds two values per channel for the running averages and then,
// likewise, the sums of all blocks of a channel if there are several. If short, it is empty.

// The number of channels whose sums a block adds up at a time, if all blocks have all channels.
constexpr int BATCHNORM_TILE = 8;

// The number of shares in a bundle.
constexpr int BATCHNORM_BUNDLE = 32;

#endif
