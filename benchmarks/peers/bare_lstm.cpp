// An LSTM of one layer by oneDNN's primitives, with weights and their gradients in the order of cuDNN and dnnops.
//
// The weights change in training, so each run reorders them, and their gradients back, as a network would have to.
#include <cstdint>
#include <string>
#include <unordered_map>

#include <oneapi/dnnl/dnnl.hpp>

namespace {

using dnnl::memory;
using dnnl::prop_kind;
using Type = memory::data_type;
using Tag = memory::format_tag;

std::string last_error;

class Lstm {
 public:
  // The arrays: x, start, both matrices, bias, the output's gradient, then what is written: the output and the
  // gradients with respect to x, both matrices and the bias.
  Lstm(int64_t steps, int64_t batch, int64_t hidden, bool training, float *const *arrays)
      : training_(training), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const memory::dims sequence{steps, batch, hidden}, state{1, 1, batch, hidden}, matrix{1, 1, hidden, 4, hidden};
    const memory::desc tnc(sequence, Type::f32, Tag::tnc), ldnc(state, Type::f32, Tag::ldnc);
    const memory::desc any(matrix, Type::f32, Tag::any), ours(matrix, Type::f32, Tag::ldgoi);
    const memory::desc bias({1, 1, 4, hidden}, Type::f32, Tag::ldgo);
    const auto direction = dnnl::rnn_direction::unidirectional_left2right;
    const auto given = [&](const memory::desc &desc, int i) { return memory(desc, engine_, arrays[i]); };
    const auto made = [&](const memory::desc &desc) { return memory(desc, engine_); };

    const dnnl::lstm_forward::primitive_desc forward(
        engine_, training ? prop_kind::forward_training : prop_kind::forward_inference, direction, tnc, ldnc, ldnc, any,
        any, bias, tnc, ldnc, ldnc);
    const memory inputs = given(ours, 2), states = given(ours, 3);
    const memory x = given(tnc, 0), start = given(ldnc, 1), biases = given(bias, 4), y = given(tnc, 6);
    const memory packed_inputs = made(forward.weights_layer_desc()), packed_states = made(forward.weights_iter_desc());
    const memory last = made(ldnc), last_cell = made(ldnc), workspace = made(forward.workspace_desc());
    reorder(inputs, packed_inputs);
    reorder(states, packed_states);
    Arguments used = {{DNNL_ARG_SRC_LAYER, x},         {DNNL_ARG_SRC_ITER, start},       {DNNL_ARG_SRC_ITER_C, start},
                      {DNNL_ARG_WEIGHTS_LAYER, packed_inputs}, {DNNL_ARG_WEIGHTS_ITER, packed_states},
                      {DNNL_ARG_BIAS, biases},         {DNNL_ARG_DST_LAYER, y},          {DNNL_ARG_DST_ITER, last},
                      {DNNL_ARG_DST_ITER_C, last_cell}};
    if (training) used.insert({DNNL_ARG_WORKSPACE, workspace});
    calls_.push_back({dnnl::lstm_forward(forward), used});
    if (!training) return;

    const dnnl::lstm_backward::primitive_desc backward(
        engine_, prop_kind::backward, direction, tnc, ldnc, ldnc, any, any, bias, tnc, ldnc, ldnc, tnc, ldnc, ldnc, any,
        any, bias, tnc, ldnc, ldnc, forward);
    const memory back_inputs = made(backward.weights_layer_desc()), back_states = made(backward.weights_iter_desc());
    by_inputs_ = made(backward.diff_weights_layer_desc());
    by_states_ = made(backward.diff_weights_iter_desc());
    reorder(inputs, back_inputs);
    reorder(states, back_states);
    by_bias_ = given(bias, 10);
    no_gradient_ = made(ldnc);
    fill_zeros(no_gradient_);
    used[DNNL_ARG_WEIGHTS_LAYER] = back_inputs;
    used[DNNL_ARG_WEIGHTS_ITER] = back_states;
    const Arguments more = {{DNNL_ARG_DIFF_SRC_LAYER, given(tnc, 7)},    {DNNL_ARG_DIFF_SRC_ITER, made(ldnc)},
                            {DNNL_ARG_DIFF_SRC_ITER_C, made(ldnc)},      {DNNL_ARG_DIFF_WEIGHTS_LAYER, by_inputs_},
                            {DNNL_ARG_DIFF_WEIGHTS_ITER, by_states_},    {DNNL_ARG_DIFF_BIAS, by_bias_},
                            {DNNL_ARG_DIFF_DST_LAYER, given(tnc, 5)},    {DNNL_ARG_DIFF_DST_ITER, no_gradient_},
                            {DNNL_ARG_DIFF_DST_ITER_C, no_gradient_}};
    used.insert(more.begin(), more.end());
    calls_.push_back({dnnl::lstm_backward(backward), used});
    reorder(by_inputs_, given(ours, 8));
    reorder(by_states_, given(ours, 9));
  }

  void run() {
    if (training_)  // the primitive adds to them
      for (const memory *gradient : {&by_inputs_, &by_states_, &by_bias_}) fill_zeros(*gradient);
    for (auto &[primitive, used] : calls_) primitive.execute(stream_, used);
    stream_.wait();
  }

 private:
  using Arguments = std::unordered_map<int, memory>;

  void reorder(const memory &from, const memory &to) {
    calls_.push_back({dnnl::reorder(from, to), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}});
  }
  static void fill_zeros(const memory &to) {
    float *const data = static_cast<float *>(to.get_data_handle());
    std::fill(data, data + to.get_desc().get_size() / sizeof(float), 0.f);
  }

  bool training_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  memory by_inputs_, by_states_, by_bias_, no_gradient_;
  std::vector<std::pair<dnnl::primitive, Arguments>> calls_;
};

}  // namespace

extern "C" const char *bare_lstm_error() { return last_error.c_str(); }

// Null if it fails.
extern "C" Lstm *bare_lstm(int64_t steps, int64_t batch, int64_t hidden, int64_t training, float *const *arrays) {
  try {
    return new Lstm(steps, batch, hidden, training != 0, arrays);
  } catch (const std::exception &error) {
    last_error = error.what();
    return nullptr;
  }
}

extern "C" void bare_lstm_run(Lstm *lstm) { lstm->run(); }
extern "C" void bare_lstm_free(Lstm *lstm) { delete lstm; }
