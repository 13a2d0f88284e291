// Activations with an exponential, which compiled elementwise code computes slowly, in dnnops loops. oneDNN's
// versions lose the last digits, most of them near 0, and do not support float64.
#include <cstring>

#include "../base/elementary.hpp"
#include "../base/pieces.hpp"

namespace dnnops {
namespace {

// The order of `MODES` in dnnops/cpu/activation.py.
enum Mode : int64_t { kTanh, kSigmoid, kSwish, kElu, kModes };

// x times a coefficient, and the rounding error of the product.
template <class T>
struct Scaled {
  T value, low;
  Scaled(T x, T by) : value(by * x) {
    const T error = product_error(by, x, value);
    low = magnitude(value) <= -Format<T>::kLeastFactor ? error : 0;  // if the product is infinite, the error is NaN
  }
};

template <class T>
void forward(int64_t mode, T coef, const T *x, T *y, int64_t count) {
  switch (mode) {
    case kTanh:
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) y[i] = tanh_of(x[i]);
      return;
    case kSigmoid:
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) y[i] = sigmoid_times<T>(1, x[i]);
      return;
    case kElu:
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        const T value = x[i], below = coef * negative_expm1(value > 0 ? (T)0 : value);
        y[i] = value > 0 ? value : below;
      }
      return;
    default:
      if (coef == 1) {
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) y[i] = sigmoid_times(x[i], x[i]);
        return;
      }
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        const Scaled<T> scaled(x[i], coef);
        y[i] = sigmoid_times(x[i], scaled.value, scaled.low);
      }
  }
}

// gx = gy * s * (1 + coef * x * (1 - s)), where s is the sigmoid of coef * x.
template <class T>
void swish_gradient(T coef, const T *x, const T *gy, T *gx, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const Scaled<T> scaled(x[i], coef);
    const bool is_negative = scaled.value < 0;
    const T distance = is_negative ? scaled.value : -scaled.value, least = Format<T>::kLeastFactor;
    const Exponential<T> e(distance < least ? least : distance, is_negative ? scaled.low : -scaled.low);
    const T small = e.times(1), total = 1 + small;
    const T slope = gy[i] * (1 + scaled.value * ((is_negative ? 1 : small) / total));
    gx[i] = (is_negative ? e.times(slope) : slope) / total;
  }
}

double coefficient(int64_t bits) {
  double coef;
  std::memcpy(&coef, &bits, sizeof coef);
  return coef;
}

// params: mode, the bits of the coefficient. Inputs: x; backward: x, y, the gradient with respect to the output.
template <class T>
void run(const int64_t *params, const dnnops_tensor *inputs, bool is_backward, const dnnops_tensor &output) {
  const T coef = (T)coefficient(params[1]);
  const Pieces<T> x(inputs[0]), gy(inputs[is_backward ? 2 : 0]), result(output);
  by_pieces(element_count(output.shape, output.ndim), [&](int64_t begin, int64_t count) {
    T buffers[3][kPiece];
    const T *from = x.read(begin, count, buffers[0]);
    T *to = result.target(begin, buffers[1]);
    if (is_backward)
      swish_gradient(coef, from, gy.read(begin, count, buffers[2]), to, count);
    else
      forward(params[0], coef, from, to, count);
    result.finish(begin, count, buffers[1]);
  });
}

void run(const int64_t *params, const dnnops_tensor *inputs, bool is_backward, const dnnops_tensor &output) {
  if (output.dtype == DNNOPS_FLOAT32)
    run<float>(params, inputs, is_backward, output);
  else
    run<double>(params, inputs, is_backward, output);
}

void shape(const int64_t *params, const dnnops_tensor *inputs, int input_count, dnnops_tensor &output) {
  if (params[0] < 0 || params[0] >= kModes || (params[0] != kSwish && input_count > 1))
    fail(DNNOPS_VALUE_ERROR, "there is no mode %lld", (long long)params[0]);
  for (int i = 0; i < input_count; ++i) {
    if (inputs[i].dtype != inputs[0].dtype || (inputs[i].dtype != DNNOPS_FLOAT32 && inputs[i].dtype != DNNOPS_FLOAT64))
      fail(DNNOPS_TYPE_ERROR, "operands have to be float32, or all float64, got %s", dtype_name(inputs[i].dtype));
    if (!same_shape(inputs[i], inputs[0])) fail(DNNOPS_VALUE_ERROR, "x, y and gy must have the same shape");
  }
  set_output(output, inputs[0]);
}

}  // namespace
}  // namespace dnnops

using namespace dnnops;

DNNOPS_EXPORT int dnnops_onednn_activation_shape(const dnnops_context *, const int64_t *params,
                                                 const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnActivation", inputs, 1, [&] { shape(params, inputs, 1, outputs[0]); });
}
DNNOPS_EXPORT int dnnops_onednn_activation(const dnnops_context *, const int64_t *params, const dnnops_tensor *inputs,
                                           dnnops_tensor *outputs) {
  return guarded("OneDnnActivation", inputs, 1, [&] { run(params, inputs, false, outputs[0]); });
}

// Inputs: x, y, the gradient with respect to the output.
DNNOPS_EXPORT int dnnops_onednn_activation_grad_shape(const dnnops_context *, const int64_t *params,
                                                      const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnActivationGrad", inputs, 3, [&] { shape(params, inputs, 3, outputs[0]); });
}
DNNOPS_EXPORT int dnnops_onednn_activation_grad(const dnnops_context *, const int64_t *params,
                                                const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnActivationGrad", inputs, 3, [&] { run(params, inputs, true, outputs[0]); });
}
