// A recurrent network: one matrix product computes the input's part of all steps; the recurrent part is then
// added step by step.
#include "rnn_product.hpp"

namespace dnnops::rnn {
namespace {

template <class T>
struct Buffers {
  T *state, *recurrent, *cells, *bias;
};

// The distance from the gate sums of one sequence to those of the next.
int64_t sums_stride(const Problem &p) { return saved(p) ? saved(p) : p.width(); }

// One direction of a layer. Its arrays are those of the whole layer.
template <class T>
class Pass {
 public:
  Pass(const Problem &p, const Lengths &lengths, int64_t number, const T *w, const Buffers<T> &buffers,
       StepProduct<T> &recurrence)
      : p_(p),
        lengths_(lengths),
        number_(number),
        backward_(number % p.directions == 1),
        part_(p.part(number)),
        w_(w),
        buffers_(buffers),
        recurrence_(recurrence) {}

  // `kept` are the gates of this pseudo-layer, `y` is the output of the layer.
  void run(const T *below, const T *hx, const T *cx, T *kept, T *y, T *hy, T *cy) {
    const int64_t state_size = p_.batch * p_.outputs;
    kept_ = kept;
    y_ = y + (backward_ ? p_.outputs : 0);
    cx_ = cx;
    std::copy_n(hx, state_size, buffers_.state);
    make_bias();
    add_input(below);
    recurrence_.prepare(w_ + part_.recurrent);
    for (int64_t i = 0; i < p_.steps; ++i) step(backward_ ? p_.steps - 1 - i : i);
    std::copy_n(buffers_.state, state_size, hy);
    if (!p_.has_cell()) return;
    for (int64_t b = 0; b < p_.batch; ++b)
      std::copy_n(p_.steps ? cell(lengths_.last(b, backward_), b) : cx + b * p_.hidden, p_.hidden, cy + b * p_.hidden);
  }

 private:
  const T *cell(int64_t t, int64_t b) const { return kept_ + (t * p_.batch + b) * saved(p_) + 4 * p_.hidden; }
  // Where the gates are summed.
  T *sums(int64_t t) const { return saved(p_) ? kept_ + t * p_.batch * saved(p_) : y_ + t * p_.batch * p_.width(); }

  // Adds up the input and recurrent biases, except those of a GRU's last gate, which stay separate.
  void make_bias() {
    const T *input = w_ + part_.input_biases, *recurrent = w_ + part_.recurrent_biases;
    const int64_t both = p_.mode == GRU ? 2 * p_.hidden : p_.rows();
    for (int64_t j = 0; j < both; ++j) buffers_.bias[j] = input[j] + recurrent[j];
    if (p_.mode != GRU) return;
    std::copy_n(input + both, p_.hidden, buffers_.bias + both);
    std::copy_n(recurrent + both, p_.hidden, buffers_.bias + both + p_.hidden);
  }

  void add_input(const T *below) {
    const int64_t positions = p_.positions(), stride = sums_stride(p_);
    if (!p_.skips(number_ / p_.directions)) {
      multiply<T>(false, true, positions, p_.rows(), part_.inputs, below, part_.inputs, w_ + part_.matrices,
                  part_.inputs, 0, sums(0), stride);
      return;
    }
    T *to = sums(0);
#pragma omp parallel for if (positions * p_.rows() > 16384)
    for (int64_t i = 0; i < positions; ++i)
      for (int64_t gate = 0; gate < p_.gates; ++gate)
        std::copy_n(below + i * p_.hidden, p_.hidden, to + i * stride + gate * p_.hidden);
  }

  void step(int64_t t) {
    const int64_t rows = lengths_.rows(t), hidden = p_.hidden;
    recurrence_.run(rows, buffers_.state, p_.mode == GRU ? buffers_.recurrent : sums(t));
#pragma omp parallel for if (rows * hidden > 2048)
    for (int64_t b = 0; b < p_.batch; ++b) {
      T *out = p_.projected ? buffers_.cells + b * hidden : output(t, b), *kept = sums(t) + b * sums_stride(p_);
      if (!lengths_.active(t, b)) {
        if (saved(p_)) std::fill_n(kept, saved(p_), (T)0);
        std::fill_n(output(t, b), p_.outputs, (T)0);
        if (p_.projected) std::fill_n(out, hidden, (T)0);
        continue;
      }
      if (p_.mode == LSTM)
        lstm_step(hidden, buffers_.bias, cell_before(t, b), kept, out);
      else if (p_.mode == GRU)
        gru_step(hidden, buffers_.bias, buffers_.recurrent + b * row_pitch<T>(p_.rows()), buffers_.state + b * hidden,
                 kept, out);
      else
        plain_step(hidden, p_.mode == RELU, buffers_.bias, out);
      if (!p_.projected) std::copy_n(out, hidden, buffers_.state + b * hidden);
    }
    if (!p_.projected) return;
    multiply<T>(false, true, rows, p_.outputs, hidden, buffers_.cells, hidden, w_ + part_.projection, hidden, 0,
                output(t, 0), p_.width());
    for (int64_t b = 0; b < rows; ++b)
      if (lengths_.active(t, b)) std::copy_n(output(t, b), p_.outputs, buffers_.state + b * p_.outputs);
  }

