// Convolution with 3 x 3 float32 filters by Winograd's F(4 x 4, 3 x 3), forward and both gradients.
//
// A tile of 4 x 4 outputs takes 36 multiplications per pair of channels instead of 144. S. Winograd,
// Arithmetic Complexity of Computations (1980); A. Lavin and S. Gray, Fast Algorithms for Convolutional
// Neural Networks (CVPR 2016).
//
// A pixel that is not finite affects all outputs of the tiles that read it, including some that a direct
// convolution would not affect. The same number of threads gives the same bits.
#include <algorithm>

#ifdef _OPENMP
#include <omp.h>
#endif
#include <sys/mman.h>

#include "../conv_ways.hpp"
#include "../own_scratch.hpp"
#include "winograd_filters.hpp"
#include "winograd_gemm.hpp"
#include "winograd_tiles.hpp"

namespace dnnops {
namespace {

#ifdef __AVX512F__
using namespace winograd;

// The number of tiles in a chunk. With few channels, the transformed tiles of a chunk stay in the L2 cache.
// With many, a chunk is large enough to amortize reading the transformed filters. With many threads, chunks
// are smaller to limit the total memory.
int64_t wanted_tiles(const ConvProblem &problem, int64_t threads) {
  constexpr int64_t kMaxFloats = (int64_t)1 << 26;
  const int64_t channels = problem.image[1] + problem.top[1];
  return std::min<int64_t>(channels <= 192 ? 56 : 112,
                           std::max<int64_t>(28, kMaxFloats / (threads * kPositions * channels)));
}

int thread_number() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

// How the tiles of a batch of images are cut into chunks of whole rows of tiles or, for wide images, of
// segments of a row.
struct Cut {
  int64_t rows, columns, segments, units, chunks;

  Cut(int64_t batch, int64_t height, int64_t width, int64_t wanted_tiles, int64_t threads) {
    rows = ceil_div(height, kTile);
    columns = ceil_div(width, kTile);
    segments = ceil_div(columns, wanted_tiles);
    units = batch * rows * segments;
    chunks = ceil_div(units, std::max<int64_t>(1, wanted_tiles / columns));
    // Gives every thread the same number of chunks.
    chunks = std::min(ceil_div(chunks, threads) * threads, units);
  }

  int64_t first_unit(int64_t chunk) const { return chunk * units / chunks; }
  int64_t max_rows() const { return std::min(ceil_div(units, chunks), rows); }
  int64_t max_columns() const { return ceil_div(columns, segments); }
  int64_t max_tiles() const { return ceil_div(units, chunks) * max_columns(); }

