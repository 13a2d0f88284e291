// The CTC loss of a batch and its gradient by the activations.  oneDNN has none: these are loops of our own.
#include <omp.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "ctc_loops.hpp"
#include "plan.hpp"

namespace dnnops {
namespace {

// params: whether there are label lengths; whether gradients are asked for.
// Inputs: activations (step, batch, class), labels (batch, symbol), input lengths, label lengths.
// Outputs: costs, gradients.
int input_count(const int64_t *params) { return params[0] ? 4 : 3; }

// More scratch memory than this is given back after a call.
constexpr size_t kKeptBytes = size_t(64) << 20;

int64_t integer_at(const dnnops_tensor &tensor, int64_t i, int64_t j = 0) {
  const char *place = static_cast<const char *>(tensor.data) + i * tensor.strides[0];
  if (tensor.ndim == 2) place += j * tensor.strides[1];
  return tensor.dtype == DNNOPS_INT32 ? *reinterpret_cast<const int32_t *>(place)
                                      : *reinterpret_cast<const int64_t *>(place);
}

// The labels without padding, and how many steps of each sequence count.
struct Batch {
  std::vector<int64_t> symbols, begins, steps;  // the label of n is symbols[begins[n]] to symbols[begins[n + 1]]
  int64_t longest_label = 0, most_steps = 0, work = 0;

  Batch(const int64_t *params, const dnnops_tensor *inputs) : begins{0} {
    const int64_t all_steps = inputs[0].shape[0], batch = inputs[0].shape[1], classes = inputs[0].shape[2];
    const int64_t columns = inputs[1].shape[1];
    for (int64_t n = 0; n < batch; ++n) {
      steps.push_back(integer_at(inputs[2], n));
      if (steps[n] < 0 || steps[n] > all_steps)
        fail(DNNOPS_VALUE_ERROR, "input_lengths[%lld] is %lld, expected 0 to %lld, the steps that activations have",
             (long long)n, (long long)steps[n], (long long)all_steps);
      const int64_t given = params[0] ? integer_at(inputs[3], n) : columns;
      if (given < 0 || given > columns)
        fail(DNNOPS_VALUE_ERROR, "label_lengths[%lld] is %lld, expected 0 to %lld, the columns that labels have",
             (long long)n, (long long)given, (long long)columns);
      for (int64_t k = 0; k < given; ++k) {
        const int64_t symbol = integer_at(inputs[1], n, k);
        if (symbol < 0 && !params[0]) continue;
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

template <class T>
void run(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const Batch batch(params, inputs);
  const dnnops_tensor &activations = inputs[0];
  const int64_t count = activations.shape[1], classes = activations.shape[2];
  if (count == 0) return;
  const int64_t threads = batch.work > 4096 ? std::min(thread_count(), count) : 1;
  ctc::Scratch layout(batch.most_steps, classes, batch.longest_label, params[1]);
  const size_t bytes = threads * layout.bytes();
  std::unique_ptr<char[]> temporary;
  if (bytes > kKeptBytes) temporary.reset(new char[bytes]);
  char *const memory = temporary ? temporary.get() : thread_scratch(bytes);
  T *const costs = static_cast<T *>(outputs[0].data);
#pragma omp parallel num_threads(threads)
  {
    ctc::Scratch scratch = layout;
    scratch.place(memory + omp_get_thread_num() * layout.bytes());
#pragma omp for schedule(dynamic)
    for (int64_t n = 0; n < count; ++n) {
      ctc::Sequence<T> sequence;
      sequence.activations = static_cast<const char *>(activations.data) + n * activations.strides[1];
      sequence.step_stride = activations.strides[0];
      sequence.class_stride = activations.strides[2];
      sequence.steps = batch.steps[n];
      sequence.all_steps = activations.shape[0];
      sequence.classes = classes;
      sequence.label = batch.symbols.data() + batch.begins[n];
      sequence.length = batch.begins[n + 1] - batch.begins[n];
      sequence.gradient = params[1] ? static_cast<T *>(outputs[1].data) + n * classes : nullptr;
      sequence.gradient_stride = count * classes;
      costs[n] = (T)ctc::sequence_cost(sequence, scratch);
    }
  }
}

void check_integers(const char *name, const dnnops_tensor &tensor, int64_t ndim, int64_t batch) {
  if ((tensor.dtype != DNNOPS_INT32 && tensor.dtype != DNNOPS_INT64) || tensor.ndim != ndim)
    fail(DNNOPS_TYPE_ERROR, "%s has to be an int32 or int64 array of %lld dimensions", name, (long long)ndim);
  if (tensor.shape[0] != batch)
    fail(DNNOPS_VALUE_ERROR, "%s has %lld entries, expected %lld, one for each sequence of activations", name,
         (long long)tensor.shape[0], (long long)batch);
}

void shape(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const dnnops_tensor &activations = inputs[0];
  if (activations.ndim != 3 || (activations.dtype != DNNOPS_FLOAT32 && activations.dtype != DNNOPS_FLOAT64))
    fail(DNNOPS_TYPE_ERROR, "activations have to be a float32 or float64 array (step, batch, class)");
  if (activations.shape[2] == 0) fail(DNNOPS_VALUE_ERROR, "activations have no classes, not even the blank");
  check_integers("labels", inputs[1], 2, activations.shape[1]);
  check_integers("input_lengths", inputs[2], 1, activations.shape[1]);
  if (params[0]) check_integers("label_lengths", inputs[3], 1, activations.shape[1]);
  set_output(outputs[0], activations.dtype, {activations.shape[1]});
  if (params[1]) set_output(outputs[1], activations);
}

}  // namespace
}  // namespace dnnops

using namespace dnnops;

DNNOPS_EXPORT int dnnops_onednn_ctc_shape(const dnnops_context *, const int64_t *params, const dnnops_tensor *inputs,
                                          dnnops_tensor *outputs) {
  return guarded("OneDnnCTC", inputs, input_count(params), [&] { shape(params, inputs, outputs); });
}
DNNOPS_EXPORT int dnnops_onednn_ctc(const dnnops_context *, const int64_t *params, const dnnops_tensor *inputs,
                                    dnnops_tensor *outputs) {
  return guarded("OneDnnCTC", inputs, input_count(params), [&] {
    if (inputs[0].dtype == DNNOPS_FLOAT64)
      run<double>(params, inputs, outputs);
    else
      run<float>(params, inputs, outputs);
  });
}