  T *output(int64_t t, int64_t b) const { return y_ + (t * p_.batch + b) * p_.width(); }
  const T *cell_before(int64_t t, int64_t b) const {
    if (t == lengths_.first(b, backward_)) return cx_ + b * p_.hidden;
    return cell(backward_ ? t + 1 : t - 1, b);
  }

  const Problem &p_;
  const Lengths &lengths_;
  int64_t number_;
  bool backward_;
  PseudoLayer part_;
  const T *w_;
  Buffers<T> buffers_;
  StepProduct<T> &recurrence_;
  T *kept_ = nullptr, *y_ = nullptr;
  const T *cx_ = nullptr;
};

}  // namespace

// Outputs: y, hy, for an LSTM cy, and with the flag the reserve.
template <class T>
void forward(const Problem &p, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const Lengths lengths(p, inputs);
  const int64_t positions = p.positions(), between = positions * p.width();
  Scratch scratch(sizeof(T));
  Operands<T> operands(scratch, inputs, 3 + p.has_cell());
  // A GRU's last gate needs the recurrent part separately.
  const bool apart = p.mode == GRU;
  const int64_t pitch = apart ? row_pitch<T>(p.rows()) : sums_stride(p);
  StepProduct<T> recurrence(p, scratch, p.rows(), p.outputs, true, p.outputs, pitch, !apart);
  const int state = scratch.add(p.batch * p.outputs);
  const int recurrent = scratch.add(apart ? p.batch * pitch : 0);
  const int cells = scratch.add(p.projected ? p.batch * p.hidden : 0), bias = scratch.add(4 * p.hidden);
  // Without a reserve, only the gates of one pseudo-layer and the outputs of two layers are kept.
  const int gates = scratch.add(p.flag ? 0 : positions * saved(p));
  const int spare[2] = {scratch.add(p.flag || p.layers < 2 ? 0 : between), scratch.add(p.flag || p.layers < 3 ? 0 : between)};
  const int dropped = scratch.add(p.dropout > 0 ? between : 0);
  scratch.allocate();
  operands.pack_all();
  const Buffers<T> buffers = {scratch.get<T>(state), scratch.get<T>(recurrent), scratch.get<T>(cells),
                              scratch.get<T>(bias)};
  T *y = static_cast<T *>(outputs[0].data), *hy = static_cast<T *>(outputs[1].data);
  T *cy = p.has_cell() ? static_cast<T *>(outputs[2].data) : nullptr;
  T *reserve = p.flag ? static_cast<T *>(outputs[2 + p.has_cell()].data) : nullptr;
  T *reserved_outputs = reserve ? reserve + p.states() * positions * saved(p) : nullptr;
  const T *below = operands[1];
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    T *out = layer == p.layers - 1 ? y : reserve ? reserved_outputs + layer * between : scratch.get<T>(spare[layer % 2]);
    for (int64_t direction = 0; direction < p.directions; ++direction) {
      const int64_t number = layer * p.directions + direction, h_at = number * p.batch * p.outputs;
      const int64_t c_at = number * p.batch * p.hidden;
      T *kept = reserve ? reserve + number * positions * saved(p) : scratch.get<T>(gates);
      Pass<T>(p, lengths, number, operands[0], buffers, recurrence)
          .run(below, operands[2] + h_at, cy ? operands[3] + c_at : nullptr, kept, out, hy + h_at, cy ? cy + c_at : nullptr);
    }
    below = out;
    if (p.dropout > 0 && layer < p.layers - 1) {
      drop(seed_of(p, inputs), layer, p.dropout, between, out, scratch.get<T>(dropped));
      below = scratch.get<T>(dropped);
    }
  }
}

template void forward<float>(const Problem &, const dnnops_tensor *, dnnops_tensor *);
template void forward<double>(const Problem &, const dnnops_tensor *, dnnops_tensor *);

}  // namespace dnnops::rnn
