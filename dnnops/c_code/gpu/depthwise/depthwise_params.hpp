// The launch parameters of the depthwise kernels, and the sizes that both the kernels and their launcher
// compute. dnnops/gpu/kernels.py prepends this file to the source of the kernels.
#ifndef DNNOPS_DEPTHWISE_PARAMS_HPP
#define DNNOPS_DEPTHWISE_PARAMS_HPP

#ifdef __CUDACC__
#define DNNOPS_ANYWHERE __host__ __device__
#else
#define DNNOPS_ANYWHERE
#endif

// Unless noted otherwise, sizes are those of one channel's image.
//
// The data kernels compute the output, or the gradient with respect to the image, where each pixel is
// computed from pixels of a source: `in` is the source, `out` the result. Along an axis, a unit is `up`
// adjacent result pixels that read from about the same place. `up` is the stride if the gradient with respect
// to the image is computed, otherwise 1. A thread computes a tile of units. For the filter kernels, `in` is
// the image and `out` is the gradient with respect to the output, and a unit is one of its pixels.
struct DepthwiseParams {
  const void *in, *other;  // `other`: the filters, or the gradient with respect to the output
  void *result, *partial;  // `partial`: the sums of each split, in the accumulation type
  double alpha, beta;
  long long in_stride, out_stride;  // along the batch, in elements
  int batch, channels;
  int in_size[2], out_size[2];
  int shift[2];  // the source pixel that the first tap of the first unit reads
  int lead[2];   // pixels of the first unit before the start of the result
  int units[2], tiles[2];
  int group, groups;  // channels, planes or vectors of channels per block, and the number of such groups
  int chunk, chunks;  // rows of tiles per block, and the number of such chunks
  int images;         // per block at a time
  int splits;         // parts into which the sum over batch and pixels is split
  int in_bytes, out_bytes;  // in shared memory, for a block's planes of one image
};

// Whether a result pixel reads a tap of the filters. `phase` is the pixel's place in its unit.
DNNOPS_ANYWHERE constexpr bool depthwise_hits(bool up, int phase, int tap, int stride, int dilation) {
  return !up || (phase - tap * dilation) % stride == 0;
}

// Which source pixel it reads, relative to the same origin as depthwise_least().
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

// The number of source pixels that a unit spans.
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

// The maximum number of threads in a block.
constexpr int DEPTHWISE_THREADS = 512;

// The shared memory in which a block adds up its threads' sums, for a number of taps at a time.
constexpr int DEPTHWISE_SUM_BYTES = 40960;
DNNOPS_ANYWHERE constexpr int depthwise_round(int taps, int sum_bytes, int row) {
  const int fit = DEPTHWISE_SUM_BYTES / (sum_bytes * row);
  return fit < 1 ? 1 : fit < taps ? fit : taps;
}

#endif
