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

#include "../common/batchnorm_problem.hpp"
#include "batchnorm_loops.hpp"

namespace dnnops {
namespace {

// params: a bit for each axis that statistics are over; whether there are running averages.

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

void check_dtypes(const dnnops_tensor &x, const dnnops_tensor &other) {
  dnnl_dtype(x.dtype);
  dnnl_dtype(other.dtype);
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

}  // namespace
}  // namespace dnnops

using namespace dnnops;

DNNOPS_EXPORT int dnnops_onednn_batchnorm_train_shape(const dnnops_context *, const int64_t *params,
                                                      const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrain", inputs, params[1] ? 7 : 4, [&] { batchnorm_train_shape(params, inputs, outputs, check_dtypes); });
}
DNNOPS_EXPORT int dnnops_onednn_batchnorm_train(const dnnops_context *, const int64_t *params,
                                                const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrain", inputs, params[1] ? 7 : 4, [&] { train(params, inputs, outputs); });
}

DNNOPS_EXPORT int dnnops_onednn_batchnorm_train_grad_shape(const dnnops_context *, const int64_t *params,
                                                           const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrainGrad", inputs, 5, [&] { batchnorm_gradient_shape(params, inputs, outputs, check_dtypes); });
}
DNNOPS_EXPORT int dnnops_onednn_batchnorm_train_grad(const dnnops_context *, const int64_t *params,
                                                     const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrainGrad", inputs, 5, [&] { train_grad(params, inputs, outputs); });
}

DNNOPS_EXPORT int dnnops_onednn_batchnorm_inference_shape(const dnnops_context *, const int64_t *params,
                                                          const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormInference", inputs, 6, [&] { batchnorm_inference_shape(params, inputs, outputs, check_dtypes); });
}
DNNOPS_EXPORT int dnnops_onednn_batchnorm_inference(const dnnops_context *, const int64_t *params,
                                                    const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormInference", inputs, 6, [&] { infer(params, inputs, outputs); });
}
