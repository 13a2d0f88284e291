// The matrix products of Winograd's convolution, one for each of a tile's 36 positions.
//
// Transformed tiles are stored as [channel block][tile][16 channels], so that a block of tiles is read at
// constant distances and written as vectors.
#ifndef DNNOPS_ONEDNN_WINOGRAD_GEMM_HPP
#define DNNOPS_ONEDNN_WINOGRAD_GEMM_HPP

#include "winograd_sizes.hpp"

namespace dnnops::winograd {

// The number of blocks of 16 output channels that the transformed filters hold side by side.
constexpr int64_t kPanel = 2;

// The offset of the 16 floats of an input channel and a block of output channels among the filters of one
// position: [panel][input channel][2 blocks][16], where an odd last block stands alone.
inline int64_t filter_offset(int64_t in_channels, int64_t out_blocks, int64_t channel, int64_t block) {
  const int64_t panel = block / kPanel, width = out_blocks - panel * kPanel < kPanel ? 1 : kPanel;
  return (panel * kPanel * in_channels + channel * width + block % kPanel) * kLanes;
}

// result[out block][tile] = sum over in channels of tiles[channel / 16][tile][channel % 16] * filters.
// Blocks of tiles are `tile_stride` tiles apart.
void multiply_filters(int64_t tile_count, int64_t tile_stride, int64_t in_blocks, int64_t out_blocks,
                      const float *tiles, const float *filters, float *result);

// result[second block][first channel][16] (+)= sum over tiles of first[channel] * second[16 channels].
void multiply_tiles(int64_t tile_count, int64_t tile_stride, int64_t first_blocks, int64_t second_blocks,
                    const float *first, const float *second, float *result, bool accumulate);

}  // namespace dnnops::winograd
#endif
