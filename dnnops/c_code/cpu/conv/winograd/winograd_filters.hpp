// Transformed 3 x 3 filters, and the gradient with respect to the filters from its transformed sums.
#ifndef DNNOPS_ONEDNN_WINOGRAD_FILTERS_HPP
#define DNNOPS_ONEDNN_WINOGRAD_FILTERS_HPP

#include "winograd_sizes.hpp"

namespace dnnops::winograd {

// Contiguous filters, (out, in, 3, 3), for a correlation that sums over `summed` channels and produces `kept`
// ones: the forward direction sums over `in`, the gradient with respect to the inputs over `out`.
struct Filters {
  float *data;
  int64_t summed, summed_stride, kept, kept_stride;  // strides in floats
  bool reversed;                                     // whether the taps are read in reverse order
};

// The number of floats in one position of transformed filters, which is also the distance between positions.
int64_t transformed_filter_size(int64_t summed_blocks, int64_t kept_blocks);

// Transforms the filters of 16 kept and of some summed channels into the layout of multiply_filters(). The
// last blocks are padded with zeros.
void transform_filters(const Filters &filters, int64_t kept_block, int64_t first_channel, int64_t last_channel,
                       float *transformed);

// The gradient with respect to the filters: the sum over `parts` transformed gradients, each [position][kept
// block][summed channel][16] and part_stride floats apart.
void inverse_filters(const float *transformed, int64_t position_stride, int64_t parts, int64_t part_stride,
                     int64_t kept_block, int64_t first_channel, int64_t last_channel, const Filters &filters);

}  // namespace dnnops::winograd
#endif
