// Softmax, log-softmax and their gradients over one or several adjacent axes, in dnnops loops. oneDNN does
// not support float64, rounds an element's distance from the largest one, and loses small logarithms.
#include <cmath>

#include "../../common/op.hpp"
#include "../base/row_sums.hpp"
#include "../base/views.hpp"

namespace dnnops {
namespace {

// An array is viewed as (outer, axis, inner): rows along the axis or, if there is an inner axis, columns.
constexpr int64_t kFewElements = 16384;  // too few to be worth several threads

template <bool kLog, class T>
void forward_row(const T *x, T *y, int64_t count) {
  T top = largest_of(x, count);
  if (!std::isfinite(top)) top = std::numeric_limits<T>::quiet_NaN();  // differences from it are undefined
  if (kLog) {
    const T logarithm = log_of_one_more(rest_of_exponentials(x, count, top));
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - top) - logarithm;
    return;
  }
  const T divisor = (1 + rest_of_exponentials(x, count, top, y)) * (T)Format<T>::kScale;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] /= divisor;
}

// Computes the results of columns from their largest elements and rests; y may be x.
template <bool kLog, class T>
void finish_columns(const T *x, int64_t x_step, T *y, int64_t y_step, int64_t length, int64_t width, T *tops,
                    T *rests) {
  for (int64_t j = 0; j < width; ++j) {
    if (!std::isfinite(tops[j])) tops[j] = std::numeric_limits<T>::quiet_NaN();
    rests[j] = kLog ? log_of_one_more(rests[j]) : (1 + rests[j]) * (T)Format<T>::kScale;
  }
  for (int64_t k = 0; k < length; ++k) {
    const T *from = x + k * x_step;
    T *to = y + k * y_step;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j)
      to[j] = kLog ? (from[j] - tops[j]) - rests[j] : scaled_exponential(from[j], tops[j]) / rests[j];
  }
}

template <bool kLog, class T>
void forward_columns(const T *x, int64_t x_step, T *y, int64_t y_step, int64_t length, int64_t width) {
  T tops[kColumns], rests[kColumns];
  rests_of_columns(x, x_step, length, width, tops, rests);
  finish_columns<kLog, T>(x, x_step, y, y_step, length, width, tops, rests);
}

template <bool kLog, class T>
void forward_short_rows(const T *x, int64_t x_step, T *y, int64_t count, int64_t length) {
  T columns[kShort * kColumns];
  for (int64_t j = 0; j < count; ++j)
    for (int64_t k = 0; k < length; ++k) columns[k * kColumns + j] = x[j * x_step + k];
  forward_columns<kLog, T>(columns, kColumns, columns, kColumns, length, count);
  for (int64_t j = 0; j < count; ++j)
    for (int64_t k = 0; k < length; ++k) y[j * length + k] = columns[k * kColumns + j];
}

// The sum is over g for the logarithm, otherwise over g * y.
template <bool kLog, class T>
void backward_row(const T *g, const T *y, T *result, int64_t count) {
  Accumulator<T> total;
  for (int64_t begin = 0; begin < count; begin += kTerms) {
    const int64_t end = std::min(count, begin + kTerms);
    T sum = 0;
    if (kLog) {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = begin; i < end; ++i) sum += g[i];
    } else {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = begin; i < end; ++i) sum += g[i] * y[i];
    }
    total.add(sum);
  }
  const T sum = (T)total.value();
  if (kLog) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) result[i] = g[i] - exponential(y[i]) * sum;
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) result[i] = y[i] * (g[i] - sum);
  }
}

template <bool kLog, class T>
void backward_columns(const T *g, int64_t g_step, const T *y, int64_t y_step, T *result, int64_t step,
                      int64_t length, int64_t width) {
  T sums[kColumns];
  Accumulator<T> totals[kColumns];
  for (int64_t begin = 0; begin < length; begin += kFewTerms) {
    const int64_t end = std::min(length, begin + kFewTerms);
    std::fill_n(sums, width, (T)0);
    for (int64_t k = begin; k < end; ++k) {
      const T *gs = g + k * g_step, *ys = y + k * y_step;
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) sums[j] += kLog ? gs[j] : gs[j] * ys[j];
    }
    for (int64_t j = 0; j < width; ++j) totals[j].add(sums[j]);
  }
  for (int64_t j = 0; j < width; ++j) sums[j] = (T)totals[j].value();
  for (int64_t k = 0; k < length; ++k) {
    const T *gs = g + k * g_step, *ys = y + k * y_step;
    T *to = result + k * step;
    if (kLog) {
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) to[j] = gs[j] - exponential(ys[j]) * sums[j];
    } else {
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) to[j] = ys[j] * (gs[j] - sums[j]);
    }
  }
}

struct Operands {
  View views[3];  // forward: x, y; backward: the gradient with respect to the output, the output, the gradient with
                  // respect to x
  void *data[3];
};

