// The gradient of a recurrent network. The gradients with respect to the gate sums are computed step by step;
// matrix products over all steps then give those with respect to the parameters and the input.
#include "rnn_product.hpp"

namespace dnnops::rnn {
namespace {

template <class T>
struct Buffers {
  T *dgates;  // of all positions
  T *dh;      // of one step; with a projection, of all positions
  T *dcells;  // with respect to the projection's operand, of one step
  T *cells;   // the projection's operand, of all positions
  T *before;  // the output of the previous step, of all positions
};

// The arrays of a pseudo-layer. below, y, above and dbelow belong to its whole layer; dbelow is
// null if it is not needed.
template <class T>
struct Arrays {
  const T *below, *hx, *cx, *kept, *y, *above;
  T *dbelow, *dh, *dc;  // on entry, the gradients of the states after the last step; on return, those before the first
                        // step
};

// The distance from the gate gradients of a position to those of the next; the last gate of a GRU has two.
template <class T>
int64_t gradient_stride(const Problem &p) {
  return row_pitch<T>((p.mode == GRU ? 4 : p.gates) * p.hidden);
}

template <class T>
class Pass {
 public:
  Pass(const Problem &p, const Lengths &lengths, int64_t number, const T *w, T *dw, const Arrays<T> &arrays,
       const Buffers<T> &buffers, StepProduct<T> &recurrence)
      : p_(p),
        lengths_(lengths),
        layer_(number / p.directions),
        backward_(number % p.directions == 1),
        part_(p.part(number)),
        w_(w),
        dw_(dw),
        arrays_(arrays),
        buffers_(buffers),
        recurrence_(recurrence),
        stride_(gradient_stride<T>(p)),
        recurrent_(p.mode == GRU ? p.hidden : 0) {
    const int64_t column = backward_ ? p.outputs : 0;
    arrays_.y += column;
    arrays_.above += column;
  }

  void run() {
    recurrence_.prepare(w_ + part_.recurrent);
    for (int64_t i = 0; i < p_.steps; ++i) step(backward_ ? i : p_.steps - 1 - i);
    if (p_.skips(layer_))
      add_gates();
    else
      by_input();
    by_recurrence();
    by_biases();
    if (p_.projected) by_projection();
  }

 private:
  T *dgates(int64_t t, int64_t b = 0) const { return buffers_.dgates + (t * p_.batch + b) * stride_; }
  T *dh(int64_t t, int64_t b = 0) const { return buffers_.dh + ((p_.projected ? t * p_.batch : 0) + b) * p_.outputs; }
  const T *kept(int64_t t, int64_t b) const { return arrays_.kept + (t * p_.batch + b) * saved(p_); }
  const T *output(int64_t t, int64_t b) const { return arrays_.y + (t * p_.batch + b) * p_.width(); }
  const T *output_before(int64_t t, int64_t b) const {
    return t == lengths_.first(b, backward_) ? arrays_.hx + b * p_.outputs : output(backward_ ? t + 1 : t - 1, b);
  }
  const T *cell_before(int64_t t, int64_t b) const {
    if (t == lengths_.first(b, backward_)) return arrays_.cx + b * p_.hidden;
    return kept(backward_ ? t + 1 : t - 1, b) + 4 * p_.hidden;
  }

  void step(int64_t t) {
    const int64_t rows = lengths_.rows(t), hidden = p_.hidden, outputs = p_.outputs;
    const bool parallel = rows * hidden > 2048;
    if (p_.projected) {
      for (int64_t b = 0; b < p_.batch; ++b) add_above(t, b);
      multiply<T>(false, false, rows, hidden, outputs, dh(t), outputs, w_ + part_.projection, hidden, 0, buffers_.dcells,
                  hidden);
    }
#pragma omp parallel for if (parallel)
    for (int64_t b = 0; b < p_.batch; ++b) {
      if (!p_.projected) add_above(t, b);
      if (!lengths_.active(t, b)) {
        std::fill_n(dgates(t, b), stride_, (T)0);
        continue;
      }
      if (p_.mode == LSTM)
        lstm_gradient(hidden, kept(t, b), cell_before(t, b), p_.projected ? buffers_.dcells + b * hidden : dh(t, b),
                      arrays_.dc + b * hidden, dgates(t, b));
      else if (p_.mode == GRU)
        gru_gradient(hidden, kept(t, b), output_before(t, b), dh(t, b), arrays_.dh + b * hidden, dgates(t, b));
      else
        plain_gradient(hidden, p_.mode == RELU, output(t, b), dh(t, b), dgates(t, b));
    }
    recurrence_.run(rows, dgates(t) + recurrent_, arrays_.dh);
  }

