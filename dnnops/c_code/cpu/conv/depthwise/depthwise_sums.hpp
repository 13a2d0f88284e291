// How the gradient of a depthwise convolution with respect to its filters is summed: in vectors of float32 for some
// products, whose sums are added in float64.
#ifndef DNNOPS_ONEDNN_DEPTHWISE_SUMS_HPP
#define DNNOPS_ONEDNN_DEPTHWISE_SUMS_HPP

#include "depthwise_planes.hpp"

namespace dnnops::depthwise {

// Vectors of sums that stay in registers.
#ifdef __AVX512F__
constexpr int kRegisters = 25;
#else
constexpr int kRegisters = 10;
#endif
// The number of products that a lane adds in float32, except in bands of longer rows.
constexpr int64_t kMostProducts = 128;
constexpr int64_t kMostChannels = 16;

// Some images of a block of channels. The planes of the block are adjacent; hardware prefetching does not reach those
// of the next image.
struct SumTask {
  int64_t first_channel, last_channel, first_image, last_image;

  // Calls body(plane, channel in the block).
  template <class Body>
  void for_planes(int64_t channels, Body &&body) const {
    for (int64_t image = first_image; image < last_image; ++image)
      for (int64_t channel = first_channel; channel < last_channel; ++channel)
        body(image * channels + channel, channel - first_channel);
  }
};

struct SumTasks {
  int64_t blocks, parts;  // parts of the images, if there are few channels

  explicit SumTasks(const Planes &planes) {
    constexpr int64_t kFloats = 65536, kPerThread = 4;
    const int64_t channels = std::min(std::max<int64_t>(1, std::min(kMostChannels, kFloats / planes.image_size())),
                                      ceil_div(planes.channels, kPerThread * planes.threads));
    blocks = ceil_div(planes.channels, channels);
    parts = std::min(planes.batch, ceil_div(kPerThread * planes.threads, blocks));
  }
  int64_t count() const { return blocks * parts; }
  SumTask task(const Planes &planes, int64_t index) const {
    const int64_t block = index / parts, part = index % parts;
    return {block * planes.channels / blocks, (block + 1) * planes.channels / blocks, part * planes.batch / parts,
            (part + 1) * planes.batch / parts};
  }
};

// The sums of a task for filters of K * K taps.
template <int K, int N>
class Sums {
 public:
  explicit Sums(int64_t channels) : channels_(channels) {
    std::memset(vectors_, 0, channels * sizeof *vectors_);
    std::memset(lanes_, 0, channels * sizeof *lanes_);
  }
  // The vectors to which each lane's next products are added.
  inline Vec<N> *vectors(int64_t channel, int64_t products) {
    if (added_[channel] > 0 && added_[channel] + products > kMostProducts) empty(channel);
    added_[channel] += products;
    return vectors_[channel];
  }
  void finish(double *sums) {
    for (int64_t channel = 0; channel < channels_; ++channel) {
      empty(channel);
      for (int i = 0; i < K * K; ++i) {
        double *const lanes = lanes_[channel][i];
#pragma GCC unroll 4
        for (int half = N / 2; half > 0; half /= 2)
          for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[half + lane];
        sums[channel * (K * K) + i] = lanes[0];
      }
    }
  }

 private:
  void empty(int64_t channel) {
    for (int i = 0; i < K * K; ++i) {
      float lanes[N];
      store(lanes, vectors_[channel][i]);
      for (int lane = 0; lane < N; ++lane) lanes_[channel][i][lane] += lanes[lane];
      vectors_[channel][i] = Vec<N>{};
    }
    added_[channel] = 0;
  }

  int64_t channels_;
  int64_t added_[kMostChannels] = {};
  Vec<N> vectors_[kMostChannels][K * K];
  double lanes_[kMostChannels][K * K][N];
};

}  // namespace dnnops::depthwise
#endif
