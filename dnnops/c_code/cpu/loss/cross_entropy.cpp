// The cross-entropy between the softmax of each row and its label, and its gradient, in dnnops loops.
#include "../../common/cross_entropy_problem.hpp"
#include "../../common/op.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <omp.h>

#include "../base/plan.hpp"
#include "../base/row_sums.hpp"

namespace dnnops {
namespace {

constexpr int64_t kFewElements = 16384;  // too few to be worth several threads

// The labels, with negative ones wrapped around.
class Labels {
 public:
  Labels(const dnnops_tensor &labels, const CrossEntropyProblem &problem)
      : labels_(labels), classes_(problem.classes), step_(problem.label_step) {
    for (int64_t i = 0; i < problem.labels; ++i) {
      const int64_t label = read(i);
      if (label < -classes_ || label >= classes_)
        fail(DNNOPS_INDEX_ERROR, "label %lld of row %lld is out of bounds for %lld classes", (long long)label,
             (long long)i, (long long)classes_);
    }
  }
  int64_t operator[](int64_t row) const {
    const int64_t label = read(row * step_);
    return label < 0 ? label + classes_ : label;
  }

 private:
  int64_t read(int64_t i) const {
    const char *at = static_cast<const char *>(labels_.data) + i * labels_.strides[0];
    if (labels_.dtype == DNNOPS_INT64) {
      int64_t label;
      std::memcpy(&label, at, sizeof label);
      return label;
    }
    int32_t label;
    std::memcpy(&label, at, sizeof label);
    return label;
  }

  const dnnops_tensor &labels_;
  int64_t classes_, step_;
};

// The rows of a matrix, with dense elements: either the array's rows, or copies in per-thread memory, which
// is allocated before the parallel region.
template <class T>
class Rows {
 public:
  Rows(const dnnops_tensor &x, const CrossEntropyProblem &problem)
      : x_(x), step_(problem.row_step * x.strides[0]), is_dense_(x.strides[1] == (int64_t)sizeof(T)) {
    if (!is_dense_) copies_ = reinterpret_cast<T *>(thread_scratch(omp_get_max_threads() * x.shape[1] * sizeof(T)));
  }
  const T *operator[](int64_t row) const {
    const char *begin = static_cast<const char *>(x_.data) + row * step_;
    if (is_dense_) return reinterpret_cast<const T *>(begin);
    T *copy = copies_ + omp_get_thread_num() * x_.shape[1];
    for (int64_t i = 0; i < x_.shape[1]; ++i) std::memcpy(copy + i, begin + i * x_.strides[1], sizeof(T));
    return copy;
  }