template <bool kLog, class T>
void run_in(bool is_backward, const Operands &operands) {
  const View *views = operands.views;
  const int64_t outer = views[0].shape[0], length = views[0].shape[1], inner = views[0].shape[2];
  const auto at = [&](int i, int64_t row, int64_t column = 0) {
    return static_cast<T *>(operands.data[i]) + row * views[i].strides[0] + column * views[i].strides[2];
  };
  if (inner == 1 && length < kShort && !is_backward) {
#pragma omp parallel for if (outer * length > kFewElements)
    for (int64_t row = 0; row < outer; row += kColumns)
      forward_short_rows<kLog, T>(at(0, row), views[0].strides[0], at(1, row), std::min(kColumns, outer - row), length);
    return;
  }
  const int64_t pieces = (inner + kColumns - 1) / kColumns;
#pragma omp parallel for if (outer * length * inner > kFewElements)
  for (int64_t task = 0; task < outer * pieces; ++task) {
    const int64_t row = task / pieces, column = task % pieces * kColumns, width = std::min(kColumns, inner - column);
    const int result = is_backward ? 2 : 1;
    T *const first = at(0, row, column), *const second = at(1, row, column), *const last = at(result, row, column);
    const int64_t steps[3] = {views[0].strides[1], views[1].strides[1], views[result].strides[1]};
    if (inner == 1 && is_backward)
      backward_row<kLog, T>(first, second, last, length);
    else if (inner == 1)
      forward_row<kLog, T>(first, last, length);
    else if (is_backward)
      backward_columns<kLog, T>(first, steps[0], second, steps[1], last, steps[2], length, width);
    else
      forward_columns<kLog, T>(first, steps[0], last, steps[2], length, width);
  }
}

// Whether the axis along which the loops run is dense.
bool has_dense_rows(const View &view) {
  const int axis = view.shape[2] == 1 ? 1 : 2;
  return view.strides[axis] == 1 || view.shape[axis] == 1;
}

// Inputs: x; backward: the gradient with respect to the output, the output.
template <bool kBackward>
struct Params {
  int64_t begin, end, log;  // the axes begin <= axis < end
  static const char *op() { return kBackward ? "OneDnnSoftmaxGrad" : "OneDnnSoftmax"; }
  static int input_count() { return kBackward ? 2 : 1; }
};

template <bool kBackward>
void run(const OpCall<Params<kBackward>> &call) {
  const Params<kBackward> &params = call.params;
  const dnnops_tensor *inputs = call.inputs, &output = call.outputs[0];
  const int input_count = params.input_count();
  const int64_t count = element_count(output.shape, output.ndim);
  if (count == 0) return;
  const int64_t bounds[4] = {0, params.begin, params.end, output.ndim};
  const size_t size = (count * item_size(output.dtype) + 63) / 64 * 64;
  Operands operands;
  size_t bytes = 0;
  bool is_packed[2] = {false, false};
  for (int i = 0; i < input_count; ++i) {
    View &view = operands.views[i];
    is_packed[i] = !strided_view(bounds, inputs[i], view) || !has_dense_rows(view);
    if (!is_packed[i]) continue;
    view = contiguous_view(bounds, inputs[i]);
    bytes += size;
  }
  char *scratch = thread_scratch(bytes);
  for (int i = 0; i < input_count; ++i) {
    operands.data[i] = inputs[i].data;
    if (!is_packed[i]) continue;
    pack(inputs[i], operands.data[i] = scratch, false);
    scratch += size;
  }
  operands.views[input_count] = contiguous_view(bounds, output);
  operands.data[input_count] = output.data;
  for_float_dtype(output.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (params.log)
      run_in<true, T>(kBackward, operands);
    else
      run_in<false, T>(kBackward, operands);
  });
}

template <bool kBackward>
void shape(const OpCall<Params<kBackward>> &call) {
  const Params<kBackward> &params = call.params;
  const dnnops_tensor *inputs = call.inputs;
  for_float_dtype(inputs[0].dtype, [](auto) {});
  if (params.begin < 0 || params.end > inputs[0].ndim || params.begin >= params.end)
    fail(DNNOPS_VALUE_ERROR, "axes %lld to %lld are invalid for an array of %lld dimensions", (long long)params.begin,
         (long long)params.end - 1, (long long)inputs[0].ndim);
  if (kBackward && (inputs[1].dtype != inputs[0].dtype || !same_shape(inputs[1], inputs[0])))
    fail(DNNOPS_VALUE_ERROR, "the output's gradient and the output must have the same shape and dtype");
  set_output(call.outputs[0], inputs[0]);
}

}  // namespace

DNNOPS_OP(onednn_softmax, Params<false>, shape, run)
DNNOPS_OP(onednn_softmax_grad, Params<true>, shape, run)

}  // namespace dnnops
