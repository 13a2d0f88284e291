// A convolution as both libraries see it: checked sizes, resolved padding and the shapes of all three arrays.
#ifndef DNNOPS_CONV_PROBLEM_HPP
#define DNNOPS_CONV_PROBLEM_HPP

#include <algorithm>
#include <cstring>

#include "error.hpp"

namespace dnnops {

enum ConvDirection : int64_t { CONV_FORWARD = 0, CONV_GRAD_INPUTS = 1, CONV_GRAD_WEIGHTS = 2 };

// The largest size of a padded image, since the libraries use 32-bit integers: MAX_EXTENT in
// dnnops/nnet/conv/geometry.py.
constexpr int64_t LARGEST_EXTENT = (int64_t(1) << 30) - 1;

// The 16 words that geometry() in dnnops.nnet.conv.op returns.
struct ConvGeometry {
  int64_t spatial_ndim, border, groups, filter_flip;
  int64_t stride[3], dilation[3], pad_begin[3], pad_end[3];
};
enum ConvBorder : int64_t { BORDER_EXPLICIT = 0, BORDER_HALF = 1, BORDER_FULL = 2 };
static_assert(sizeof(ConvGeometry) == 16 * sizeof(int64_t), "the layout of geometry() in nnet/conv/op.py");

// Only 8-byte fields and no padding, because the struct is part of cache keys.
struct ConvProblem {
  ConvGeometry geometry;  // with resolved padding: border is BORDER_EXPLICIT
  int64_t direction, ndim;
  int64_t image[5], filters[5], top[5];  // batch, channels, spatial...; filters: out, in / groups, spatial...
};

// Fills in the padding of a 'half' or 'full' border from the filter size.
inline void resolve_padding(ConvGeometry &geometry, const int64_t *filter_spatial) {
  for (int64_t i = 0; i < geometry.spatial_ndim; ++i) {
    int64_t extent = (filter_spatial[i] - 1) * geometry.dilation[i] + 1;
    if (geometry.border == BORDER_HALF) geometry.pad_begin[i] = geometry.pad_end[i] = extent / 2;
    if (geometry.border == BORDER_FULL) geometry.pad_begin[i] = geometry.pad_end[i] = extent - 1;
  }
  geometry.border = BORDER_EXPLICIT;
}

// Builds and checks the problem of a call. Inputs are in the order of the abstract Ops:
// forward: image, filters;
// gradient with respect to the inputs: filters, top, spatial shape of the image;
// gradient with respect to the weights: image, top, spatial shape of the filters.
inline ConvProblem conv_problem(int64_t direction, const ConvGeometry &given, const dnnops_tensor *inputs) {
  ConvProblem problem;
  std::memset(&problem, 0, sizeof problem);
  ConvGeometry &geometry = problem.geometry = given;
  const int64_t spatial = geometry.spatial_ndim, ndim = spatial + 2, groups = geometry.groups;
  problem.direction = direction;
  problem.ndim = ndim;
  if (inputs[0].ndim != ndim || inputs[1].ndim != ndim)
    fail(DNNOPS_TYPE_ERROR, "expected two arrays of %lld dimensions", (long long)ndim);
  if (inputs[0].dtype != inputs[1].dtype)
    fail(DNNOPS_TYPE_ERROR, "expected two arrays of the same dtype, got %s and %s", dtype_name(inputs[0].dtype),
         dtype_name(inputs[1].dtype));
  const int64_t *top = nullptr;
  if (direction == CONV_FORWARD) {
    std::memcpy(problem.image, inputs[0].shape, ndim * sizeof(int64_t));
    std::memcpy(problem.filters, inputs[1].shape, ndim * sizeof(int64_t));
  } else if (direction == CONV_GRAD_INPUTS) {
    std::memcpy(problem.filters, inputs[0].shape, ndim * sizeof(int64_t));
    top = inputs[1].shape;
    problem.image[0] = top[0];
    problem.image[1] = problem.filters[1] * groups;
    read_vector("the image's spatial shape", inputs[2], spatial, problem.image + 2);
  } else {
    std::memcpy(problem.image, inputs[0].shape, ndim * sizeof(int64_t));
    top = inputs[1].shape;
    problem.filters[0] = top[1];
    if (problem.image[1] % groups)
      fail(DNNOPS_VALUE_ERROR, "num_groups %lld does not divide the image's %lld channels", (long long)groups,
           (long long)problem.image[1]);
    problem.filters[1] = problem.image[1] / groups;
    read_vector("the filters' spatial shape", inputs[2], spatial, problem.filters + 2);
  }
  if (problem.filters[0] % groups)
    fail(DNNOPS_VALUE_ERROR, "num_groups %lld does not divide the %lld filters", (long long)groups,
         (long long)problem.filters[0]);
  if (problem.image[1] != problem.filters[1] * groups)
    fail(DNNOPS_VALUE_ERROR, "the image has %lld channels where filters of %lld channels in %lld group(s) need %lld",
         (long long)problem.image[1], (long long)problem.filters[1], (long long)groups,
         (long long)(problem.filters[1] * groups));
  resolve_padding(geometry, problem.filters + 2);
  problem.top[0] = problem.image[0];
  problem.top[1] = problem.filters[0];
  for (int64_t i = 0; i < spatial; ++i) {
    if (problem.filters[2 + i] < 1 || problem.image[2 + i] < 0)
      fail(DNNOPS_VALUE_ERROR, "filters %s and image %s: spatial sizes have to be positive",
           list_of(problem.filters, ndim).c_str(), list_of(problem.image, ndim).c_str());
    int64_t extent = (problem.filters[2 + i] - 1) * geometry.dilation[i] + 1;
    int64_t padded = problem.image[2 + i] + geometry.pad_begin[i] + geometry.pad_end[i];
    if (extent > padded)
      fail(DNNOPS_VALUE_ERROR, "filters of extent %lld (dilation included) are larger than the padded image's %lld on spatial axis %lld",
           (long long)extent, (long long)padded, (long long)i);
    if (padded > LARGEST_EXTENT)
      fail(DNNOPS_VALUE_ERROR, "the padded image's extent %lld on spatial axis %lld is more than %lld", (long long)padded,
           (long long)i, (long long)LARGEST_EXTENT);
    problem.top[2 + i] = (padded - extent) / geometry.stride[i] + 1;
    // The libraries multiply these by positions in 32 bits, so values too large to matter are reduced.
    geometry.stride[i] = std::min(geometry.stride[i], padded);
    if (problem.filters[2 + i] == 1) geometry.dilation[i] = 1;
  }
  if (top && std::memcmp(top, problem.top, ndim * sizeof(int64_t)))
    fail(DNNOPS_VALUE_ERROR, "the output's gradient has shape %s where image %s and filters %s give an output of %s",
         list_of(top, ndim).c_str(), list_of(problem.image, ndim).c_str(), list_of(problem.filters, ndim).c_str(),
         list_of(problem.top, ndim).c_str());
  return problem;
}

// The shape of the array that this direction computes.
inline const int64_t *conv_result_shape(const ConvProblem &problem) {
  return problem.direction == CONV_FORWARD       ? problem.top
         : problem.direction == CONV_GRAD_INPUTS ? problem.image
                                                 : problem.filters;
}

}  // namespace dnnops
#endif
