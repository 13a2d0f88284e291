// The parameters of the spatial transformer kernels. c_code/gpu/resample/sampler.cuh is compiled with this file, too.
#ifndef DNNOPS_CUDNN_SAMPLER_PARAMS_HPP
#define DNNOPS_CUDNN_SAMPLER_PARAMS_HPP

// Images are (batch, channels, rows, columns), samples (batch, channels, top_rows, top_columns), points
// (batch, top_rows, top_columns, 2), transformations (batch, 2, 3).
struct SamplerParams {
  const void *image, *grid, *top;  // `top` is the gradient with respect to the samples
  void *samples;
  void *by_image, *by_grid;
  void *sums;  // the gradient with respect to the image during summation; float32 for 16-bit types
  const void *theta;
  void *by_theta;
  long long batch, channels, rows, columns, top_rows, top_columns;
  long long group;  // channels per thread
};

#endif
