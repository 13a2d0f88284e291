// Conversion between NCHW images and transformed tiles, [36 positions][channel block][tile][16 channels].
#ifndef DNNOPS_ONEDNN_WINOGRAD_TILES_HPP
#define DNNOPS_ONEDNN_WINOGRAD_TILES_HPP

#include "winograd_sizes.hpp"

namespace dnnops::winograd {

// Contiguous images of the same size.
struct Images {
  float *data;
  int64_t channels, height, width;
  int64_t blocks() const { return blocks_of(channels); }
};

// A rectangle of tiles of one image.
struct Strip {
  int64_t image, row, rows, column, columns;
  int64_t tiles() const { return rows * columns; }
};

// Transformed tiles. Positions are `position_stride` floats apart.
struct Tiles {
  float *data;
  int64_t position_stride, tile_stride;
  float *at(int64_t block, int64_t tile) const { return data + (block * tile_stride + tile) * kLanes; }
};

// The number of floats in the scratch memory `pixels` that the functions below need for a strip.
int64_t strip_pixels(int64_t rows, int64_t columns);

// Transforms the 6 x 6 inputs of each tile of a strip; the padding is zeros.
void transform_inputs(const Images &images, int64_t pad_top, int64_t pad_left, const Strip &strip,
                      float *pixels, const Tiles &tiles, int64_t first_tile);

// Transforms the gradients with respect to the 4 x 4 outputs of each tile of a strip.
void transform_output_gradients(const Images &images, const Strip &strip, float *pixels, const Tiles &tiles,
                                int64_t first_tile);

// Computes the outputs of a strip.
void inverse_outputs(const Tiles &tiles, int64_t first_tile, const Strip &strip, float *pixels,
                     const Images &images);

}  // namespace dnnops::winograd
#endif