  // Calls visit(strip, number of tiles before it) for the strips of a chunk. Returns the number of tiles.
  template <class Visit>
  int64_t for_strips(int64_t chunk, Visit &&visit) const {
    int64_t tiles = 0;
    for (int64_t unit = first_unit(chunk), last = first_unit(chunk + 1); unit < last;) {
      const int64_t segment = unit % segments, row = unit / segments % rows;
      Strip strip{unit / (segments * rows), row, 1, segment * columns / segments, 0};
      if (segments == 1) strip.rows = std::min(last - unit, rows - row);
      strip.columns = (segment + 1) * columns / segments - strip.column;
      visit(strip, tiles);
      tiles += strip.tiles();
      unit += strip.rows;
    }
    return tiles;
  }
};

// The block of scratch memory of a call.
float *allocate(const Layout &layout) {
  float *data = layout.allocate();
#ifdef MADV_HUGEPAGE
  // Positions are far apart, so with small pages each would need its own TLB entry. Huge pages make 512 to
  // 512 channels 8 % faster.
  constexpr int64_t kPage = 4096;
  const int64_t first = round_up(reinterpret_cast<int64_t>(data), kPage);
  if (layout.bytes() > 2 * kPage) madvise(reinterpret_cast<void *>(first), layout.bytes() - kPage, MADV_HUGEPAGE);
#endif
  return data;
}

Images images_of(const int64_t *shape, float *data = nullptr) { return {data, shape[1], shape[2], shape[3]}; }

// The transformed tiles of a chunk, in the memory of a thread.
Tiles chunk_tiles(const Cut &cut, int64_t blocks, float *data = nullptr) {
  const int64_t tiles = cut.max_tiles();
  // One extra line prevents all positions of a tile from falling on the same cache set.
  return {data, tiles * blocks * kLanes + kLanes, tiles};
}

// Whether to compute, or only to get the size of the scratch memory.
enum class Purpose { COMPUTE, SIZE };

// Computes the forward convolution, or the gradient with respect to the inputs as a forward convolution of
// the output's gradient with reversed filters. Returns the size of the scratch memory in bytes.
int64_t correlate(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output,
                  Purpose purpose) {
  const bool forward = problem.direction == CONV_FORWARD;
  const int64_t threads = thread_count(), taps = kTaps * kTaps;
  Images in = images_of(forward ? problem.image : problem.top), out = images_of(forward ? problem.top : problem.image);
  const int64_t by_out = problem.filters[1] * taps;
  Filters filters{nullptr, in.channels, forward ? taps : by_out, out.channels, forward ? by_out : taps,
                  (problem.geometry.filter_flip != 0) == forward};
  int64_t pad[2];
  for (int i = 0; i < 2; ++i) pad[i] = forward ? problem.geometry.pad_begin[i] : 2 - problem.geometry.pad_begin[i];

  const Cut cut(problem.image[0], out.height, out.width, wanted_tiles(problem, threads), threads);
  const int64_t filter_stride = transformed_filter_size(in.blocks(), out.blocks());
  Tiles in_tiles = chunk_tiles(cut, in.blocks()), out_tiles = chunk_tiles(cut, out.blocks());
  Layout layout, own;
  Operands operands(inputs, output, layout);
  const int64_t filters_at = layout.add(kPositions * filter_stride);
  const int64_t in_at = own.add(kPositions * in_tiles.position_stride);
  const int64_t out_at = own.add(kPositions * out_tiles.position_stride);
  const int64_t pixels_at = own.add(strip_pixels(cut.max_rows(), cut.max_columns()));
  const int64_t own_at = layout.add(threads * own.size());
  if (purpose == Purpose::SIZE) return layout.bytes();
  float *scratch = allocate(layout);
  operands.read(scratch);
  in.data = operands.data[forward ? 0 : 1];
  filters.data = operands.data[forward ? 1 : 0];
  out.data = operands.data[2];

#pragma omp parallel num_threads(threads) firstprivate(in_tiles, out_tiles)
  {
#pragma omp for collapse(2) schedule(static)
    for (int64_t block = 0; block < out.blocks(); ++block)
      for (int64_t channel = 0; channel < in.blocks() * kLanes; channel += kLanes)
        transform_filters(filters, block, channel, channel + kLanes, scratch + filters_at);
    float *mine = scratch + own_at + thread_number() * own.size();
    in_tiles.data = mine + in_at;
    out_tiles.data = mine + out_at;
    // Each chunk's result does not depend on which thread computes it.
#pragma omp for schedule(dynamic)
    for (int64_t chunk = 0; chunk < cut.chunks; ++chunk) {
      const int64_t tiles = cut.for_strips(chunk, [&](const Strip &strip, int64_t first) {
        transform_inputs(in, pad[0], pad[1], strip, mine + pixels_at, in_tiles, first);
      });
      for (int64_t i = 0; i < kPositions; ++i)
        multiply_filters(tiles, in_tiles.tile_stride, in.blocks(), out.blocks(),
                         in_tiles.data + i * in_tiles.position_stride, scratch + filters_at + i * filter_stride,
                         out_tiles.data + i * out_tiles.position_stride);
      cut.for_strips(chunk, [&](const Strip &strip, int64_t first) {
        inverse_outputs(out_tiles, first, strip, mine + pixels_at, out);
      });
    }
  }
  operands.write();
  return layout.bytes();
}

int64_t grad_weights(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output,
                     Purpose purpose) {
  const int64_t threads = thread_count(), taps = kTaps * kTaps;
  Images image = images_of(problem.image), top = images_of(problem.top);
  Filters filters{nullptr, image.channels, taps, top.channels, problem.filters[1] * taps,
                  problem.geometry.filter_flip != 0};
  const Cut cut(problem.image[0], top.height, top.width, wanted_tiles(problem, threads), threads);
  // Each part sums every parts-th chunk, so the result depends only on the number of threads.
  const int64_t parts = std::min(threads, cut.chunks);
  const int64_t position_stride = transformed_filter_size(image.blocks(), top.blocks());
  Tiles image_tiles = chunk_tiles(cut, image.blocks()), top_tiles = chunk_tiles(cut, top.blocks());
  Layout layout, own;
  Operands operands(inputs, output, layout);
  const int64_t image_at = own.add(kPositions * image_tiles.position_stride);
  const int64_t top_at = own.add(kPositions * top_tiles.position_stride);
  const int64_t pixels_at = own.add(strip_pixels(cut.max_rows(), cut.max_columns()));
  const int64_t sums_at = own.add(kPositions * position_stride);
  const int64_t own_at = layout.add(parts * own.size());
  if (purpose == Purpose::SIZE) return layout.bytes();
  float *scratch = allocate(layout);
  operands.read(scratch);
  image.data = operands.data[0];
  top.data = operands.data[1];
  filters.data = operands.data[2];

#pragma omp parallel num_threads(threads) firstprivate(image_tiles, top_tiles)
  {
#pragma omp for schedule(static, 1)
    for (int64_t part = 0; part < parts; ++part) {
      float *mine = scratch + own_at + part * own.size();
      image_tiles.data = mine + image_at;
      top_tiles.data = mine + top_at;
      for (int64_t chunk = part; chunk < cut.chunks; chunk += parts) {
        const int64_t tiles = cut.for_strips(chunk, [&](const Strip &strip, int64_t first) {
          transform_inputs(image, problem.geometry.pad_begin[0], problem.geometry.pad_begin[1], strip,
                           mine + pixels_at, image_tiles, first);
          transform_output_gradients(top, strip, mine + pixels_at, top_tiles, first);
        });
        for (int64_t i = 0; i < kPositions; ++i)
          multiply_tiles(tiles, image_tiles.tile_stride, image.blocks(), top.blocks(),
                         image_tiles.data + i * image_tiles.position_stride,
                         top_tiles.data + i * top_tiles.position_stride, mine + sums_at + i * position_stride,
                         chunk != part);
      }
    }
#pragma omp for collapse(2) schedule(static)
    for (int64_t block = 0; block < top.blocks(); ++block)
      for (int64_t channel = 0; channel < image.channels; channel += kLanes)
        inverse_filters(scratch + own_at + sums_at, position_stride, parts, own.size(), block, channel,
                        std::min(channel + kLanes, image.channels), filters);
  }
  operands.write();
  return layout.bytes();
}

const char *winograd_obstacle(const ConvProblem &problem) {
  const ConvGeometry &geometry = problem.geometry;
  if (geometry.spatial_ndim != 2) return "it requires two spatial axes";
  if (geometry.groups != 1) return "it requires one group of channels";
  for (int i = 0; i < 2; ++i) {
    if (problem.filters[2 + i] != kTaps) return "it requires 3 x 3 filters";
    if (geometry.stride[i] != 1 || geometry.dilation[i] != 1) return "it requires stride and dilation 1";
    if (geometry.pad_begin[i] < 0 || geometry.pad_begin[i] > 2 || geometry.pad_end[i] < 0 || geometry.pad_end[i] > 2)
      return "it requires padding of at most 2";
  }
  return nullptr;
}

const char *winograd_drawback(const ConvProblem &problem) {
  // Where it is faster than oneDNN 3.2, whose direct algorithm runs at peak speed, measured on two AVX-512
  // cores of 190 GFLOP/s with 2 MiB of L2 cache. 16 to 16 channels on 14 x 14 or larger images: 1.2 to 1.6
  // times faster; 8 to 8 channels: up to 1.7 times slower.
  const int64_t channels = std::min(problem.filters[0], problem.filters[1]);
  if (channels < 16) return "not used for fewer than 16 channels";
  // The parts of tiles outside of the image are wasted work. From 64 channels on, half of it may be: 6 x 6
  // images are 1.4 to 1.6 times faster, 5 x 5 ones 0.9 to 1.2 times. 32 to 32 channels are not faster on 3 x
  // 3 images, but 1.4 to 1.8 times faster on 7 x 7 ones.
  const int64_t *out = problem.direction == CONV_GRAD_INPUTS ? problem.image : problem.top;
  const int64_t tiles = ceil_div(out[2], kTile) * ceil_div(out[3], kTile);
  const double used = (double)(out[2] * out[3]) / (double)(tiles * kTile * kTile);
  if (used < (channels < 64 ? 0.6 : 0.5)) return "not used if 4 x 4 tiles extend far beyond the edge";
  // Few tiles do not amortize the transform of the filters: 16 tiles per thread are 0.9 to 1.6 times as fast,
  // 24 at least 1.15 times, 64 or more at least 1.5 times.
  const int64_t threads = thread_count();
  if (problem.image[0] * tiles < 24 * threads) return "not used for fewer than 24 tiles of 4 x 4 per thread";
  // Each thread has its own sums for the gradient with respect to the weights.
  constexpr int64_t kMaxSums = (int64_t)1 << 29;
  if (problem.direction == CONV_GRAD_WEIGHTS &&
      threads * kPositions * problem.filters[0] * problem.filters[1] * (int64_t)sizeof(float) > kMaxSums)
    return "not used if its sums take more than 512 MiB";
  return nullptr;
}

int64_t convolve(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output,
                 Purpose purpose) {
  const bool by_weights = problem.direction == CONV_GRAD_WEIGHTS;
  return (by_weights ? grad_weights : correlate)(problem, inputs, output, purpose);
}

void conv_winograd(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output) {
  convolve(problem, inputs, output, Purpose::COMPUTE);
}

int64_t winograd_scratch_bytes(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output) {
  return convolve(problem, inputs, output, Purpose::SIZE);
}
#else
const char *winograd_obstacle(const ConvProblem &) { return "the library was compiled for a processor without AVX-512"; }

const char *winograd_drawback(const ConvProblem &) { return nullptr; }

void conv_winograd(const ConvProblem &problem, const dnnops_tensor *, const dnnops_tensor &) {
  fail(DNNOPS_NOT_SUPPORTED, "Winograd's algorithm: %s", winograd_obstacle(problem));
}

int64_t winograd_scratch_bytes(const ConvProblem &, const dnnops_tensor *, const dnnops_tensor &) { return 0; }
#endif

}  // namespace

const OwnWay winograd_way = {
    ConvWay::WINOGRAD, "winograd", winograd_obstacle, winograd_drawback, conv_winograd, winograd_scratch_bytes,
};

}  // namespace dnnops

// Whether dnnops_onednn_conv() uses Winograd for these arguments: 1 or 0, or -1 if the arguments are invalid.
DNNOPS_EXPORT int dnnops_onednn_conv_uses_winograd(const int64_t *params, const dnnops_tensor *inputs) {
  int uses = 0;
  const int status = dnnops::guarded("OneDnnConv", inputs, 2, [&] {
    const dnnops::ConvParams &wanted = dnnops::params_of<dnnops::ConvParams>(params);
    const dnnops::ConvProblem problem = dnnops::problem_of(wanted, inputs);
    uses = inputs[0].dtype == DNNOPS_FLOAT32 && wanted.algorithm == dnnops::ALGORITHM_AUTO &&
           dnnops::winograd_way.suits(problem);
  });
  return status == DNNOPS_OK ? uses : -1;
}
