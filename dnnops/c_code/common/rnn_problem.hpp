// A recurrent network as both libraries see it: its sizes, from its Ops' parameters and operands, and their
// checks.
#ifndef DNNOPS_RNN_PROBLEM_HPP
#define DNNOPS_RNN_PROBLEM_HPP

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "shapes.hpp"

namespace dnnops::rnn {

// In cuDNN's order.
enum Mode { RELU, TANH, LSTM, GRU };

// Where the parameters of one direction of one layer begin, in elements.
struct PseudoLayer {
  int64_t inputs, matrices, recurrent, projection, input_biases, recurrent_biases;
};

struct Words {
  int64_t mode, hidden, layers, is_bidirectional, skips_input, projected;
  double dropout;
  int64_t has_lengths, flag;  // the flag is specific to the Op

  int operand_count(bool is_forward) const {
    const bool has_cell = mode == LSTM;
    return 3 + has_cell + (has_lengths != 0) + (dropout > 0) + (is_forward ? 0 : 4 + has_cell);
  }
};

struct Problem {
  Mode mode;
  int64_t hidden, layers, directions, projected, steps, batch, input, outputs, gates;
  bool skip, has_lengths, flag;
  double dropout;

  Problem(const Words &words, const dnnops_tensor *inputs)
      : mode((Mode)words.mode),
        hidden(words.hidden),
        layers(words.layers),
        directions(words.is_bidirectional ? 2 : 1),
        projected(words.projected),
        outputs(projected ? projected : hidden),
        gates(mode == LSTM ? 4 : mode == GRU ? 3 : 1),
        skip(words.skips_input),
        has_lengths(words.has_lengths),
        flag(words.flag),
        dropout(words.dropout) {
    const dnnops_tensor &x = inputs[1];
    if (x.ndim != 3) fail(DNNOPS_TYPE_ERROR, "x has to have 3 dimensions, got %lld", (long long)x.ndim);
    steps = x.shape[0], batch = x.shape[1], input = x.shape[2];
  }

  bool has_cell() const { return mode == LSTM; }
  int64_t states() const { return layers * directions; }
  int64_t rows() const { return gates * hidden; }
  int64_t width() const { return directions * outputs; }
  int64_t positions() const { return steps * batch; }
  bool skips(int64_t layer) const { return skip && layer == 0; }

  // Operands: w, x, hx and, if present, cx, lengths, seed; then those of the gradient.
  int cx_at() const { return 3; }
  int lengths_at() const { return 3 + has_cell(); }
  int seed_at() const { return lengths_at() + has_lengths; }
  int forward_operands() const { return seed_at() + (dropout > 0); }

  int64_t columns(int64_t layer) const { return layer ? width() : skip ? 0 : input; }
  int64_t matrices_of(int64_t layer) const { return rows() * (columns(layer) + outputs) + projected * hidden; }
  int64_t all_matrices() const { return directions * (matrices_of(0) + (layers - 1) * matrices_of(1)); }
  int64_t parameters() const { return all_matrices() + states() * 2 * rows(); }

  PseudoLayer part(int64_t number) const {
    const int64_t layer = number / directions;
    int64_t begin = 0;
    for (int64_t n = 0; n < number; ++n) begin += matrices_of(n / directions);
    const int64_t recurrent = begin + rows() * columns(layer), biases = all_matrices() + number * 2 * rows();
    return {columns(layer), begin, recurrent, recurrent + rows() * outputs, biases, biases + rows()};
  }
};

inline int64_t seed_of(const Problem &p, const dnnops_tensor *inputs) {
  return p.dropout > 0 ? *static_cast<const int64_t *>(inputs[p.seed_at()].data) : 0;
}

// The length of each sequence.
inline std::vector<int64_t> lengths_of(const Problem &p, const dnnops_tensor *inputs) {
  std::vector<int64_t> lengths(p.batch, p.steps);
  if (p.has_lengths) read_vector("lengths", inputs[p.lengths_at()], p.batch, lengths.data());
  return lengths;
}

inline void check_operand(const char *name, const dnnops_tensor &operand, int64_t dtype,
                          std::initializer_list<int64_t> shape) {
  if (operand.dtype != dtype)
    fail(DNNOPS_TYPE_ERROR, "%s is %s, expected %s", name, dtype_name(operand.dtype), dtype_name(dtype));
  const int64_t ndim = (int64_t)shape.size();
  if (operand.ndim != ndim || std::memcmp(operand.shape, shape.begin(), ndim * sizeof(int64_t)))
    fail(DNNOPS_VALUE_ERROR, "%s has shape %s, expected %s", name, list_of(operand.shape, operand.ndim).c_str(),
         list_of(shape.begin(), ndim).c_str());
}

// Checks the operands that both Ops have.
inline void check_operands(const Problem &p, const dnnops_tensor *inputs) {
  const int64_t dtype = inputs[1].dtype;
  if (p.skip && p.input != p.hidden)
    fail(DNNOPS_VALUE_ERROR, "with input_mode skip, the input size must equal the hidden size, %lld, got %lld",
         (long long)p.hidden, (long long)p.input);
  check_operand("w", inputs[0], dtype, {p.parameters()});
  check_operand("hx", inputs[2], dtype, {p.states(), p.batch, p.outputs});
  if (p.has_cell()) check_operand("cx", inputs[p.cx_at()], dtype, {p.states(), p.batch, p.hidden});
  if (p.dropout > 0) check_operand("seed", inputs[p.seed_at()], DNNOPS_INT64, {});
  if (!p.has_lengths) return;
  check_operand("lengths", inputs[p.lengths_at()], DNNOPS_INT64, {p.batch});
  for (int64_t length : lengths_of(p, inputs))
    if (length < 1 || length > p.steps)
      fail(DNNOPS_VALUE_ERROR, "lengths have to be between 1 and the number of steps, %lld, got %lld",
           (long long)p.steps, (long long)length);
}

// Sets the shapes of the results from checked operands, except the reserve's.
inline void set_forward_shapes(const Problem &p, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  set_output(outputs[0], inputs[1].dtype, {p.steps, p.batch, p.width()});
  set_output(outputs[1], inputs[2]);
  if (p.has_cell()) set_output(outputs[2], inputs[p.cx_at()]);
}

// Checks the gradient's additional operands, except the reserve. The flag says whether to compute the
// gradient with respect to x.
inline void set_backward_shapes(const Problem &p, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const int64_t dtype = inputs[1].dtype;
  const dnnops_tensor *others = inputs + p.forward_operands();
  check_operand("y", others[0], dtype, {p.steps, p.batch, p.width()});
  check_operand("gy", others[2], dtype, {p.steps, p.batch, p.width()});
  check_operand("ghy", others[3], dtype, {p.states(), p.batch, p.outputs});
  if (p.has_cell()) check_operand("gcy", others[4], dtype, {p.states(), p.batch, p.hidden});
  set_output(outputs[0], inputs[0]);
  set_output(outputs[1], inputs[2]);
  if (p.has_cell()) set_output(outputs[2], inputs[p.cx_at()]);
  if (p.flag) set_output(outputs[2 + p.has_cell()], inputs[1]);
}

}  // namespace dnnops::rnn
#endif
