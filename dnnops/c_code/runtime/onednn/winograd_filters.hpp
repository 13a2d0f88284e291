// Transformed 3 x 3 filters, and the gradient by filters from its transformed sums.
#ifndef DNNOPS_ONEDNN_WINOGRAD_FILTERS_HPP
#define DNNOPS_ONEDNN_WINOGRAD_FILTERS_HPP

#include "winograd_sizes.hpp"

namespace dnnops::winograd {

// Contiguous filters, (out, in, 3, 3), seen by a correlation that sums over `summed` channels and
// gives `kept` ones: a forward one sums over `in`, the gradient by inputs over `out`.
struct Filters {
  float *data;
  int64_t summed, summed_stride, kept, kept_stride;  // strides in floats
  bool reversed;                                     // whether the taps are read from the last one
};

// Floats of one position of transformed filters, and from one position to the next.
int64_t transformed_filter_size(int64_t summed_blocks, int64_t kept_blocks);

// Transforms the filters of 16 kept and of some summed channels into the layout of
// multiply_filters(): the channels that fill up the last blocks are zeros.
void transform_filters(const Filters &filters, int64_t kept_block, int64_t first_channel, int64_t last_channel,
                       float *transformed);

// The gradient by the filters: the sum over `parts` transformed gradients, each
// [position][kept block][summed channel][16] and part_stride floats from the next.
void inverse_filters(const float *transformed, int64_t position_stride, int64_t parts, int64_t part_stride,
                     int64_t kept_block, int64_t first_channel, int64_t last_channel, const Filters &filters);

}  // namespace dnnops::winograd
#endif
