// The CTC loss of a batch and its gradient with respect to the activations, in dnnops loops; oneDNN
// does not provide it.
#include <omp.h>

#include <algorithm>

#include "../../common/ctc_problem.hpp"
#include "../../common/op.hpp"
#include "ctc_loops.hpp"
#include "../base/plan.hpp"

namespace dnnops {
namespace {

struct Params : CtcWords {
  static const char *op() { return "OneDnnCTC"; }
};

template <class T>
void run_in(const OpCall<Params> &call) {
  const Params &params = call.params;
  const CtcBatch batch(params, call.inputs);
  const dnnops_tensor &activations = call.inputs[0], *outputs = call.outputs;
  const int64_t count = activations.shape[1], classes = activations.shape[2];
  if (count == 0) return;
  const int64_t threads = batch.work > 4096 ? std::min(thread_count(), count) : 1;
  ctc::Scratch layout(batch.most_steps, classes, batch.longest_label, params.has_gradients);
  char *const memory = thread_scratch(threads * layout.bytes());
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
      sequence.gradient = params.has_gradients ? static_cast<T *>(outputs[1].data) + n * classes : nullptr;
      sequence.gradient_stride = count * classes;
      costs[n] = (T)ctc::sequence_cost(sequence, scratch);
    }
  }
}

void shape(const OpCall<Params> &call) {
  const dnnops_tensor &activations = call.inputs[0];
  if (activations.ndim != 3 || (activations.dtype != DNNOPS_FLOAT32 && activations.dtype != DNNOPS_FLOAT64))
    fail(DNNOPS_TYPE_ERROR, "activations have to be a float32 or float64 array (step, batch, class)");
  check_ctc_operands(call.params, call.inputs);
  set_output(call.outputs[0], activations.dtype, {activations.shape[1]});
  if (call.params.has_gradients) set_output(call.outputs[1], activations);
}

void run(const OpCall<Params> &call) {
  for_float_dtype(call.inputs[0].dtype, [&](auto zero) { run_in<decltype(zero)>(call); });
}

}  // namespace

DNNOPS_OP(onednn_ctc, Params, shape, run)

}  // namespace dnnops
