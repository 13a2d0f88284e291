// Recurrent networks and their gradient: the Ops' functions, with the checks of operands.
#include "rnn_problem.hpp"

namespace dnnops::rnn {
namespace {

void check(const char *name, const dnnops_tensor &operand, int64_t dtype, std::initializer_list<int64_t> shape) {
  if (operand.dtype != dtype)
    fail(DNNOPS_TYPE_ERROR, "%s is %s, expected %s", name, dtype_name(operand.dtype), dtype_name(dtype));
  const int64_t ndim = (int64_t)shape.size();
  if (operand.ndim != ndim || std::memcmp(operand.shape, shape.begin(), ndim * sizeof(int64_t)))
    fail(DNNOPS_VALUE_ERROR, "%s has shape %s, expected %s", name, list_of(operand.shape, operand.ndim).c_str(),
         list_of(shape.begin(), ndim).c_str());
}

void check_operands(const Problem &p, const dnnops_tensor *inputs) {
  const int64_t dtype = inputs[1].dtype;
  if (dtype != DNNOPS_FLOAT32 && dtype != DNNOPS_FLOAT64)
    fail(DNNOPS_TYPE_ERROR, "x is %s, expected float32 or float64", dtype_name(dtype));
  if (p.skip && p.input != p.hidden)
    fail(DNNOPS_VALUE_ERROR, "with input_mode skip the input's size has to be that of the hidden layer, %lld, got %lld",
         (long long)p.hidden, (long long)p.input);
  check("w", inputs[0], dtype, {p.parameters()});
  check("hx", inputs[2], dtype, {p.states(), p.batch, p.outputs});
  if (p.has_cell()) check("cx", inputs[p.cx_at()], dtype, {p.states(), p.batch, p.hidden});
  if (p.dropout > 0) check("seed", inputs[p.seed_at()], DNNOPS_INT64, {});
  if (!p.has_lengths) return;
  check("lengths", inputs[p.lengths_at()], DNNOPS_INT64, {p.batch});
  const Lengths lengths(p, inputs);
  for (int64_t b = 0; b < p.batch; ++b)
    if (lengths.of[b] < 1 || lengths.of[b] > p.steps)
      fail(DNNOPS_VALUE_ERROR, "lengths have to be between 1 and the number of steps, %lld, got %lld", (long long)p.steps,
           (long long)lengths.of[b]);
}

void forward_shape(const Problem &p, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  check_operands(p, inputs);
  const int64_t dtype = inputs[1].dtype;
  set_output(outputs[0], dtype, {p.steps, p.batch, p.width()});
  set_output(outputs[1], inputs[2]);
  if (p.has_cell()) set_output(outputs[2], inputs[p.cx_at()]);
  if (p.flag) set_output(outputs[2 + p.has_cell()], dtype, {p.reserve()});
}

void backward_shape(const Problem &p, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  check_operands(p, inputs);
  const int64_t dtype = inputs[1].dtype;
  const dnnops_tensor *others = inputs + p.forward_operands();
  check("y", others[0], dtype, {p.steps, p.batch, p.width()});
  check("reserve", others[1], dtype, {p.reserve()});
  check("gy", others[2], dtype, {p.steps, p.batch, p.width()});
  check("ghy", others[3], dtype, {p.states(), p.batch, p.outputs});
  if (p.has_cell()) check("gcy", others[4], dtype, {p.states(), p.batch, p.hidden});
  set_output(outputs[0], inputs[0]);
  set_output(outputs[1], inputs[2]);
  if (p.has_cell()) set_output(outputs[2], inputs[p.cx_at()]);
  if (p.flag) set_output(outputs[2 + p.has_cell()], inputs[1]);
}

// Calls body(problem) with the operands in the words of a failure.
template <class Body>
int call(bool is_forward, const int64_t *words, const dnnops_tensor *inputs, Body &&body) {
  const bool has_cell = words[0] == LSTM, has_dropout = words[6] != 0;
  const int count = 3 + has_cell + (words[7] != 0) + has_dropout + (is_forward ? 0 : 4 + has_cell);
  return guarded(is_forward ? "OneDnnRNNForward" : "OneDnnRNNBackward", inputs, count,
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
