// Batch normalization in training, its gradient, and batch normalization with given statistics.
//
// The axes that are not reduced are adjacent, so every array is viewed as (batch, channel, inner), and
// statistics are taken over batch and inner.
//
// dnnops loops compute all of it, in float32 and float64, with sums in float64. oneDNN sums in float32, which
// leaves the variance of a million elements three correct digits, and its normalization with given statistics
// is slower than these loops.
#include <cmath>
#include <cstring>
#include <vector>

#include "../../common/batchnorm_problem.hpp"
#include "../../common/op.hpp"
#include "batchnorm_loops.hpp"
#include "moments.hpp"

namespace dnnops {
namespace {

double read_scalar(const dnnops_tensor &tensor) { return *static_cast<const double *>(tensor.data); }

// The operands of the Ops: images with their views, and contiguous parameters.
template <class T>
struct Operands {
  View views[2];
  T *data[5];
};

size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Packs the inputs that cannot be used in place. The first image_count inputs are images; the others, up to
// count, are parameters.
template <class T>
class PackedInputs {
 public:
  PackedInputs(const BatchNormWords &params, const dnnops_tensor *inputs, int image_count, int count)
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

  const Operands<T> &pack_all() {
    size_t bytes = 0;
    for (int i = 0; i < count_; ++i) bytes += is_packed_[i] ? size(i) : 0;
    char *next = bytes ? thread_scratch(bytes) : nullptr;
    for (int i = 0; i < count_; ++i) {
      operands.data[i] = static_cast<T *>(inputs_[i].data);
      if (!is_packed_[i]) continue;
      pack(inputs_[i], next, false);
      operands.data[i] = reinterpret_cast<T *>(next);
      next += size(i);
    }
    return operands;
  }

  Operands<T> operands;

 private:
  size_t size(int i) const { return padded(element_count(inputs_[i].shape, inputs_[i].ndim) * sizeof(T)); }

