#include "winograd_filters.hpp"

#ifdef __AVX512F__

#include <algorithm>

#include "winograd_gemm.hpp"
#include "winograd_transforms.hpp"

namespace dnnops::winograd {
namespace {

constexpr int kFilterTaps = kTaps * kTaps;

}  // namespace

int64_t transformed_filter_size(int64_t summed_blocks, int64_t kept_blocks) {
  // One extra line prevents the positions of a filter from falling on the same cache set.
  return summed_blocks * kept_blocks * kLanes * kLanes + kLanes;
}

void transform_filters(const Filters &filters, int64_t kept_block, int64_t first_channel, int64_t last_channel,
                       float *transformed) {
  const int64_t kept_blocks = blocks_of(filters.kept), summed_blocks = blocks_of(filters.summed);
  const int64_t position_stride = transformed_filter_size(summed_blocks, kept_blocks);
  const float *block = filters.data + kept_block * kLanes * filters.kept_stride;
  for (int64_t channel = first_channel; channel < last_channel; ++channel) {
    const int64_t rows =
        channel < filters.summed ? std::min<int64_t>(filters.kept - kept_block * kLanes, kLanes) : 0;
    Vec tap[12];
    load_columns<3>(block + channel * filters.summed_stride, filters.kept_stride, rows, kFilterTaps, tap);
    float *to = transformed + filter_offset(summed_blocks * kLanes, kept_blocks, channel, kept_block);
    const int first = filters.reversed ? kFilterTaps - 1 : 0, step = filters.reversed ? -1 : 1;
    transform_2d<TransformFilter>(
        [&](int y, int x) { return tap[first + step * (y * kTaps + x)]; },
        [&](int y, int x, Vec value) { store(to + (y * kPatch + x) * position_stride, value); });
  }
}

void inverse_filters(const float *transformed, int64_t position_stride, int64_t parts, int64_t part_stride,
                     int64_t kept_block, int64_t first_channel, int64_t last_channel, const Filters &filters) {
  const int64_t channels = blocks_of(filters.summed) * kLanes;
  const int64_t rows = std::min<int64_t>(filters.kept - kept_block * kLanes, kLanes);
  for (int64_t channel = first_channel; channel < last_channel; ++channel) {
    const float *from = transformed + (kept_block * channels + channel) * kLanes;
    alignas(64) float taps[kLanes * kLanes];
    transform_2d<InverseFilterGradient>(
        [&](int y, int x) {
          const float *at = from + (y * kPatch + x) * position_stride;
          Vec sum = load(at);
          for (int64_t part = 1; part < parts; ++part) sum += load(at + part * part_stride);
          return sum;
        },
        [&](int y, int x, Vec value) {
          const int tap = y * kTaps + x;
          store(taps + (filters.reversed ? kFilterTaps - 1 - tap : tap) * kLanes, value);
        });
    for (int64_t tap = kFilterTaps; tap < kLanes; ++tap) store(taps + tap * kLanes, Vec{});
    Vec filter[kLanes];
    load_columns(taps, kLanes, filter);
    float *to = filters.data + channel * filters.summed_stride + kept_block * kLanes * filters.kept_stride;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
      if (i < rows) _mm512_mask_storeu_ps(to + i * filters.kept_stride, first_lanes(kFilterTaps), filter[i]);
  }
}

}  // namespace dnnops::winograd
#endif
