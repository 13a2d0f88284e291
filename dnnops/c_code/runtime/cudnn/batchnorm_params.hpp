// What the kernels of batch normalization get with a launch.  dnnops/cudnn/kernels.py puts this file in front of the
// kernels' source.
#ifndef DNNOPS_BATCHNORM_PARAMS_HPP
#define DNNOPS_BATCHNORM_PARAMS_HPP

// Arrays are seen as (batch, channel, inner); a statistic is over batch and inner.  Parameters have an element for each
// channel, of float64 for arrays of float64, else of float32.
struct BatchNormParams {
  const void *x, *gradient;  // `gradient`: by the output
  void *out;                 // or the gradient by x
  const void *scale, *bias;
  const void *mean, *spread;  // given: the mean, and invstd or the variance
  void *results[2];           // mean and invstd, or the gradients by scale and bias
  const void *running[2];     // averages of mean and variance, or null
  void *new_running[2];
  double epsilon, factor;
  void *workspace;
  long long batch, channels, inner;
  int groups;  // of channels that a block works on at a time
  int splits;  // blocks for each group
  int share;   // units of a block: vectors of a channel, or rows; if swept, rows between the first ones of two splits
  int lag;     // blocks that add up before the first one normalizes
  int slots;   // vectors of an array that a share has room for in shared memory
  // If by warps:
  int pieces;   // shares of an image, or 1 if a share has whole images
  int abreast;  // channels that take turns with their shares
  int bundles;  // of a channel's shares, or 0 if sums of each are looked for
  // If held:
  int members;     // blocks that share a channel
  int across;      // vectors of an image
  int jump_at;     // of them, from a lane's vector to its next one
  long long jump;  // likewise, elements of the array
  long long wrap;  // elements from an image's end to the next one's begin
  // If swept:
  int lanes;        // threads side by side along a row
  int stride;       // rows from one step of a thread to the next
  int kept;         // steps of a thread, the last ones, whose vectors stay in shared memory
  int cached;       // steps ahead of those, whose vectors are to stay in the level 2 cache
  long long reach;  // rows from the first one of a split to its end
};

// The kinds of kernels.
enum BatchNormKind { BATCHNORM_TRAIN = 0, BATCHNORM_GRADIENT = 1, BATCHNORM_INFERENCE = 2 };

// The ways that c_code/cudnn/batchnorm.cuh explains.
enum BatchNormWay {
  BATCHNORM_BY_GIVEN = 0,
  BATCHNORM_ALONE = 1,
  BATCHNORM_KEPT = 2,
  BATCHNORM_STREAMED = 3,
  BATCHNORM_SWEPT = 4,
  BATCHNORM_BY_WARPS = 5,
  BATCHNORM_HELD = 6
};

// What the workspace has, in this order: the sums of each group, two or, for the gradient, three for each channel and
// split, in float64; what comes of them, two for each channel, in float64; of each group how many splits have been
// added up, and whether all; at last a count of all blocks.  If swept, at last a count of blocks, and one of tiles.  If
// by warps, the sums only, of each channel the first ones of all its splits, then the second ones; and likewise of
// bundles.  If held, two of each channel for running averages, and then likewise the sums of all its blocks,
// if these are several.

// Channels that a block adds up the sums of at a time, if all blocks have all channels.
constexpr int BATCHNORM_TILE = 8;

// Shares of a bundle.
constexpr int BATCHNORM_BUNDLE = 32;

#endif
