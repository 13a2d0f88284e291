// Batch normalization in training, its gradient, and batch normalization by given statistics.
//
// The axes that keep their statistics apart follow each other, so that every array is seen as
// (batch, channel, inner): a statistic is over batch and inner.
//
// All of it is done here, with sums in float64.  oneDNN's are in float32, of which the variance of a million elements
// keeps three digits, and its normalization by given statistics takes longer than these loops.
#include <cmath>
#include <cstring>
#include <vector>

#include "batchnorm_loops.hpp"

namespace dnnops {
namespace {

// params: a bit for each axis that statistics are over; whether there are running averages.
bool is_reduced(const int64_t *params, int64_t axis) { return params[0] >> axis & 1; }

// The axes of batch are [bounds[0], bounds[1]), those of channel and inner follow.
void axis_bounds(const int64_t *params, int64_t ndim, int64_t *bounds) {
  int64_t begin = 0, end = 0;
  for (int64_t i = 0; i < ndim; ++i) {
    if (is_reduced(params, i)) continue;
    if (end == 0)
      begin = i;
    else if (end != i)
      fail(DNNOPS_NOT_SUPPORTED, "axes that have statistics of their own have to be neighbors, %lld and %lld are not",
           (long long)end - 1, (long long)i);
    end = i + 1;
  }
  bounds[0] = 0, bounds[1] = begin, bounds[2] = end, bounds[3] = ndim;
}

double read_scalar(const dnnops_tensor &tensor) { return *static_cast<const double *>(tensor.data); }

// What the Ops work on: images as their views say, parameters contiguous.
struct Operands {
  View views[2];
  float *data[5];
};

size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Packs what can't be used as it lies, of inputs of which image_count images come first and the others up to count
// are parameters.
class PackedInputs {
 public:
  PackedInputs(const int64_t *params, const dnnops_tensor *inputs, int image_count, int count)
      : inputs_(inputs), count_(count) {
    int64_t bounds[4];
    axis_bounds(params, inputs[0].ndim, bounds);
    for (int i = 0; i < count; ++i) {
      if (i < image_count) {
        is_packed_[i] = !strided_view(bounds, inputs[i], operands.views[i]);
        if (is_packed_[i]) operands.views[i] = contiguous_view(bounds, inputs[i]);
      } else {
        is_packed_[i] = !is_contiguous(inputs[i]);
      }
    }
  }

  const Operands &pack_all() {
    size_t bytes = 0;
    for (int i = 0; i < count_; ++i) bytes += is_packed_[i] ? size(i) : 0;
    char *next = bytes ? thread_scratch(bytes) : nullptr;
    for (int i = 0; i < count_; ++i) {
      operands.data[i] = static_cast<float *>(inputs_[i].data);
      if (!is_packed_[i]) continue;
      pack(inputs_[i], next, false);
      operands.data[i] = reinterpret_cast<float *>(next);
      next += size(i);
    }
    return operands;
  }

  Operands operands;

 private:
  size_t size(int i) const { return padded(element_count(inputs_[i].shape, inputs_[i].ndim) * sizeof(float)); }

