// The functions of the recurrent network Ops, forward and gradient.
#include "rnn_problem.hpp"

namespace dnnops::rnn {
namespace {

void check_all(const Problem &p, const dnnops_tensor *inputs) {
  const int64_t dtype = inputs[1].dtype;
  if (dtype != DNNOPS_FLOAT32 && dtype != DNNOPS_FLOAT64)
    fail(DNNOPS_TYPE_ERROR, "x is %s, expected float32 or float64", dtype_name(dtype));
  check_operands(p, inputs);
}

void forward_shape(const Problem &p, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  check_all(p, inputs);
  set_forward_shapes(p, inputs, outputs);
  if (p.flag) set_output(outputs[2 + p.has_cell()], inputs[1].dtype, {reserve(p)});
}

void backward_shape(const Problem &p, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  check_all(p, inputs);
  check_operand("reserve", inputs[p.forward_operands() + 1], inputs[1].dtype, {reserve(p)});
  set_backward_shapes(p, inputs, outputs);
}

// Calls body(problem). A failure's message describes the operands.
template <class Body>
int call(bool is_forward, const int64_t *words, const dnnops_tensor *inputs, Body &&body) {
  return guarded(is_forward ? "OneDnnRNNForward" : "OneDnnRNNBackward", inputs, operand_count(is_forward, words),
                 [&] { body(Problem(words, inputs)); });
}

}  // namespace
}  // namespace dnnops::rnn

using namespace dnnops;

DNNOPS_EXPORT int dnnops_onednn_rnn_forward_shape(const dnnops_context *, const int64_t *words,
                                                  const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return rnn::call(true, words, inputs, [&](const rnn::Problem &p) { rnn::forward_shape(p, inputs, outputs); });
}
DNNOPS_EXPORT int dnnops_onednn_rnn_forward(const dnnops_context *, const int64_t *words, const dnnops_tensor *inputs,
                                            dnnops_tensor *outputs) {
  return rnn::call(true, words, inputs, [&](const rnn::Problem &p) {
    (inputs[1].dtype == DNNOPS_FLOAT32 ? rnn::forward<float> : rnn::forward<double>)(p, inputs, outputs);
  });
}

DNNOPS_EXPORT int dnnops_onednn_rnn_backward_shape(const dnnops_context *, const int64_t *words,
                                                   const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return rnn::call(false, words, inputs, [&](const rnn::Problem &p) { rnn::backward_shape(p, inputs, outputs); });
}
DNNOPS_EXPORT int dnnops_onednn_rnn_backward(const dnnops_context *, const int64_t *words, const dnnops_tensor *inputs,
                                             dnnops_tensor *outputs) {
  return rnn::call(false, words, inputs, [&](const rnn::Problem &p) {
    (inputs[1].dtype == DNNOPS_FLOAT32 ? rnn::backward<float> : rnn::backward<double>)(p, inputs, outputs);
  });
}
