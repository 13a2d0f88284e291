// A batch of labels for the CTC loss, checked and with the padding removed.
#ifndef DNNOPS_CTC_PROBLEM_HPP
#define DNNOPS_CTC_PROBLEM_HPP

#include <algorithm>
#include <vector>

#include "shapes.hpp"

namespace dnnops {

// Inputs: activations (step, batch, class), labels (batch, symbol), input lengths, label lengths.
// Outputs: costs, gradients.
struct CtcWords {
  int64_t has_label_lengths, has_gradients;
  int input_count() const { return has_label_lengths ? 4 : 3; }
};

inline int64_t integer_at(const dnnops_tensor &tensor, int64_t i, int64_t j = 0) {
  const char *place = static_cast<const char *>(tensor.data) + i * tensor.strides[0];
  if (tensor.ndim == 2) place += j * tensor.strides[1];
  return tensor.dtype == DNNOPS_INT32 ? *reinterpret_cast<const int32_t *>(place)
                                      : *reinterpret_cast<const int64_t *>(place);
}

// The labels without padding, and the number of valid steps of each sequence.
struct CtcBatch {
  std::vector<int64_t> symbols, begins, steps;  // label n is symbols[begins[n]] to symbols[begins[n + 1] - 1]
  int64_t longest_label = 0, most_steps = 0, work = 0;

  CtcBatch(const CtcWords &params, const dnnops_tensor *inputs) : begins{0} {
    const int64_t all_steps = inputs[0].shape[0], batch = inputs[0].shape[1], classes = inputs[0].shape[2];
    const int64_t columns = inputs[1].shape[1];
    for (int64_t n = 0; n < batch; ++n) {
      steps.push_back(integer_at(inputs[2], n));
      if (steps[n] < 0 || steps[n] > all_steps)
        fail(DNNOPS_VALUE_ERROR, "input_lengths[%lld] is %lld, expected 0 to %lld, the steps that activations have",
             (long long)n, (long long)steps[n], (long long)all_steps);
      const int64_t given = params.has_label_lengths ? integer_at(inputs[3], n) : columns;
      if (given < 0 || given > columns)
        fail(DNNOPS_VALUE_ERROR, "label_lengths[%lld] is %lld, expected 0 to %lld, the columns that labels have",
             (long long)n, (long long)given, (long long)columns);
      for (int64_t k = 0; k < given; ++k) {
        const int64_t symbol = integer_at(inputs[1], n, k);
        if (symbol < 0 && !params.has_label_lengths) continue;
        if (symbol < 1 || symbol >= classes)
          fail(DNNOPS_VALUE_ERROR,
               "labels[%lld, %lld] is %lld, outside the alphabet: activations have %lld classes, of which 0 is the "
               "blank",
               (long long)n, (long long)k, (long long)symbol, (long long)classes);
        symbols.push_back(symbol);
      }
      begins.push_back((int64_t)symbols.size());
      const int64_t length = begins[n + 1] - begins[n];
      int64_t repeats = 0;
      for (int64_t k = begins[n] + 1; k < begins[n + 1]; ++k) repeats += symbols[k] == symbols[k - 1];
      if (steps[n] < length + repeats)
        fail(DNNOPS_VALUE_ERROR,
             "batch entry %lld: a label of %lld symbols, %lld of them repeated, takes %lld steps or more, and "
             "input_lengths[%lld] is %lld",
             (long long)n, (long long)length, (long long)repeats, (long long)(length + repeats), (long long)n,
             (long long)steps[n]);
      longest_label = std::max(longest_label, length);
      most_steps = std::max(most_steps, steps[n]);
      work += steps[n] * (classes + 4 * length);
    }
  }
};

inline void check_integers(const char *name, const dnnops_tensor &tensor, int64_t ndim, int64_t batch) {
  if ((tensor.dtype != DNNOPS_INT32 && tensor.dtype != DNNOPS_INT64) || tensor.ndim != ndim)
    fail(DNNOPS_TYPE_ERROR, "%s has to be an int32 or int64 array of %lld dimensions", name, (long long)ndim);
  if (tensor.shape[0] != batch)
    fail(DNNOPS_VALUE_ERROR, "%s has %lld entries, expected %lld, one for each sequence of activations", name,
         (long long)tensor.shape[0], (long long)batch);
}

// Checks the shapes and the integer dtypes. The dtype of the activations is checked elsewhere.
inline void check_ctc_operands(const CtcWords &params, const dnnops_tensor *inputs) {
  const dnnops_tensor &activations = inputs[0];
  if (activations.ndim != 3)
    fail(DNNOPS_TYPE_ERROR, "activations have to be an array (step, batch, class)");
  if (activations.shape[2] == 0) fail(DNNOPS_VALUE_ERROR, "activations have no classes, not even the blank");
  check_integers("labels", inputs[1], 2, activations.shape[1]);
  check_integers("input_lengths", inputs[2], 1, activations.shape[1]);
  if (params.has_label_lengths) check_integers("label_lengths", inputs[3], 1, activations.shape[1]);
}

}  // namespace dnnops
#endif
