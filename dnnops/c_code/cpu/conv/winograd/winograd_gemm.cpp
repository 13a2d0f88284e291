#include "winograd_gemm.hpp"

#ifdef __AVX512F__

#include <utility>

#include "winograd_simd.hpp"

namespace dnnops::winograd {
namespace {

// 14 x 2 registers hold sums and two more hold the filters. There are 16 loads per 28 multiplications, which
// leaves the load ports half idle.
constexpr int kMaxTiles = 14;
// How many input channels ahead filters are prefetched; tiles are prefetched one block of channels ahead.
constexpr int kAhead = 16;

template <int Tiles, int Blocks>
void tiles_by_filters(int64_t tile_stride, int64_t in_blocks, const float *tiles, const float *filters,
                      float *result) {
  Vec sum[Tiles][Blocks] = {};
  for (int64_t block = 0; block < in_blocks; ++block, tiles += tile_stride * kLanes)
#pragma GCC unroll 2
    for (int channel = 0; channel < kLanes; ++channel, filters += Blocks * kLanes) {
      Vec right[Blocks];
      if (channel < Tiles) prefetch(tiles + (tile_stride + channel) * kLanes);
#pragma GCC unroll 2
      for (int j = 0; j < Blocks; ++j) {
        prefetch(filters + (kAhead * Blocks + j) * kLanes);
        right[j] = load(filters + j * kLanes);
      }
#pragma GCC unroll 14
      for (int i = 0; i < Tiles; ++i) {
        const Vec left = broadcast(tiles[i * kLanes + channel]);
#pragma GCC unroll 2
        for (int j = 0; j < Blocks; ++j) sum[i][j] = fma(left, right[j], sum[i][j]);
      }
    }
#pragma GCC unroll 14
  for (int i = 0; i < Tiles; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < Blocks; ++j) store(result + (j * tile_stride + i) * kLanes, sum[i][j]);
}

using TilesByFilters = void (*)(int64_t, int64_t, const float *, const float *, float *);

template <int... Counts>
TilesByFilters kernel_for(int64_t tiles, int64_t blocks, std::integer_sequence<int, Counts...>) {
  static const TilesByFilters kernels[2][sizeof...(Counts)] = {{tiles_by_filters<Counts + 1, 1>...},
                                                               {tiles_by_filters<Counts + 1, 2>...}};
  return kernels[blocks - 1][tiles - 1];
}

// The size of the next part when `rest` is cut into nearly equal parts.
int64_t next_part(int64_t rest, int64_t largest) {
  const int64_t parts = ceil_div(rest, largest);
  return ceil_div(rest, parts);
}

constexpr int kSumChannels = 8;  // divides 16, so that their distance is constant

template <int Blocks>
void tiles_by_tiles(int64_t tile_count, int64_t tile_stride, const float *first, const float *second,
                    float *result, int64_t result_stride, bool accumulate) {
  Vec sum[kSumChannels][Blocks] = {};
  for (int64_t tile = 0; tile < tile_count; ++tile, first += kLanes, second += kLanes) {
    Vec right[Blocks];
#pragma GCC unroll 3
    for (int j = 0; j < Blocks; ++j) right[j] = load(second + j * tile_stride * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kSumChannels; ++i) {
      const Vec left = broadcast(first[i]);
#pragma GCC unroll 3
      for (int j = 0; j < Blocks; ++j) sum[i][j] = fma(left, right[j], sum[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kSumChannels; ++i)
#pragma GCC unroll 3
    for (int j = 0; j < Blocks; ++j) {
      float *at = result + j * result_stride + i * kLanes;
      store(at, accumulate ? load(at) + sum[i][j] : sum[i][j]);
    }
}

}  // namespace

void multiply_filters(int64_t tile_count, int64_t tile_stride, int64_t in_blocks, int64_t out_blocks,
                      const float *tiles, const float *filters, float *result) {
  for (int64_t block = 0; block < out_blocks; block += kPanel) {
    const int64_t blocks = out_blocks - block < kPanel ? 1 : kPanel;
    const float *panel = filters + filter_offset(in_blocks * kLanes, out_blocks, 0, block);
    for (int64_t tile = 0; tile < tile_count;) {
      const int64_t count = next_part(tile_count - tile, kMaxTiles);
      kernel_for(count, blocks, std::make_integer_sequence<int, kMaxTiles>())(
          tile_stride, in_blocks, tiles + tile * kLanes, panel, result + (block * tile_stride + tile) * kLanes);
      tile += count;
    }
  }
}

void multiply_tiles(int64_t tile_count, int64_t tile_stride, int64_t first_blocks, int64_t second_blocks,
                    const float *first, const float *second, float *result, bool accumulate) {
  const int64_t channels = first_blocks * kLanes;
  for (int64_t block = 0; block < second_blocks;) {
    const int64_t count = next_part(second_blocks - block, 3);
    const auto kernel = count == 3 ? tiles_by_tiles<3> : count == 2 ? tiles_by_tiles<2> : tiles_by_tiles<1>;
    for (int64_t channel = 0; channel < channels; channel += kSumChannels)
      kernel(tile_count, tile_stride, first + channel / kLanes * tile_stride * kLanes + channel % kLanes,
             second + block * tile_stride * kLanes, result + (block * channels + channel) * kLanes,
             channels * kLanes, accumulate);
    block += count;
  }
}

}  // namespace dnnops::winograd
#endif
