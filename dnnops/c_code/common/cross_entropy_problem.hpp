// Checks that the cross-entropies of both libraries share.
#ifndef DNNOPS_CROSS_ENTROPY_PROBLEM_HPP
#define DNNOPS_CROSS_ENTROPY_PROBLEM_HPP

#include "shapes.hpp"

namespace dnnops {

struct CrossEntropyProblem {
  int64_t rows, classes;  // of the scores
  int64_t labels;         // the number of labels
  int64_t count;          // the number of results: only the first `count` rows have a label
  int64_t label_step;     // 0 if one label serves all rows
  int64_t row_step;       // 0 if one row is read at all labels
};

inline bool is_label(const dnnops_tensor &labels) {
  return labels.ndim == 1 && (labels.dtype == DNNOPS_INT32 || labels.dtype == DNNOPS_INT64);
}

// Which rows have a result.
enum CrossEntropyRows : int64_t {
  LABELLED_ROWS = 0,  // as many leading rows as there are labels
  EVERY_ROW = 1,      // all rows, each with its own label
  EVERY_ROW_OR_ONE = 2,  // all rows, one label for all of them, or one row for all labels, as arange(rows) does
};

inline CrossEntropyProblem cross_entropy_problem(int64_t which, const dnnops_tensor &x, const dnnops_tensor &labels) {
  if (x.ndim != 2) fail(DNNOPS_TYPE_ERROR, "x has to be a matrix, got %lld dimensions", (long long)x.ndim);
  if (!is_label(labels)) fail(DNNOPS_TYPE_ERROR, "labels have to be an int32 or int64 vector");
  CrossEntropyProblem problem = {x.shape[0], x.shape[1], labels.shape[0], 0, 1, 1};
  if (which == EVERY_ROW_OR_ONE && problem.rows == 1 && problem.labels != 1) {
    problem.count = problem.labels;
    problem.row_step = 0;
    return problem;
  }
  const bool every_row = which != LABELLED_ROWS;
  problem.count = every_row ? problem.rows : problem.labels;
  if (which == EVERY_ROW_OR_ONE && problem.labels == 1)
    problem.label_step = 0;
  else if (every_row && problem.labels != problem.rows)
    fail(DNNOPS_INDEX_ERROR, "%lld labels for %lld rows", (long long)problem.labels, (long long)problem.rows);
  if (problem.count > problem.rows)
    fail(DNNOPS_INDEX_ERROR, "%lld labels, but only %lld rows", (long long)problem.labels, (long long)problem.rows);
  return problem;
}

inline int64_t statistics_dtype(const dnnops_tensor &x) {
  return x.dtype == DNNOPS_FLOAT64 ? DNNOPS_FLOAT64 : DNNOPS_FLOAT32;
}

// The dtype of the costs is that of the scores, except that it may be float32 if these have 16 bits.
inline int64_t costs_dtype(const dnnops_tensor &x, bool float32_costs) {
  return float32_costs && item_size(x.dtype) == 2 ? DNNOPS_FLOAT32 : x.dtype;
}

inline void cross_entropy_shapes(const CrossEntropyProblem &problem, const dnnops_tensor &x, dnnops_tensor *outputs,
                                 bool float32_costs = false) {
  set_output(outputs[0], costs_dtype(x, float32_costs), {problem.count});
  set_output(outputs[1], statistics_dtype(x), {problem.count, 2});
}

// Inputs: the gradient with respect to the costs, x, labels, statistics.
inline CrossEntropyProblem cross_entropy_grad_problem(int64_t which, const dnnops_tensor *inputs,
                                                      bool float32_costs = false) {
  const dnnops_tensor &g = inputs[0], &x = inputs[1], &statistics = inputs[3];
  const CrossEntropyProblem problem = cross_entropy_problem(which, x, inputs[2]);
  const int64_t dtype = costs_dtype(x, float32_costs);
  if (g.ndim != 1 || g.dtype != dtype || (g.shape[0] != problem.count && g.shape[0] != 1))
    fail(DNNOPS_VALUE_ERROR, "g has to be a %s vector of %lld elements, or one", dtype_name(dtype),
         (long long)problem.count);
  if (statistics.ndim != 2 || statistics.dtype != statistics_dtype(x) || statistics.shape[0] != problem.count ||
      statistics.shape[1] != 2)
    fail(DNNOPS_VALUE_ERROR, "statistics have to be a %s matrix of shape (%lld, 2)", dtype_name(statistics_dtype(x)),
         (long long)problem.count);
  return problem;
}

}  // namespace dnnops
#endif