  // Adds the gradient with respect to the output of a step; the part that came from later steps is consumed.
  void add_above(int64_t t, int64_t b) {
    T *to = dh(t, b), *later = arrays_.dh + b * p_.outputs;
    const T *above = arrays_.above + (t * p_.batch + b) * p_.width();
    if (!lengths_.active(t, b)) {
      std::fill_n(to, p_.outputs, (T)0);
      return;
    }
    for (int64_t j = 0; j < p_.outputs; ++j) {
      to[j] = above[j] + later[j];
      later[j] = 0;
    }
  }

  // -- over all steps --

  // Calls body(row, count, gradients) for the gate rows of the input matrices, with the start of their gradients.
  template <class Body>
  void by_input_gates(Body &&body) {
    if (p_.mode != GRU) return body(0, p_.rows(), (const T *)buffers_.dgates);
    body(0, 2 * p_.hidden, (const T *)buffers_.dgates + p_.hidden);
    body(2 * p_.hidden, p_.hidden, (const T *)buffers_.dgates);
  }

  void by_input() {
    const int64_t positions = p_.positions(), inputs = part_.inputs;
    by_input_gates([&](int64_t row, int64_t count, const T *gradients) {
      const int64_t matrix = part_.matrices + row * inputs;
      multiply_columns(count, inputs, positions, gradients, stride_, arrays_.below, inputs, dw_ + matrix, inputs);
      if (!arrays_.dbelow) return;
      multiply<T>(false, false, positions, inputs, count, gradients, stride_, w_ + matrix, inputs,
                  row == 0 && !backward_ ? 0 : 1, arrays_.dbelow, inputs);
    });
  }

  void add_gates() {
    if (!arrays_.dbelow) return;
    const int64_t positions = p_.positions();
#pragma omp parallel for if (positions * p_.rows() > 16384)
    for (int64_t i = 0; i < positions; ++i) {
      const T *from = buffers_.dgates + i * stride_;
      T *to = arrays_.dbelow + i * p_.hidden;
      if (!backward_) std::fill_n(to, p_.hidden, (T)0);
      for (int64_t gate = 0; gate < p_.gates; ++gate)
        for (int64_t j = 0; j < p_.hidden; ++j) to[j] += from[gate * p_.hidden + j];
    }
  }

  void by_recurrence() {
    const int64_t outputs = p_.outputs;
#pragma omp parallel for if (p_.positions() * outputs > 16384)
    for (int64_t t = 0; t < p_.steps; ++t)
      for (int64_t b = 0; b < p_.batch; ++b) {
        T *to = buffers_.before + (t * p_.batch + b) * outputs;
        if (lengths_.active(t, b))
          std::copy_n(output_before(t, b), outputs, to);
        else
          std::fill_n(to, outputs, (T)0);
      }
    multiply_columns(p_.rows(), outputs, p_.positions(), buffers_.dgates + recurrent_, stride_, buffers_.before, outputs,
                     dw_ + part_.recurrent, outputs);
  }

  void by_biases() {
    const int64_t positions = p_.positions();
    by_input_gates([&](int64_t row, int64_t count, const T *gradients) {
      sum_rows(positions, count, stride_, gradients, dw_ + part_.input_biases + row);
    });
    T *to = dw_ + part_.recurrent_biases;
    if (p_.mode == GRU)
      sum_rows(positions, p_.rows(), stride_, buffers_.dgates + recurrent_, to);
    else
      std::copy_n(dw_ + part_.input_biases, p_.rows(), to);
  }

  void by_projection() {
    const int64_t hidden = p_.hidden, positions = p_.positions();
#pragma omp parallel for if (positions * hidden > 2048)
    for (int64_t i = 0; i < positions; ++i) {
      const T *o = arrays_.kept + i * saved(p_) + 3 * hidden, *c = o + hidden;
      T *to = buffers_.cells + i * hidden;
#pragma omp simd
      for (int64_t j = 0; j < hidden; ++j) to[j] = o[j] * hyperbolic_tangent(c[j]);
    }
    multiply_columns(p_.outputs, hidden, positions, buffers_.dh, p_.outputs, buffers_.cells, hidden,
                     dw_ + part_.projection, hidden);
  }

