// A recurrent network with its sizes: what the parameters and the operands of its Ops say.
#ifndef DNNOPS_ONEDNN_RNN_PROBLEM_HPP
#define DNNOPS_ONEDNN_RNN_PROBLEM_HPP

#include <algorithm>
#include <cstring>
#include <vector>

#include "plan.hpp"

namespace dnnops::rnn {

enum Mode { RELU, TANH, LSTM, GRU };

// Where the parameters of one direction of one layer begin, in elements.
struct PseudoLayer {
  int64_t inputs, matrices, recurrent, projection, input_biases, recurrent_biases;
};

// Words: mode, hidden size, layers, bidirectional, skipped input, projection's size, dropout's bits, lengths, and a
// flag of the Op's own.
struct Problem {
  Mode mode;
  int64_t hidden, layers, directions, projected, steps, batch, input, outputs, gates;
  bool skip, has_lengths, flag;
  double dropout;

  Problem(const int64_t *words, const dnnops_tensor *inputs)
      : mode((Mode)words[0]),
        hidden(words[1]),
        layers(words[2]),
        directions(words[3] ? 2 : 1),
        projected(words[5]),
        outputs(projected ? projected : hidden),
        gates(mode == LSTM ? 4 : mode == GRU ? 3 : 1),
        skip(words[4]),
        has_lengths(words[7]),
        flag(words[8]) {
    std::memcpy(&dropout, words + 6, sizeof dropout);
    const dnnops_tensor &x = inputs[1];
    if (x.ndim != 3) fail(DNNOPS_TYPE_ERROR, "x has to have 3 dimensions, got %lld", (long long)x.ndim);
    steps = x.shape[0], batch = x.shape[1], input = x.shape[2];
  }

  bool has_cell() const { return mode == LSTM; }
  int64_t states() const { return layers * directions; }
  int64_t rows() const { return gates * hidden; }
  int64_t width() const { return directions * outputs; }
  int64_t positions() const { return steps * batch; }
  // The numbers that a pseudo-layer keeps of a position.
  int64_t saved() const { return mode == LSTM ? 5 * hidden : mode == GRU ? 4 * hidden : 0; }
  int64_t reserve() const { return positions() * (states() * saved() + (layers - 1) * width()); }
  bool skips(int64_t layer) const { return skip && layer == 0; }

  // Operands: w, x, hx and, where there are any, cx, lengths, seed; then the gradient's.
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

// How long the sequences are.
struct Lengths {
  std::vector<int64_t> of;
  int64_t steps;
  bool given;

  Lengths(const Problem &p, const dnnops_tensor *inputs) : of(p.batch, p.steps), steps(p.steps), given(p.has_lengths) {
    if (given) read_vector("lengths", inputs[p.lengths_at()], p.batch, of.data());
  }
  bool active(int64_t t, int64_t b) const { return t < of[b]; }
  // The rows up to the last one that is active.
  int64_t rows(int64_t t) const {
    int64_t rows = (int64_t)of.size();
    while (rows && !active(t, rows - 1)) --rows;
    return rows;
  }
  int64_t first(int64_t b, bool backward) const { return backward ? of[b] - 1 : 0; }
  int64_t last(int64_t b, bool backward) const { return backward ? 0 : of[b] - 1; }
};

// Pieces of this thread's scratch memory, all asked for before the first is used.
class Scratch {
 public:
  explicit Scratch(size_t item) : item_(item) {}
  int add(int64_t elements) {
    offsets_.push_back(bytes_);
    bytes_ += ((size_t)elements * item_ + 63) / 64 * 64;
    return (int)offsets_.size() - 1;
  }
  void allocate() { data_ = thread_scratch(bytes_); }
  template <class T>
  T *get(int piece) const {
    return reinterpret_cast<T *>(data_ + offsets_[piece]);
  }

 private:
  size_t item_, bytes_ = 0;
  std::vector<size_t> offsets_;
  char *data_ = nullptr;
};

// Operands as contiguous arrays: copies where they lie otherwise.
template <class T>
class Operands {
 public:
  Operands(Scratch &scratch, const dnnops_tensor *inputs, int count) : scratch_(scratch), inputs_(inputs) {
    for (int i = 0; i < count; ++i)
      pieces_.push_back(is_contiguous(inputs[i]) ? -1 : scratch.add(element_count(inputs[i].shape, inputs[i].ndim)));
  }
  void pack_all() {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      data_.push_back(static_cast<T *>(inputs_[i].data));
      if (pieces_[i] < 0) continue;
      data_.back() = scratch_.get<T>(pieces_[i]);
      pack(inputs_[i], data_.back(), false);
    }
  }
  const T *operator[](int i) const { return data_[i]; }

 private:
  Scratch &scratch_;
  const dnnops_tensor *inputs_;
  std::vector<int> pieces_;
  std::vector<T *> data_;
};

inline int64_t seed_of(const Problem &p, const dnnops_tensor *inputs) {
  return p.dropout > 0 ? *static_cast<const int64_t *>(inputs[p.seed_at()].data) : 0;
}

// In rnn_forward.cpp and rnn_backward.cpp.
template <class T>
void forward(const Problem &problem, const dnnops_tensor *inputs, dnnops_tensor *outputs);
template <class T>
void backward(const Problem &problem, const dnnops_tensor *inputs, dnnops_tensor *outputs);

}  // namespace dnnops::rnn
#endif