  const dnnops_tensor *inputs_;
  int count_;
  bool is_packed_[5];
};

// -- the Ops -----------------------------------------------------------------------------------

float *floats(void *data) { return static_cast<float *>(data); }

// How many elements each statistic is over.
int64_t sample_count(const int64_t *params, const dnnops_tensor &x) {
  int64_t count = 1;
  for (int64_t i = 0; i < x.ndim; ++i)
    if (is_reduced(params, i)) count *= x.shape[i];
  return count;
}

// next = now * (1 - factor) + values * weight * factor, now having any strides.
void update_average(const dnnops_tensor &now, const std::vector<double> &values, double weight, double factor,
                    float *next) {
  pack(now, next, false);
  for (size_t i = 0; i < values.size(); ++i)
    next[i] = (float)(next[i] * (1 - factor) + values[i] * weight * factor);
}

// Inputs: x, scale, bias, epsilon and, with running averages, factor, their mean and variance.
void train(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const int64_t channels = element_count(outputs[1].shape, outputs[1].ndim);
  if (channels == 0) return;
  const double epsilon = read_scalar(inputs[3]);
  PackedInputs packed(params, inputs, 1, 3);
  const Operands &operands = packed.pack_all();
  const Statistics found = take_statistics(operands.views[0], operands.data[0]);
  const float *scale = operands.data[1], *bias = operands.data[2];
  float *mean = floats(outputs[1].data), *invstd = floats(outputs[2].data);
  Normalization by(channels);
  for (int64_t c = 0; c < channels; ++c) {
    const double inverse = 1 / std::sqrt(found.variance[c] + epsilon), factor = inverse * scale[c];
    mean[c] = by.center[c] = (float)found.mean[c];
    invstd[c] = (float)inverse;
    by.factor[c] = (float)factor;
    // What rounding took from a mean that is large beside the deviation.
    by.bias[c] = (float)(bias[c] + (mean[c] - found.mean[c]) * factor);
  }
  normalize(operands.views[0], operands.data[0], by, floats(outputs[0].data));
  if (!params[1]) return;
  const double factor = read_scalar(inputs[4]), samples = (double)sample_count(params, inputs[0]);
  // The variance of one sample is no estimate that a factor could make unbiased.
  const double unbiased = samples > 1 ? samples / (samples - 1) : 1;
  update_average(inputs[5], found.mean, 1, factor, floats(outputs[3].data));
  update_average(inputs[6], found.variance, unbiased, factor, floats(outputs[4].data));
}

// Inputs: x, out's gradient, scale, mean, invstd.  Outputs: the gradients of x, scale and bias.
void train_grad(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const int64_t channels = element_count(outputs[1].shape, outputs[1].ndim);
  if (channels == 0) return;
  if (sample_count(params, inputs[0]) == 0) {  // sums over nothing
    for (int i = 1; i < 3; ++i) std::memset(outputs[i].data, 0, channels * sizeof(float));
    return;
  }
  PackedInputs packed(params, inputs, 2, 5);
  const Operands &operands = packed.pack_all();
  const float *const *data = operands.data;
  normalization_gradient({operands.views[0], operands.views[1], data[0], data[1], data[2], data[3], data[4]},
                         floats(outputs[0].data), floats(outputs[1].data), floats(outputs[2].data));
}

// Inputs: x, scale, bias, mean, variance, epsilon.
void infer(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  if (element_count(outputs[0].shape, outputs[0].ndim) == 0) return;
  const int64_t channels = element_count(inputs[1].shape, inputs[1].ndim);
  const double epsilon = read_scalar(inputs[5]);
  PackedInputs packed(params, inputs, 1, 5);
  const Operands &operands = packed.pack_all();
  const float *scale = operands.data[1], *bias = operands.data[2], *variance = operands.data[4];
  Normalization by(channels);
  for (int64_t c = 0; c < channels; ++c) {
    by.center[c] = operands.data[3][c];
    by.factor[c] = (float)(scale[c] / std::sqrt(variance[c] + epsilon));
    by.bias[c] = bias[c];
  }
  normalize(operands.views[0], operands.data[0], by, floats(outputs[0].data));
}

// -- checks of operands, shapes of outputs -----------------------------------------------------

void check_image(const int64_t *params, const dnnops_tensor &x) {
  int64_t bounds[4];
  dnnl_dtype(x.dtype);
  if (x.ndim < 1 || params[0] <= 0 || params[0] >> x.ndim)
    fail(DNNOPS_VALUE_ERROR, "an array of %lld dimensions does not have the axes that statistics are over",
         (long long)x.ndim);
  axis_bounds(params, x.ndim, bounds);
}

void check_parameter(const char *name, const int64_t *params, const dnnops_tensor &x, const dnnops_tensor &parameter) {
  dnnl_dtype(parameter.dtype);
  bool fits = parameter.ndim == x.ndim;
  for (int64_t i = 0; fits && i < x.ndim; ++i) fits = parameter.shape[i] == (is_reduced(params, i) ? 1 : x.shape[i]);
  if (fits) return;
  int64_t expected[DNNOPS_MAX_NDIM];
  for (int64_t i = 0; i < x.ndim; ++i) expected[i] = is_reduced(params, i) ? 1 : x.shape[i];
  fail(DNNOPS_VALUE_ERROR, "%s has shape %s, expected %s for inputs of shape %s", name,
       list_of(parameter.shape, parameter.ndim).c_str(), list_of(expected, x.ndim).c_str(),
       list_of(x.shape, x.ndim).c_str());
}

void check_scalar(const char *name, const dnnops_tensor &scalar) {
  if (scalar.dtype != DNNOPS_FLOAT64 || scalar.ndim != 0) fail(DNNOPS_TYPE_ERROR, "%s has to be a float64 scalar", name);
}

void train_shape(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  check_image(params, inputs[0]);
  check_parameter("scale", params, inputs[0], inputs[1]);
  check_parameter("bias", params, inputs[0], inputs[2]);
  check_scalar("epsilon", inputs[3]);
  if (params[1]) {
    check_scalar("the factor of running averages", inputs[4]);
    check_parameter("the running mean", params, inputs[0], inputs[5]);
    check_parameter("the running variance", params, inputs[0], inputs[6]);
  }
  if (sample_count(params, inputs[0]) == 0)
    fail(DNNOPS_VALUE_ERROR, "mean and variance over no elements: inputs have shape %s",
         list_of(inputs[0].shape, inputs[0].ndim).c_str());
  set_output(outputs[0], inputs[0]);
  for (int i = 1; i < (params[1] ? 5 : 3); ++i) set_output(outputs[i], inputs[1]);
}

void train_grad_shape(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  check_image(params, inputs[0]);
  dnnl_dtype(inputs[1].dtype);
  if (!same_shape(inputs[1], inputs[0]))
    fail(DNNOPS_VALUE_ERROR, "the output's gradient has shape %s, expected that of the inputs, %s",
         list_of(inputs[1].shape, inputs[1].ndim).c_str(), list_of(inputs[0].shape, inputs[0].ndim).c_str());
  const char *const names[] = {"scale", "mean", "invstd"};
  for (int i = 0; i < 3; ++i) check_parameter(names[i], params, inputs[0], inputs[2 + i]);
  set_output(outputs[0], inputs[0]);
  set_output(outputs[1], inputs[2]);
  set_output(outputs[2], inputs[2]);
}

void infer_shape(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  check_image(params, inputs[0]);
  const char *const names[] = {"scale", "bias", "mean", "variance"};
  for (int i = 0; i < 4; ++i) check_parameter(names[i], params, inputs[0], inputs[1 + i]);
  check_scalar("epsilon", inputs[5]);
  set_output(outputs[0], inputs[0]);
}

}  // namespace
}  // namespace dnnops