  const dnnops_tensor *inputs_;
  int count_;
  bool is_packed_[5];
};

// -- the Ops -----------------------------------------------------------------------------------

void check_dtypes(const dnnops_tensor &x, const dnnops_tensor &other) {
  for_float_dtype(x.dtype, [](auto) {});
  if (other.dtype != x.dtype)
    fail(DNNOPS_TYPE_ERROR, "a parameter is %s, but the inputs are %s", dtype_name(other.dtype), dtype_name(x.dtype));
}

// next = now * (1 - factor) + values * weight * factor, where `now` may have any strides.
template <class T>
void update_average(const dnnops_tensor &now, const std::vector<double> &values, double weight, double factor,
                    T *next) {
  pack(now, next, false);
  for (size_t i = 0; i < values.size(); ++i)
    next[i] = (T)(next[i] * (1 - factor) + values[i] * weight * factor);
}

// Inputs: x, scale, bias, epsilon and, with running averages, factor, running mean and running variance.
struct TrainParams : BatchNormWords {
  static const char *op() { return "OneDnnBatchNormTrain"; }
  int input_count() const { return has_running ? 7 : 4; }
};

// A channel whose variance is no ordinary number: in float64, scaled. out must be contiguous.
template <class T>
void normalize_scaled_channel(const View &view, const T *data, int64_t c, double epsilon, double scale, double bias,
                              Statistics &found, T *invstd, T *out) {
  const View to = contiguous(view);
  std::vector<double> values;
  for (int64_t n = 0; n < view.shape[0]; ++n)
    for (int64_t i = 0; i < view.shape[2]; ++i) values.push_back(*element(view, data, n, c, i));
  const ScaledGroup scaled(values.data(), (int64_t)values.size());
  if (!std::isfinite(scaled.most)) return;  // differences from infinity are undefined
  const Moments of = take_moments(scaled.x.data(), (int64_t)values.size());
  const double deviation = std::sqrt(of.variance + scaled.epsilon(epsilon));
  found.mean[c] = of.mean / scaled.factor;
  found.rest[c] = of.rest / scaled.factor;
  found.variance[c] = of.variance / scaled.factor / scaled.factor;
  invstd[c] = (T)(scaled.factor / deviation);
  for (int64_t n = 0, k = 0; n < view.shape[0]; ++n)
    for (int64_t i = 0; i < view.shape[2]; ++i, ++k)
      *const_cast<T *>(element(to, out, n, c, i)) =
          (T)(((scaled.x[k] - of.mean) - of.rest) * (scale / deviation) + bias);
}

template <class T>
void compute(const TrainParams &params, const dnnops_tensor *inputs, const dnnops_tensor *outputs) {
  const int64_t channels = element_count(outputs[1].shape, outputs[1].ndim);
  if (channels == 0) return;
  const double epsilon = read_scalar(inputs[3]);
  PackedInputs<T> packed(params, inputs, 1, 3);
  const Operands<T> &operands = packed.pack_all();
  Statistics found = take_statistics(operands.views[0], operands.data[0]);
  const T *scale = operands.data[1], *bias = operands.data[2];
  T *mean = static_cast<T *>(outputs[1].data), *invstd = static_cast<T *>(outputs[2].data);
  Normalization<T> by(channels);
  for (int64_t c = 0; c < channels; ++c) {
    const double inverse = 1 / std::sqrt(found.variance[c] + epsilon), factor = inverse * scale[c];
    mean[c] = by.center[c] = (T)found.mean[c];
    invstd[c] = (T)inverse;
    by.factor[c] = (T)factor;
    // Corrects for the rounding of a mean that is large compared with the deviation.
    by.bias[c] = (T)(bias[c] + ((mean[c] - found.mean[c]) - found.rest[c]) * factor);
  }
  T *const out = static_cast<T *>(outputs[0].data);
  normalize(operands.views[0], operands.data[0], by, out);
  for (int64_t c = 0; c < channels; ++c) {
    if (is_ordinary<T>(found.variance[c] + epsilon)) continue;
    normalize_scaled_channel(operands.views[0], operands.data[0], c, epsilon, scale[c], bias[c], found, invstd, out);
    mean[c] = (T)found.mean[c];
  }
  if (!params.has_running) return;
  const double factor = read_scalar(inputs[4]), samples = (double)sample_count(params, inputs[0]);
  // The variance of a single sample cannot be made unbiased.
  const double unbiased = samples > 1 ? samples / (samples - 1) : 1;
  update_average(inputs[5], found.mean, 1, factor, static_cast<T *>(outputs[3].data));
  update_average(inputs[6], found.variance, unbiased, factor, static_cast<T *>(outputs[4].data));
}

// Inputs: x, the gradient with respect to out, scale, mean, invstd. Outputs: the gradients with respect to x,
// scale and bias.
struct TrainGradParams : BatchNormWords {
  static const char *op() { return "OneDnnBatchNormTrainGrad"; }
  static int input_count() { return 5; }
};

template <class T>
void compute(const TrainGradParams &params, const dnnops_tensor *inputs, const dnnops_tensor *outputs) {
  const int64_t channels = element_count(outputs[1].shape, outputs[1].ndim);
  if (channels == 0) return;
  if (sample_count(params, inputs[0]) == 0) {  // empty sums
    for (int i = 1; i < 3; ++i) std::memset(outputs[i].data, 0, channels * sizeof(T));
    return;
  }
  PackedInputs<T> packed(params, inputs, 2, 5);
  const Operands<T> &operands = packed.pack_all();
  const T *const *data = operands.data;
  normalization_gradient<T>({operands.views[0], operands.views[1], data[0], data[1], data[2], data[3], data[4]},
                            static_cast<T *>(outputs[0].data), static_cast<T *>(outputs[1].data),
                            static_cast<T *>(outputs[2].data));
}

// Inputs: x, scale, bias, mean, variance, epsilon.
struct InferenceParams : BatchNormWords {
  static const char *op() { return "OneDnnBatchNormInference"; }
  static int input_count() { return 6; }
};

template <class T>
void compute(const InferenceParams &params, const dnnops_tensor *inputs, const dnnops_tensor *outputs) {
  if (element_count(outputs[0].shape, outputs[0].ndim) == 0) return;
  const int64_t channels = element_count(inputs[1].shape, inputs[1].ndim);
  const double epsilon = read_scalar(inputs[5]);
  PackedInputs<T> packed(params, inputs, 1, 5);
  const Operands<T> &operands = packed.pack_all();
  const T *scale = operands.data[1], *bias = operands.data[2], *variance = operands.data[4];
  Normalization<T> by(channels);
  for (int64_t c = 0; c < channels; ++c) {
    by.center[c] = operands.data[3][c];
    by.factor[c] = (T)(scale[c] / std::sqrt(variance[c] + epsilon));
    by.bias[c] = bias[c];
  }
  normalize(operands.views[0], operands.data[0], by, static_cast<T *>(outputs[0].data));
}

void shape(const OpCall<TrainParams> &call) {
  batchnorm_train_shape(call.params, call.inputs, call.outputs, check_dtypes);
}
void shape(const OpCall<TrainGradParams> &call) {
  batchnorm_gradient_shape(call.params, call.inputs, call.outputs, check_dtypes);
}
void shape(const OpCall<InferenceParams> &call) {
  batchnorm_inference_shape(call.params, call.inputs, call.outputs, check_dtypes);
}

template <class Params>
void run(const OpCall<Params> &call) {
  for_float_dtype(call.inputs[0].dtype, [&](auto zero) {
    compute<decltype(zero)>(call.params, call.inputs, call.outputs);
  });
}

}  // namespace

DNNOPS_OP(onednn_batchnorm_train, TrainParams, shape, run)
DNNOPS_OP(onednn_batchnorm_train_grad, TrainGradParams, shape, run)
DNNOPS_OP(onednn_batchnorm_inference, InferenceParams, shape, run)

}  // namespace dnnops
