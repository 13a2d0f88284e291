// Max pooling of images with any strides, in a dnnops kernel: where it applies, and its launch.
#ifndef DNNOPS_CUDNN_POOL_WINDOWS_HPP
#define DNNOPS_CUDNN_POOL_WINDOWS_HPP

#include <climits>
#include <string>

#include "../../common/pool_problem.hpp"

#include "pool_windows_params.hpp"

namespace dnnops {

// The same value as in pool_windows.cuh.
constexpr int64_t WINDOW_THREADS = 256;
// Windows of more pixels are shared by the threads of a warp; loops over fewer are unrolled.
constexpr int64_t MOST_OF_THREAD = 64, MOST_UNROLLED = 27;

struct PoolWindows {
  bool exist = false;
  PoolWindowsParams params = {};
  std::string options;  // of the compiler
  unsigned blocks;
};

// strides: of the image, in elements. The result is dense, and contiguous or channels-last.
inline PoolWindows pool_windows(const PoolProblem &problem, const int64_t *strides, bool channels_last, int64_t dtype) {
  PoolWindows windows;
  if (problem.mode != POOL_MAX) return windows;
  PoolWindowsParams &params = windows.params;
  const int64_t unit = 3 - problem.spatial_ndim;
  int64_t batch = problem.image[0], channels = problem.image[1], positions = 1, pixels = 1;
  // Without gaps between images, there is one coordinate less.
  if (!channels_last && (batch == 1 || strides[0] == channels * strides[1])) {
    channels *= batch;
    batch = 1;
  }
  for (int64_t axis = 0; axis < 3; ++axis) {
    const int64_t i = axis - unit;
    PoolWindowsAxis &to = params.axes[axis];
    to = {0, 1, 1, 1, 1, 0};
    if (i >= 0) {
      if (problem.image[2 + i] + problem.pad[i] + problem.window[i] + problem.stride[i] > INT_MAX) return windows;
      to = {strides[2 + i], (int)problem.image[2 + i], (int)problem.top[2 + i],
            (int)problem.window[i], (int)problem.stride[i], (int)problem.pad[i]};
    }
    positions *= to.top;
    pixels *= to.window;
  }
  const int64_t lanes = pixels > MOST_OF_THREAD ? 32 : 1, count = batch * channels * positions;
  if (count > INT64_MAX / 32 || (count * lanes + WINDOW_THREADS - 1) / WINDOW_THREADS > INT_MAX) return windows;
  for (int64_t axis = 0; axis < 3; ++axis)
    windows.options += "-DWINDOW_" + std::to_string(axis) + "=" +
                       std::to_string(pixels > MOST_UNROLLED ? 0 : params.axes[axis].window) + " ";
  params.count = count;
  params.channels = channels;
  params.image_step = strides[0];
  params.channel_step = strides[1];
  windows.options += "-DLANES=" + std::to_string(lanes) + " -DCHANNELS_LAST=" + std::to_string(channels_last) +
                     (count * lanes < INT_MAX ? " -DINDEX=unsigned" : " -DINDEX=size_t") +
                     " -DADDS=0 -DDTYPE=" + std::to_string(dtype);
  windows.blocks = (unsigned)((count * lanes + WINDOW_THREADS - 1) / WINDOW_THREADS);
  windows.exist = true;
  return windows;
}

// The gradient, if all arrays are dense and channels-last. `adds`: whether the result already holds an addend.
inline PoolWindows pool_windows_grad(const PoolProblem &problem, bool adds, int64_t dtype) {
  int64_t strides[5], step = problem.image[1];
  strides[1] = 1;
  for (int64_t i = problem.spatial_ndim - 1; i >= 0; --i) {
    strides[2 + i] = step;
    step *= problem.image[2 + i];
  }
  strides[0] = step;
  PoolWindows windows = pool_windows(problem, strides, true, dtype);
  const int64_t count = problem.image[0] * step;
  if (!windows.exist || count / WINDOW_THREADS >= INT_MAX) return {};
  windows.params.count = count;
  windows.blocks = (unsigned)((count + WINDOW_THREADS - 1) / WINDOW_THREADS);
  windows.options = "-DWINDOW_0=0 -DWINDOW_1=0 -DWINDOW_2=0 -DLANES=1 -DCHANNELS_LAST=1 -DADDS=" + std::to_string(adds) +
                    (count < INT_MAX ? " -DINDEX=unsigned" : " -DINDEX=size_t") + " -DDTYPE=" + std::to_string(dtype);
  return windows;
}

}  // namespace dnnops
#endif
