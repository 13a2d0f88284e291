// What the kernels of the spatial transformer get: c_code/cudnn/sampler.cuh is compiled with this, too.
#ifndef DNNOPS_CUDNN_SAMPLER_PARAMS_HPP
#define DNNOPS_CUDNN_SAMPLER_PARAMS_HPP

// Images are (batch, channels, rows, columns), samples (batch, channels, top_rows, top_columns), points
// (batch, top_rows, top_columns, 2), transformations (batch, 2, 3).
struct SamplerParams {
  const void *image, *grid, *top;  // `top` is the gradient by the samples
  void *samples;
  void *by_image, *by_grid;
  void *sums;  // the gradient by the image while it is added up; for 16-bit types in float32
  const void *theta;
  void *by_theta;
  long long batch, channels, rows, columns, top_rows, top_columns;
  long long group;  // channels for each thread
};

#endif
