// The sizes of Winograd's F(4 x 4, 3 x 3), and of the blocks in which channels are computed.
#ifndef DNNOPS_ONEDNN_WINOGRAD_SIZES_HPP
#define DNNOPS_ONEDNN_WINOGRAD_SIZES_HPP

#include "../../base/rounding.hpp"

namespace dnnops::winograd {

constexpr int kTile = 4;                     // outputs of a tile, along one axis
constexpr int kTaps = 3;                     // filter taps
constexpr int kPatch = kTile + kTaps - 1;    // inputs of a tile
constexpr int kPositions = kPatch * kPatch;  // of a transformed tile
constexpr int kLanes = 16;                   // floats of a vector: a block of channels

constexpr int64_t blocks_of(int64_t channels) { return ceil_div(channels, kLanes); }

}  // namespace dnnops::winograd
#endif
