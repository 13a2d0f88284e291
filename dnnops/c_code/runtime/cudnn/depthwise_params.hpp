// What the depthwise kernels get with a launch, and the sizes that they and their launcher both work
// out.  dnnops/cudnn/kernels.py puts this file in front of the kernels' source.
#ifndef DNNOPS_DEPTHWISE_PARAMS_HPP
#define DNNOPS_DEPTHWISE_PARAMS_HPP

#ifdef __CUDACC__
#define DNNOPS_ANYWHERE __host__ __device__
#else
#define DNNOPS_ANYWHERE
#endif

// Sizes are of one channel's image unless they say otherwise.
//
// The data kernels compute the output, or the gradient by the image, one pixel from the pixels of a
// source; `in` is the source, `out` the result.  Along an axis, `up` neighboring result pixels that
// read from about the same place are a unit: the stride of a convolution whose gradient by the image
// is computed, else 1.  A thread computes a tile of units.  For the filter kernels `in` is the image
// and `out` the gradient by the output; a unit is one pixel of that.
struct DepthwiseParams {
  const void *in, *other;  // `other`: the filters, or the gradient by the output
  void *result, *partial;  // `partial`: sums of each split, of the type of accumulation
  double alpha, beta;
  long long in_stride, out_stride;  // of the batch, in elements
  int batch, channels;
  int in_size[2], out_size[2];
  int shift[2];  // the source's pixel that the first unit's first tap reads
  int lead[2];   // pixels of the first unit that lie before the result
  int units[2], tiles[2];
  int group, groups;  // channels, planes or vectors of channels of a block, and how many such groups
  int chunk, chunks;  // tiles along the rows of a block, and how many such chunks
  int images;         // of a block at a time
  int splits;         // parts of the sum over batch and pixels
  int in_bytes, out_bytes;  // in shared memory, of a block's planes of one image
};

// Which taps of the filters a result pixel reads, and where: `phase` is the pixel's place in its unit.
DNNOPS_ANYWHERE constexpr bool depthwise_hits(bool up, int phase, int tap, int stride, int dilation) {
  return !up || (phase - tap * dilation) % stride == 0;
}

// Relative to the unit's first source pixel for all taps and phases, which depthwise_least() gives.
DNNOPS_ANYWHERE constexpr int depthwise_place(bool up, int phase, int tap, int stride, int dilation) {
  return up ? (phase - tap * dilation) / stride : tap * dilation;
}

DNNOPS_ANYWHERE constexpr int depthwise_least(bool up, int size, int stride, int dilation) {
  int least = 1 << 30;
  for (int phase = 0; phase < (up ? stride : 1); ++phase)
    for (int tap = 0; tap < size; ++tap)
      if (depthwise_hits(up, phase, tap, stride, dilation)) {
        const int place = depthwise_place(up, phase, tap, stride, dilation);
        least = place < least ? place : least;
      }
  return least;
}

// How many source pixels a unit reaches over.
DNNOPS_ANYWHERE constexpr int depthwise_span(bool up, int size, int stride, int dilation) {
  int most = -(1 << 30);
  for (int phase = 0; phase < (up ? stride : 1); ++phase)
    for (int tap = 0; tap < size; ++tap)
      if (depthwise_hits(up, phase, tap, stride, dilation)) {
        const int place = depthwise_place(up, phase, tap, stride, dilation);
        most = place > most ? place : most;
      }
  return most - depthwise_least(up, size, stride, dilation) + 1;
}

// The most threads of a block.
constexpr int DEPTHWISE_THREADS = 512;

// Shared memory in which a block adds up its threads' sums, for so many taps at a time.
constexpr int DEPTHWISE_SUM_BYTES = 40960;
DNNOPS_ANYWHERE constexpr int depthwise_round(int taps, int sum_bytes, int row) {
  const int fit = DEPTHWISE_SUM_BYTES / (sum_bytes * row);
  return fit < 1 ? 1 : fit < taps ? fit : taps;
}

#endif
