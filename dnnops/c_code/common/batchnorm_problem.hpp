// A batch normalization as both libraries see it: its axes, and the checks of its operands.
#ifndef DNNOPS_COMMON_BATCHNORM_PROBLEM_HPP
#define DNNOPS_COMMON_BATCHNORM_PROBLEM_HPP

#include <cmath>
#include <cstring>

#include "shapes.hpp"

namespace dnnops {

struct BatchNormWords {
  int64_t axes;         // a bit for each axis that is reduced
  int64_t has_running;  // whether there are running averages
};

inline bool is_reduced(const BatchNormWords &params, int64_t axis) { return params.axes >> axis & 1; }

// The batch axes are [bounds[0], bounds[1]); the channel and inner axes follow.
inline void axis_bounds(const BatchNormWords &params, int64_t ndim, int64_t *bounds) {
  int64_t begin = 0, end = 0;
  for (int64_t i = 0; i < ndim; ++i) {
    if (is_reduced(params, i)) continue;
    if (end == 0)
      begin = i;
    else if (end != i)
      fail(DNNOPS_NOT_SUPPORTED, "axes that are not reduced must be adjacent, but %lld and %lld are not",
           (long long)end - 1, (long long)i);
    end = i + 1;
  }
  bounds[0] = 0, bounds[1] = begin, bounds[2] = end, bounds[3] = ndim;
}

// The number of elements behind each statistic.
inline int64_t sample_count(const BatchNormWords &params, const dnnops_tensor &x) {
  int64_t count = 1;
  for (int64_t i = 0; i < x.ndim; ++i)
    if (is_reduced(params, i)) count *= x.shape[i];
  return count;
}

namespace batchnorm {

inline void check_image(const BatchNormWords &params, const dnnops_tensor &x) {
  if (x.ndim < 1 || params.axes <= 0 || params.axes >> x.ndim)
    fail(DNNOPS_VALUE_ERROR, "the axes to reduce are out of bounds for an array of %lld dimensions",
         (long long)x.ndim);
  int64_t bounds[4];
  axis_bounds(params, x.ndim, bounds);
}

inline void check_parameter(const char *name, const BatchNormWords &params, const dnnops_tensor &x,
                            const dnnops_tensor &parameter) {
  bool fits = parameter.ndim == x.ndim;
  for (int64_t i = 0; fits && i < x.ndim; ++i) fits = parameter.shape[i] == (is_reduced(params, i) ? 1 : x.shape[i]);
  if (fits) return;
  int64_t expected[DNNOPS_MAX_NDIM];
  for (int64_t i = 0; i < x.ndim; ++i) expected[i] = is_reduced(params, i) ? 1 : x.shape[i];
  fail(DNNOPS_VALUE_ERROR, "%s has shape %s, expected %s for inputs of shape %s", name,
       list_of(parameter.shape, parameter.ndim).c_str(), list_of(expected, x.ndim).c_str(),
       list_of(x.shape, x.ndim).c_str());
}

inline void check_scalar(const char *name, const dnnops_tensor &scalar) {
  if (scalar.dtype != DNNOPS_FLOAT64 || scalar.ndim != 0) fail(DNNOPS_TYPE_ERROR, "%s has to be a float64 scalar", name);
}

// The same minimum as cuDNN's CUDNN_BN_MIN_EPSILON, 0.
inline void check_epsilon(const dnnops_tensor &scalar) {
  check_scalar("epsilon", scalar);
  const double value = *static_cast<const double *>(scalar.data);
  if (!(value >= 0) || std::isinf(value))
    fail(DNNOPS_VALUE_ERROR, "epsilon has to be finite and at least 0, got %g", value);
}

inline void check_factor(const dnnops_tensor &scalar) {
  check_scalar("running_average_factor", scalar);
  const double value = *static_cast<const double *>(scalar.data);
  if (!(value >= 0 && value <= 1))
    fail(DNNOPS_VALUE_ERROR, "running_average_factor has to be between 0 and 1, got %g", value);
}

}  // namespace batchnorm

// These check the inputs and describe the outputs. check_dtypes(x, parameter) checks that the library
// supports the dtypes.

// Inputs: x, scale, bias, epsilon and, with running averages, factor, running mean and running variance.
template <class CheckDtypes>
void batchnorm_train_shape(const BatchNormWords &params, const dnnops_tensor *inputs, dnnops_tensor *outputs,
                           CheckDtypes check_dtypes) {
  using namespace batchnorm;
  const dnnops_tensor &x = inputs[0];
  const auto check = [&](const char *name, const dnnops_tensor &parameter) {
    check_parameter(name, params, x, parameter);
    check_dtypes(x, parameter);
  };
  check_image(params, x);
  check("scale", inputs[1]);
  check("bias", inputs[2]);
  check_epsilon(inputs[3]);
  if (params.has_running) {
    check_factor(inputs[4]);
    check("the running mean", inputs[5]);
    check("the running variance", inputs[6]);
  }
  if (sample_count(params, x) == 0)
    fail(DNNOPS_VALUE_ERROR, "mean and variance over no elements: inputs have shape %s",
         list_of(x.shape, x.ndim).c_str());
  set_output(outputs[0], x);
  for (int i = 1; i < (params.has_running ? 5 : 3); ++i) set_output(outputs[i], inputs[1]);
}

// Inputs: x, the gradient with respect to the output, scale, mean, invstd.
template <class CheckDtypes>
void batchnorm_gradient_shape(const BatchNormWords &params, const dnnops_tensor *inputs, dnnops_tensor *outputs,
                              CheckDtypes check_dtypes) {
  using namespace batchnorm;
  const dnnops_tensor &x = inputs[0], &gradient = inputs[1];
  check_image(params, x);
  if (gradient.dtype != x.dtype || !same_shape(gradient, x))
    fail(DNNOPS_VALUE_ERROR,
         "the output's gradient has shape %s, expected the shape of the inputs, %s, and their dtype",
         list_of(gradient.shape, gradient.ndim).c_str(), list_of(x.shape, x.ndim).c_str());
  const char *const names[] = {"scale", "mean", "invstd"};
  for (int i = 0; i < 3; ++i) {
    check_parameter(names[i], params, x, inputs[2 + i]);
    check_dtypes(x, inputs[2 + i]);
  }
  set_output(outputs[0], x);
  set_output(outputs[1], inputs[2]);
  set_output(outputs[2], inputs[2]);
}

// Inputs: x, scale, bias, mean, variance, epsilon.
template <class CheckDtypes>
void batchnorm_inference_shape(const BatchNormWords &params, const dnnops_tensor *inputs, dnnops_tensor *outputs,
                               CheckDtypes check_dtypes) {
  using namespace batchnorm;
  check_image(params, inputs[0]);
  const char *const names[] = {"scale", "bias", "mean", "variance"};
  for (int i = 0; i < 4; ++i) {
    check_parameter(names[i], params, inputs[0], inputs[1 + i]);
    check_dtypes(inputs[0], inputs[1 + i]);
  }
  check_epsilon(inputs[5]);
  set_output(outputs[0], inputs[0]);
}

}  // namespace dnnops
#endif
