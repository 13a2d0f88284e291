// The cross-entropy of a softmax's rows with labels, and its gradient, in loops of our own.
#include "../common/cross_entropy_problem.hpp"

#include <cmath>

#include "exponentials.hpp"
#include "plan.hpp"

namespace dnnops {
namespace {

constexpr int64_t kFewElements = 16384;  // are not worth several threads

bool is_every_row(const int64_t *params) { return params[0]; }

// The labels, none of them negative any more.
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

// A row whose elements follow each other: the array's own, or a copy.
template <class T>
const T *dense_row(const dnnops_tensor &x, int64_t row) {
  const char *begin = static_cast<const char *>(x.data) + row * x.strides[0];
  if (x.strides[1] == (int64_t)sizeof(T)) return reinterpret_cast<const T *>(begin);
  T *copy = reinterpret_cast<T *>(thread_scratch(x.shape[1] * sizeof(T)));
  for (int64_t i = 0; i < x.shape[1]; ++i) std::memcpy(copy + i, begin + i * x.strides[1], sizeof(T));
  return copy;
}

// Functions of their own for the loops below: a compiler can't keep in registers what a lambda has captured.

template <class T>
T sum_of_exponentials(const T *row, int64_t count, T top) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += exponential(row[i] - top);
  return sum;
}

template <class T>
void scaled_softmax(const T *row, int64_t count, T top, T log_sum, T g, T *result) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) result[i] = g * exponential(row[i] - top - log_sum);
}

// Outputs: the costs, and of each row the maximum and the logarithm of the sum of exponentials, the maximum subtracted.
template <class T>
void forward(const CrossEntropyProblem &problem, const dnnops_tensor &x, const Labels &labels, dnnops_tensor *outputs) {
  T *costs = static_cast<T *>(outputs[0].data), *statistics = static_cast<T *>(outputs[1].data);
#pragma omp parallel for if (problem.count * problem.classes > kFewElements)
  for (int64_t i = 0; i < problem.count; ++i) {
    const T *row = dense_row<T>(x, i);
    const T top = largest_of(row, problem.classes);
    const T log_sum = std::log(sum_of_exponentials(row, problem.classes, top));
    costs[i] = log_sum - (row[labels[i]] - top);
    statistics[2 * i] = top;
    statistics[2 * i + 1] = log_sum;
  }
}

template <class T>
void backward(const CrossEntropyProblem &problem, const dnnops_tensor *inputs, const Labels &labels,
              const dnnops_tensor &output) {
  const dnnops_tensor &g = inputs[0], &x = inputs[1], &statistics = inputs[3];
  T *result = static_cast<T *>(output.data);
#pragma omp parallel for if (problem.rows * problem.classes > kFewElements)
  for (int64_t i = 0; i < problem.rows; ++i) {
    T *row = result + i * problem.classes;
    if (i >= problem.count) {
      std::fill_n(row, problem.classes, (T)0);
      continue;
    }
    T by_cost, found[2];
    std::memcpy(&by_cost, static_cast<const char *>(g.data) + (g.shape[0] == 1 ? 0 : i * g.strides[0]), sizeof(T));
    const char *pair = static_cast<const char *>(statistics.data) + i * statistics.strides[0];
    for (int j = 0; j < 2; ++j) std::memcpy(found + j, pair + j * statistics.strides[1], sizeof(T));
    scaled_softmax(dense_row<T>(x, i), problem.classes, found[0], found[1], by_cost, row);
    row[labels[i]] -= by_cost;
  }
}

void check_dtype(const dnnops_tensor &x) {
  if (x.dtype != DNNOPS_FLOAT32 && x.dtype != DNNOPS_FLOAT64)
    fail(DNNOPS_TYPE_ERROR, "x has to be float32 or float64, got %s", dtype_name(x.dtype));
}

}  // namespace
}  // namespace dnnops

using namespace dnnops;

// Inputs: x, labels.  Params: whether each row has a result.
DNNOPS_EXPORT int dnnops_onednn_cross_entropy_shape(const dnnops_context *, const int64_t *params,
                                                    const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnCrossEntropy", inputs, 2, [&] {
    check_dtype(inputs[0]);
    cross_entropy_shapes(cross_entropy_problem(is_every_row(params), inputs[0], inputs[1]), inputs[0], outputs);
  });
}
DNNOPS_EXPORT int dnnops_onednn_cross_entropy(const dnnops_context *, const int64_t *params,
                                              const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnCrossEntropy", inputs, 2, [&] {
    const CrossEntropyProblem problem = cross_entropy_problem(is_every_row(params), inputs[0], inputs[1]);
    const Labels labels(inputs[1], problem);
    if (inputs[0].dtype == DNNOPS_FLOAT32)
      forward<float>(problem, inputs[0], labels, outputs);
    else
      forward<double>(problem, inputs[0], labels, outputs);
  });
}

DNNOPS_EXPORT int dnnops_onednn_cross_entropy_grad_shape(const dnnops_context *, const int64_t *params,
                                                         const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnCrossEntropyGrad", inputs, 4, [&] {
    check_dtype(inputs[1]);
    const CrossEntropyProblem problem = cross_entropy_grad_problem(is_every_row(params), inputs);
    outputs[0].dtype = inputs[1].dtype;
    outputs[0].ndim = 2;
    outputs[0].shape[0] = problem.rows;
    outputs[0].shape[1] = problem.classes;
  });
}
DNNOPS_EXPORT int dnnops_onednn_cross_entropy_grad(const dnnops_context *, const int64_t *params,
                                                   const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnCrossEntropyGrad", inputs, 4, [&] {
    const CrossEntropyProblem problem = cross_entropy_grad_problem(is_every_row(params), inputs);
    const Labels labels(inputs[2], problem);
    if (inputs[1].dtype == DNNOPS_FLOAT32)
      backward<float>(problem, inputs, labels, outputs[0]);
    else
      backward<double>(problem, inputs, labels, outputs[0]);
  });
}