  const Problem &p_;
  const Lengths &lengths_;
  int64_t layer_;
  bool backward_;
  PseudoLayer part_;
  const T *w_;
  T *dw_;
  Arrays<T> arrays_;
  Buffers<T> buffers_;
  StepProduct<T> &recurrence_;
  int64_t stride_;     // between the gate gradients of two positions
  int64_t recurrent_;  // where the gradients with respect to the recurrent part begin
};

// Copies a sequence with zeros after each end, where the input may hold anything, including NaN.
template <class T>
void clear_ends(const Problem &p, const Lengths &lengths, const T *from, T *to) {
  const int64_t size = p.input;
  for (int64_t t = 0; t < p.steps; ++t)
    for (int64_t b = 0; b < p.batch; ++b) {
      const int64_t at = (t * p.batch + b) * size;
      if (lengths.active(t, b))
        std::copy_n(from + at, size, to + at);
      else
        std::fill_n(to + at, size, (T)0);
    }
}

}  // namespace

// Inputs: those of the forward pass, y, reserve, and the gradients with respect to y, hy and, for an LSTM,
// cy. Outputs: the gradients with respect to w, hx, for an LSTM cx, and with the flag x.
template <class T>
void backward(const Problem &p, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const Lengths lengths(p, inputs);
  const int64_t positions = p.positions(), between = positions * p.width();
  const int y_at = p.forward_operands(), has_cell = p.has_cell();
  Scratch scratch(sizeof(T));
  Operands<T> operands(scratch, inputs, 3 + has_cell), gradients(scratch, inputs + y_at, 4 + has_cell);
  const int ends = scratch.add(p.has_lengths ? positions * p.input : 0);
  StepProduct<T> recurrence(p, scratch, p.outputs, p.rows(), false, gradient_stride<T>(p), p.outputs, true);
  const int dgates = scratch.add(positions * gradient_stride<T>(p));
  const int dh = scratch.add((p.projected ? positions : p.batch) * p.outputs);
  const int dcells = scratch.add(p.projected ? p.batch * p.hidden : 0);
  const int cells = scratch.add(p.projected ? positions * p.hidden : 0);
  const int before = scratch.add(positions * p.outputs);
  const int spare[2] = {scratch.add(p.layers < 2 ? 0 : between), scratch.add(p.layers < 3 ? 0 : between)};
  const int dropped = scratch.add(p.dropout > 0 ? between : 0);
  scratch.allocate();
  operands.pack_all();
  gradients.pack_all();
  const Buffers<T> buffers = {scratch.get<T>(dgates), scratch.get<T>(dh), scratch.get<T>(dcells), scratch.get<T>(cells),
                              scratch.get<T>(before)};
  const T *w = operands[0], *x = operands[1], *y = gradients[0], *reserve = gradients[1], *above = gradients[2];
  if (p.has_lengths) {
    clear_ends(p, lengths, x, scratch.get<T>(ends));
    x = scratch.get<T>(ends);
  }
  T *dw = static_cast<T *>(outputs[0].data), *dhx = static_cast<T *>(outputs[1].data);
  T *dcx = has_cell ? static_cast<T *>(outputs[2].data) : nullptr;
  T *dx = p.flag ? static_cast<T *>(outputs[2 + has_cell].data) : nullptr;
  std::copy_n(gradients[3], p.states() * p.batch * p.outputs, dhx);
  if (dcx) std::copy_n(gradients[4], p.states() * p.batch * p.hidden, dcx);
  if (positions == 0) {
    std::fill_n(dw, p.parameters(), (T)0);
    return;
  }
  const T *reserved_outputs = reserve + p.states() * positions * saved(p);
  for (int64_t layer = p.layers - 1; layer >= 0; --layer) {
    const T *out = layer == p.layers - 1 ? y : reserved_outputs + layer * between, *below = x;
    T *dbelow = layer ? scratch.get<T>(spare[(layer - 1) % 2]) : dx;
    if (layer) {
      below = reserved_outputs + (layer - 1) * between;
      if (p.dropout > 0) {
        drop(seed_of(p, inputs), layer - 1, p.dropout, between, below, scratch.get<T>(dropped));
        below = scratch.get<T>(dropped);
      }
    }
    for (int64_t direction = 0; direction < p.directions; ++direction) {
      const int64_t number = layer * p.directions + direction, h_at = number * p.batch * p.outputs;
      const int64_t c_at = number * p.batch * p.hidden;
      const Arrays<T> arrays = {below,      operands[2] + h_at, dcx ? operands[3] + c_at : nullptr,
                                reserve + number * positions * saved(p),
                                out,        above,
                                dbelow,     dhx + h_at,         dcx ? dcx + c_at : nullptr};
      Pass<T>(p, lengths, number, w, dw, arrays, buffers, recurrence).run();
    }
    if (layer && p.dropout > 0) drop(seed_of(p, inputs), layer - 1, p.dropout, between, dbelow, dbelow);
    above = dbelow;
  }
}

template void backward<float>(const Problem &, const dnnops_tensor *, dnnops_tensor *);
template void backward<double>(const Problem &, const dnnops_tensor *, dnnops_tensor *);

}  // namespace dnnops::rnn