 private:
  const dnnops_tensor &x_;
  int64_t step_;
  bool is_dense_;
  T *copies_ = nullptr;
};

// The factors that turn each scaled exponential of a row into `g` times its softmax. They are applied one by
// one, so that no intermediate value leaves the range of normal numbers unless the result does.
template <class T>
struct Factors {
  T first, second, third;
  Factors(T rest, T g) {
    constexpr T half = (T)(Format<T>::kScaleBits == 64 ? 0x1p-32 : 0x1p-64);
    const bool is_large = magnitude(g) >= 1;
    first = half / (1 + rest);
    second = is_large ? g * half : g;
    third = is_large ? (T)1 : half;
  }
  T operator()(T term) const { return term * first * second * third; }
};

// g times (the label's probability - 1). For the most probable class, it is computed from the probabilities
// of the other classes, since the difference would lose all digits.
template <class T>
T label_gradient(T score, T top, T term, T rest, T g) {
  if (score != top) return g * (term * (T)(1 / Format<T>::kScale) / (1 + rest) - 1);
  return -g * (rest / (1 + rest));
}

// The sum of the exponentials of a row but the largest. Differences from infinity are undefined: NaN.
template <class T>
T defined_rest(T top, T rest) {
  return std::isfinite(top) ? rest : std::numeric_limits<T>::quiet_NaN();
}

template <class T>
void backward_row(const T *row, int64_t count, int64_t label, T top, T g, T *result) {
  const T rest = defined_rest(top, rest_of_exponentials(row, count, top, result)), of_label = result[label];
  const Factors<T> factors(rest, g);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) result[i] = factors(result[i]);
  result[label] = label_gradient(row[label], top, of_label, rest, g);
}

// Like backward_row(), for up to kColumns rows of few elements, which are processed as columns.
template <class T>
void backward_short_rows(T *columns, int64_t classes, int64_t width, const int64_t *labels, const T *gs, T *result) {
  T tops[kColumns], rests[kColumns], of_labels[kColumns], scores[kColumns];
  rests_of_columns(columns, kColumns, classes, width, tops, rests);
  for (int64_t j = 0; j < width; ++j) rests[j] = defined_rest(tops[j], rests[j]);
  for (int64_t j = 0; j < width; ++j) scores[j] = columns[labels[j] * kColumns + j];
  for (int64_t k = 0; k < classes; ++k) {
    T *const row = columns + k * kColumns;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) row[j] = scaled_exponential(row[j], tops[j]);
  }
  for (int64_t j = 0; j < width; ++j) of_labels[j] = columns[labels[j] * kColumns + j];
  for (int64_t j = 0; j < width; ++j) {
    const Factors<T> factors(rests[j], gs[j]);
    for (int64_t k = 0; k < classes; ++k) result[j * classes + k] = factors(columns[k * kColumns + j]);
    result[j * classes + labels[j]] = label_gradient(scores[j], tops[j], of_labels[j], rests[j], gs[j]);
  }
}

// Outputs: the costs, and for each row the maximum and the logarithm of the sum of exponentials after
// subtracting the maximum.
template <class T>
void forward(const CrossEntropyProblem &problem, const dnnops_tensor &x, const Labels &labels, dnnops_tensor *outputs) {
  T *costs = static_cast<T *>(outputs[0].data), *statistics = static_cast<T *>(outputs[1].data);
  const Rows<T> rows(x, problem);
  const int64_t count = problem.count, classes = problem.classes;
  const auto finish = [&](int64_t i, T top, T rest, T score) {
    const T log_sum = log_of_one_more(defined_rest(top, rest));
    costs[i] = log_sum - (score - top);
    statistics[2 * i] = top;
    statistics[2 * i + 1] = log_sum;
  };
  if (classes < kShort) {
#pragma omp parallel for if (count * classes > kFewElements)
    for (int64_t begin = 0; begin < count; begin += kColumns) {
      const int64_t width = std::min(kColumns, count - begin);
      T columns[kShort * kColumns], tops[kColumns], rests[kColumns];
      for (int64_t j = 0; j < width; ++j) {
        const T *row = rows[begin + j];
        for (int64_t k = 0; k < classes; ++k) columns[k * kColumns + j] = row[k];
      }
      rests_of_columns(columns, kColumns, classes, width, tops, rests);
      for (int64_t j = 0; j < width; ++j)
        finish(begin + j, tops[j], rests[j], columns[labels[begin + j] * kColumns + j]);
    }
    return;
  }
#pragma omp parallel for if (count * classes > kFewElements)
  for (int64_t i = 0; i < count; ++i) {
    const T *row = rows[i], top = largest_of(row, classes);
    finish(i, top, rest_of_exponentials(row, classes, top), row[labels[i]]);
  }
}

