// Activations with an exponential, which compiled elementwise code computes slowly, in dnnops loops. oneDNN's
// versions lose the last digits, most of them near 0, and do not support float64.
#include "../../common/op.hpp"
#include "../../common/shapes.hpp"
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

// gx = gy * s * (1 + coef * x * (1 - s)), where s is the sigmoid of coef * x. Beyond kLeastFactor, the slope is 0 or 1;
// coef * x is limited to it, because an infinite product with 0 would be NaN.
template <class T>
void swish_gradient(T coef, const T *x, const T *gy, T *gx, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const Scaled<T> scaled(x[i], coef);
    const bool is_negative = scaled.value < 0;
    const T distance = is_negative ? scaled.value : -scaled.value, least = Format<T>::kLeastFactor;
    const T near = distance < least ? least : distance, limited = is_negative ? near : -near;
    const Exponential<T> e(near, is_negative ? scaled.low : -scaled.low);
    const T small = e.times(1), total = 1 + small;
    const T slope = gy[i] * (1 + limited * ((is_negative ? 1 : small) / total));
    gx[i] = (is_negative ? e.times(slope) : slope) / total;
  }
}

// Inputs: x; backward: x, y, the gradient with respect to the output.
template <bool kBackward>
struct Params {
  int64_t mode;
  double coef;
  static const char *op() { return kBackward ? "OneDnnActivationGrad" : "OneDnnActivation"; }
  static int input_count() { return kBackward ? 3 : 1; }
};

template <class T, bool kBackward>
void run_in(const OpCall<Params<kBackward>> &call) {
  const dnnops_tensor *inputs = call.inputs, &output = call.outputs[0];
  const T coef = (T)call.params.coef;
  const Pieces<T> x(inputs[0]), gy(inputs[kBackward ? 2 : 0]), result(output);
  by_pieces(element_count(output.shape, output.ndim), [&](int64_t begin, int64_t count) {
    T buffers[3][kPiece];
    const T *from = x.read(begin, count, buffers[0]);
    T *to = result.target(begin, buffers[1]);
    if (kBackward)
      swish_gradient(coef, from, gy.read(begin, count, buffers[2]), to, count);
    else
      forward(call.params.mode, coef, from, to, count);
    result.finish(begin, count, buffers[1]);
  });
}

template <bool kBackward>
void run(const OpCall<Params<kBackward>> &call) {
  if (call.outputs[0].dtype == DNNOPS_FLOAT32)
    run_in<float>(call);
  else
    run_in<double>(call);
}

template <bool kBackward>
void shape(const OpCall<Params<kBackward>> &call) {
  const dnnops_tensor *inputs = call.inputs;
  const int64_t mode = call.params.mode;
  if (mode < 0 || mode >= kModes || (mode != kSwish && kBackward))
    fail(DNNOPS_VALUE_ERROR, "there is no mode %lld", (long long)mode);
  for (int i = 0; i < call.params.input_count(); ++i) {
    if (inputs[i].dtype != inputs[0].dtype || (inputs[i].dtype != DNNOPS_FLOAT32 && inputs[i].dtype != DNNOPS_FLOAT64))
      fail(DNNOPS_TYPE_ERROR, "operands have to be float32, or all float64, got %s", dtype_name(inputs[i].dtype));
    if (!same_shape(inputs[i], inputs[0])) fail(DNNOPS_VALUE_ERROR, "x, y and gy must have the same shape");
  }
  set_output(call.outputs[0], inputs[0]);
}

}  // namespace

DNNOPS_OP(onednn_activation, Params<false>, shape, run)
DNNOPS_OP(onednn_activation_grad, Params<true>, shape, run)

}  // namespace dnnops
