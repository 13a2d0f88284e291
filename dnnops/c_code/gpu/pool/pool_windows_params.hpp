// The parameters of the kernel in pool_windows.cuh, which is compiled with this file, too.
#ifndef DNNOPS_CUDNN_POOL_WINDOWS_PARAMS_HPP
#define DNNOPS_CUDNN_POOL_WINDOWS_PARAMS_HPP

struct PoolWindowsAxis {
  long long step;  // from a pixel to the next, in elements
  int image, top, window, stride, pad;
};

struct PoolWindowsParams {
  const void *x;
  const void *pooled, *gz;  // for the gradient
  void *result;
  unsigned long long count, channels;  // of results; of each image
  long long image_step, channel_step;  // in x
  PoolWindowsAxis axes[3];             // an image with fewer spatial axes has unit axes before them
};

#endif