template <class T>
void backward(const CrossEntropyProblem &problem, const dnnops_tensor *inputs, const Labels &labels,
              const dnnops_tensor &output) {
  const dnnops_tensor &g = inputs[0], &x = inputs[1], &statistics = inputs[3];
  T *result = static_cast<T *>(output.data);
  const int64_t count = problem.count, classes = problem.classes;
  const Rows<T> rows(x, problem);
  const auto read = [](const dnnops_tensor &from, int64_t i) {
    T value;
    std::memcpy(&value, static_cast<const char *>(from.data) + i * from.strides[0], sizeof value);
    return value;
  };
  const auto by_cost = [&](int64_t i) { return read(g, g.shape[0] == 1 ? 0 : i); };
  if (problem.row_step == 0) {  // the sum of the gradients at all labels
    std::vector<T> at_label(classes);
    std::vector<double> sum(classes);
    for (int64_t i = 0; i < count; ++i) {
      backward_row(rows[0], classes, labels[i], read(statistics, i), by_cost(i), at_label.data());
      for (int64_t k = 0; k < classes; ++k) sum[k] += at_label[k];
    }
    std::copy(sum.begin(), sum.end(), result);
    return;
  }
  std::fill_n(result + count * classes, (problem.rows - count) * classes, (T)0);
  if (classes < kShort) {
#pragma omp parallel for if (count * classes > kFewElements)
    for (int64_t begin = 0; begin < count; begin += kColumns) {
      const int64_t width = std::min(kColumns, count - begin);
      T columns[kShort * kColumns], gs[kColumns];
      int64_t chosen[kColumns];
      for (int64_t j = 0; j < width; ++j) {
        const T *row = rows[begin + j];
        for (int64_t k = 0; k < classes; ++k) columns[k * kColumns + j] = row[k];
        chosen[j] = labels[begin + j];
        gs[j] = by_cost(begin + j);
      }
      backward_short_rows(columns, classes, width, chosen, gs, result + begin * classes);
    }
    return;
  }
#pragma omp parallel for if (count * classes > kFewElements)
  for (int64_t i = 0; i < count; ++i)
    backward_row(rows[i], classes, labels[i], read(statistics, i), by_cost(i), result + i * classes);
}

// Inputs: x, labels.
struct Params {
  int64_t rows;  // one of CrossEntropyRows
  static const char *op() { return "OneDnnCrossEntropy"; }
  static int input_count() { return 2; }
};

// Inputs: the gradient with respect to the costs, x, labels, statistics.
struct GradParams {
  int64_t rows;
  static const char *op() { return "OneDnnCrossEntropyGrad"; }
  static int input_count() { return 4; }
};

void check_dtype(const dnnops_tensor &x) {
  if (x.dtype != DNNOPS_FLOAT32 && x.dtype != DNNOPS_FLOAT64)
    fail(DNNOPS_TYPE_ERROR, "x has to be float32 or float64, got %s", dtype_name(x.dtype));
}

void shape(const OpCall<Params> &call) {
  const dnnops_tensor &x = call.inputs[0];
  check_dtype(x);
  cross_entropy_shapes(cross_entropy_problem(call.params.rows, x, call.inputs[1]), x, call.outputs);
}

void shape(const OpCall<GradParams> &call) {
  check_dtype(call.inputs[1]);
  cross_entropy_grad_problem(call.params.rows, call.inputs);
  set_output(call.outputs[0], call.inputs[1]);
}

void run(const OpCall<Params> &call) {
  const dnnops_tensor &x = call.inputs[0], &given = call.inputs[1];
  const CrossEntropyProblem problem = cross_entropy_problem(call.params.rows, x, given);
  const Labels labels(given, problem);
  for_float_dtype(x.dtype, [&](auto zero) { forward<decltype(zero)>(problem, x, labels, call.outputs); });
}

void run(const OpCall<GradParams> &call) {
  const CrossEntropyProblem problem = cross_entropy_grad_problem(call.params.rows, call.inputs);
  const Labels labels(call.inputs[2], problem);
  for_float_dtype(call.inputs[1].dtype, [&](auto zero) {
    backward<decltype(zero)>(problem, call.inputs, labels, call.outputs[0]);
  });
}

}  // namespace

DNNOPS_OP(onednn_cross_entropy, Params, shape, run)
DNNOPS_OP(onednn_cross_entropy_grad, GradParams, shape, run)

}  // namespace dnnops
