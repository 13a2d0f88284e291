// The common parts of both recurrent network Ops on the CPU: lengths, scratch memory, contiguous operands.
#ifndef DNNOPS_ONEDNN_RNN_PROBLEM_HPP
#define DNNOPS_ONEDNN_RNN_PROBLEM_HPP

#include "../../common/rnn_problem.hpp"

#include "../base/plan.hpp"

namespace dnnops::rnn {

// The number of values that a pseudo-layer saves for each position.
inline int64_t saved(const Problem &p) { return p.mode == LSTM ? 5 * p.hidden : p.mode == GRU ? 4 * p.hidden : 0; }
inline int64_t reserve(const Problem &p) {
  return p.positions() * (p.states() * saved(p) + (p.layers - 1) * p.width());
}

// The lengths of the sequences.
struct Lengths {
  std::vector<int64_t> of;
  int64_t steps;
  bool given;

  Lengths(const Problem &p, const dnnops_tensor *inputs)
      : of(lengths_of(p, inputs)), steps(p.steps), given(p.has_lengths) {}
  bool active(int64_t t, int64_t b) const { return t < of[b]; }
  // The number of leading rows up to the last active one.
  int64_t rows(int64_t t) const {
    int64_t rows = (int64_t)of.size();
    while (rows && !active(t, rows - 1)) --rows;
    return rows;
  }
  int64_t first(int64_t b, bool backward) const { return backward ? of[b] - 1 : 0; }
  int64_t last(int64_t b, bool backward) const { return backward ? 0 : of[b] - 1; }
};

// Pieces of this thread's scratch memory. All of them must be requested before the first is used.
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

// Operands as contiguous arrays, copied if necessary.
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

// Defined in rnn_forward.cpp and rnn_backward.cpp.
template <class T>
void forward(const Problem &problem, const dnnops_tensor *inputs, dnnops_tensor *outputs);
template <class T>
void backward(const Problem &problem, const dnnops_tensor *inputs, dnnops_tensor *outputs);

}  // namespace dnnops::rnn
#endif