using namespace dnnops;

DNNOPS_EXPORT int dnnops_onednn_batchnorm_train_shape(const dnnops_context *, const int64_t *params,
                                                      const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrain", inputs, params[1] ? 7 : 4, [&] { train_shape(params, inputs, outputs); });
}
DNNOPS_EXPORT int dnnops_onednn_batchnorm_train(const dnnops_context *, const int64_t *params,
                                                const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrain", inputs, params[1] ? 7 : 4, [&] { train(params, inputs, outputs); });
}

DNNOPS_EXPORT int dnnops_onednn_batchnorm_train_grad_shape(const dnnops_context *, const int64_t *params,
                                                           const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrainGrad", inputs, 5, [&] { train_grad_shape(params, inputs, outputs); });
}
DNNOPS_EXPORT int dnnops_onednn_batchnorm_train_grad(const dnnops_context *, const int64_t *params,
                                                     const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrainGrad", inputs, 5, [&] { train_grad(params, inputs, outputs); });
}

DNNOPS_EXPORT int dnnops_onednn_batchnorm_inference_shape(const dnnops_context *, const int64_t *params,
                                                          const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormInference", inputs, 6, [&] { infer_shape(params, inputs, outputs); });
}
DNNOPS_EXPORT int dnnops_onednn_batchnorm_inference(const dnnops_context *, const int64_t *params,
                                                    const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormInference", inputs, 6, [&] { infer(params, inputs, outputs); });
}
