// Selects the algorithm of a recurrent network by timing, once for each network and shape.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "../../common/lru_cache.hpp"

#include "../kernels/cache.hpp"
#include "rnn.hpp"
#include "rnn_sample.hpp"
#include "rnn_times.hpp"

namespace dnnops::rnn {

namespace {

// The maximum number of selections by timing. They are never forgotten, since a gradient must find the
// selection of its forward call. Further networks and shapes use the standard algorithm.
constexpr size_t MOST_CHOICES = 1024;
// The first run also loads kernels. Long runs are timed less often, but at least two consecutive steps are timed.
constexpr int RUNS = 5, LEAST_RUNS = 2;
constexpr double ALL_RUNS_MS = 300;
constexpr int64_t ALL_REPLAY = (1 << PASSES) - 1;  // a value of Choice::replays
// Relative differences from the standard algorithm's results that are more than rounding: such an algorithm
// is considered wrong. A network that amplifies differences from step to step also exceeds them, and then
// loses the faster algorithm.
constexpr double WRONG_FLOAT32 = 1e-2, WRONG_SHORT = 0.2;
// The maximum hidden sizes of cuDNN 9's algorithm for small layers: with three or four gates, and with one.
constexpr int64_t SMALL_GATED = 192, SMALL_PLAIN = 384;

struct Choices {
  std::mutex mutex;
  std::unordered_map<Key, Choice, WordHash<Key>> made;
};

Choices &choices() {
  static Choices *all = new Choices;
  return *all;
}

// A training step, or a forward call for inference, on the operands of a call with separate results.
class Trial {
 public:
  Trial(Key key, int64_t algo, const Problem &p, const Handle &handle, const dnnops_tensor *inputs)
      : handle_(handle), training_(key.training) {
    key.handle = handle.number;
    key.algo = algo;
    plan_.emplace(key, handle, std::vector<int64_t>(p.batch, p.steps));
    const int64_t item = item_size(key.dtype), states = p.states() * p.batch * item;
    const int64_t hidden = states * p.outputs, cell = p.has_cell() ? states * p.hidden : 0;
    Pieces pieces;
    const int64_t y = pieces.add(p.positions() * p.width() * item), hy = pieces.add(hidden), cy = pieces.add(cell);
    const int64_t reserve = pieces.add(plan_->reserve()), workspace = pieces.add(plan_->workspace());
    const int64_t generators = pieces.add(plan_->generators());
    const int64_t backward = training_ ? 1 : 0;
    const int64_t dw = pieces.add(backward * plan_->parameters()),
                  dx = pieces.add(backward * p.positions() * p.input * item), dhx = pieces.add(backward * hidden),
                  dcx = pieces.add(backward * cell);
    sizes_ = {p.positions() * p.width() * item, plan_->parameters(), p.positions() * p.input * item, hidden};
    dtype_ = key.dtype;
    space_ = pieces.total();
    block_.emplace(*handle.arena, space_);
    const auto at = [&](int64_t place) { return Pieces::at(*block_, place); };
    const bool has_cell = p.has_cell();
    arrays_ = {inputs[0].data, inputs[1].data, inputs[2].data, has_cell ? inputs[p.cx_at()].data : nullptr,
               at(y), at(hy), has_cell ? at(cy) : nullptr, training_ ? at(reserve) : nullptr, at(workspace),
               at(generators), 0};
    // The output stands in for its gradient.
    gradients_ = {at(y), at(hy), has_cell ? at(cy) : nullptr, at(dw), at(dx), at(dhx), has_cell ? at(dcx) : nullptr};
  }

  int64_t space() const { return space_; }

  Milliseconds time() {
    return time_passes([this](int pass) { launch(pass, handle_); });
  }

  // A sample of the results of the last run: the output, and the gradients with respect to parameters, input
  // and initial states.
  std::vector<std::vector<float>> sample() const {
    const void *const results[] = {arrays_.y, gradients_.dw, gradients_.dx, gradients_.dhx};
    std::vector<std::vector<float>> found;
    for (int i = 0; i < (training_ ? 4 : 1); ++i)
      found.push_back(take_sample(handle_, results[i], sizes_[i], dtype_));
    return found;
  }

  // The times of the recorded passes.
  Milliseconds time_recorded() {
    std::optional<Recording> recordings[PASSES];
    for (int pass = 0; pass < passes(); ++pass)
      recordings[pass].emplace(handle_, [this, pass](const Handle &on) { launch(pass, on); });
    return time_passes([&](int pass) { recordings[pass]->run(handle_); });
  }

 private:
  int passes() const { return training_ ? PASSES : 1; }

  void launch(int pass, const Handle &on) const {
    if (pass == FORWARD) return plan_->launch_forward(on, arrays_);
    if (pass == DATA) return plan_->launch_data(on, arrays_, gradients_);
    plan_->launch_weights(on, arrays_, gradients_);
  }

  template <class Run>
  Milliseconds time_passes(const Run &run) {
    const auto step = [&](const Events &ends) {
      for (int pass = 0; pass < passes(); ++pass) {
        run(pass);
        record(ends[pass]);
      }
    };
    record(begin_);
    step(ends_[0]);
    const int last = passes() - 1;
    const double first = milliseconds_between(begin_, ends_[0][last]);
    const int runs = static_cast<int>(std::clamp(ALL_RUNS_MS / first, double{LEAST_RUNS}, double{RUNS}));
    // As in a training loop, the next step is launched while one runs.
    for (int i = 0; i <= runs; ++i) step(ends_[i]);
    Milliseconds least = {};
    for (int pass = 0; pass < passes(); ++pass) {
      least[pass] = HUGE_VAL;
      for (int i = 1; i <= runs; ++i) {
        const Event &before = pass ? ends_[i][pass - 1] : ends_[i - 1][last];
        least[pass] = std::min(least[pass], milliseconds_between(before, ends_[i][pass]));
      }
    }
    return least;
  }

  void record(const Event &event) { DNNOPS_CHECK(cudaEventRecord(event, static_cast<cudaStream_t>(handle_.stream))); }

  const Handle &handle_;
  bool training_;
  std::optional<Plan> plan_;
  std::optional<Workspace> block_;
  Plan::Arrays arrays_;
  Plan::Gradients gradients_;
  using Events = Event[PASSES];
  Event begin_;
  Events ends_[RUNS + 1];
  std::array<int64_t, 4> sizes_;  // of the compared results, in bytes
  int64_t dtype_, space_;
};

Times time_algorithm(const Key &key, int64_t algo, const Settings &settings, const Problem &p, const Handle &handle,
                     const dnnops_tensor *inputs) {
  Times times;
  try {
    Trial trial(key, algo, p, handle, inputs);
    times.space = trial.space();
    times.launched = trial.time();
    // Taken before recording, since the algorithm may run even if recording fails.
    times.sample = trial.sample();
    // Dropout changes from call to call, so it cannot be recorded.
    if (!key.dropout) times.recorded = trial.time_recorded();
  } catch (const Error &error) {
    // Usually cuDNN does not support the network, or there is no memory for another trial. An error that
    // persists is raised by the call itself.
    DNNOPS_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(handle.stream)));
    if (times.runs()) times.replay_failure = error.message;
    if (settings.verbose)
      std::fprintf(stderr, "dnnops: GpuDnnRNN with %s%s: %s\n", algorithm_names[algo],
                   times.runs() ? " as a CUDA graph" : "", error.message.c_str());
  }
  return times;
}

// The largest difference of any result; 0 if an algorithm did not run.
double largest_difference(const std::vector<std::vector<float>> &found,
                          const std::vector<std::vector<float>> &expected) {
  double largest = 0;
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i)
    largest = std::max(largest, difference(found[i], expected[i]));
  return largest;
}

std::string words(const Times &times, bool training) {
  std::string text;
  char piece[128];
  for (const Milliseconds &of : {times.launched, times.recorded}) {
    if (!text.empty()) text += " and ";
    for (int pass = 0; pass < (training ? PASSES : 1); ++pass) {
      std::snprintf(piece, sizeof piece, "%s%.4g", pass ? " + " : "", of[pass]);
      text += piece;
    }
  }
  std::snprintf(piece, sizeof piece, " ms, %.1f MiB", times.space / 1048576.0);
  return text + piece;
}

// Describes the bits of Times::replays().
std::string replayed_words(int64_t replays, bool training) {
  constexpr const char *names[PASSES] = {"forward", "by the input", "by the parameters"};
  std::string text;
  for (int pass = 0; pass < (training ? PASSES : 1); ++pass)
    if (replays >> pass & 1) text += std::string(text.empty() ? ", as CUDA graphs: " : ", ") + names[pass];
  return text;
}

Choice find_fastest(const Key &key, const Settings &settings, const Problem &p, const Handle &handle,
                    const dnnops_tensor *inputs) {
  const bool is_small = key.hidden <= (p.gates > 1 ? SMALL_GATED : SMALL_PLAIN);
  // The dynamic algorithm is left out, because compiling its kernel takes seconds.
  const int64_t candidates[] = {CUDNN_RNN_ALGO_STANDARD, CUDNN_RNN_ALGO_PERSIST_STATIC,
                                CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H};
  const double tolerance = key.dtype == DNNOPS_FLOAT32 ? WRONG_FLOAT32 : WRONG_SHORT;
  // Gradients of the static algorithms are less accurate than float32 requires: on an H200 with cuDNN 9.19,
  // errors were 1.0e-5 and 1.2e-5 of the norm for an lstm, and larger for an rnn_tanh.
  const bool is_exact = key.training && key.dtype == DNNOPS_FLOAT32 && !key.allow_tf32;
  const int count = is_exact ? 1 : 2 + is_small;
  Times times[3];
  for (int i = 0; i < count; ++i) {
    times[i] = time_algorithm(key, candidates[i], settings, p, handle, inputs);
    if (const double error = i ? largest_difference(times[i].sample, times[0].sample) : 0; error > tolerance) {
      if (settings.verbose)
        std::fprintf(stderr, "dnnops: GpuDnnRNN with %s: its results differ from those of standard by %.2g\n",
                     algorithm_names[candidates[i]], error);
      times[i] = Times();
    }
  }
  const int fastest = fastest_of(times, count, key.layers);
  if (!times[fastest].replay_failure.empty()) set_replay_failure(times[fastest].replay_failure);
  // Free the memory of the largest trial, which may not have been selected.
  handle.arena->free_idle();
  const Choice choice{candidates[fastest], times[fastest].replays()};
  if (settings.verbose)
    std::fprintf(stderr,
                 "dnnops: GpuDnnRNN%s %lldx%lldx%lld, hidden size %lld, %lld layers, %s: %s%s (timed, %s,"
                 " launched and as CUDA graphs, with memory: standard %s; persist_static %s; persist_static_small_h %s)\n",
                 key.training ? "" : " inference", (long long)key.steps, (long long)key.batch, (long long)key.input,
                 (long long)key.hidden, (long long)key.layers, dtype_name(key.dtype), algorithm_names[choice.algo],
                 replayed_words(choice.replays, key.training).c_str(),
                 key.training ? "forward + by the input + by the parameters" : "forward",
                 words(times[0], key.training).c_str(), words(times[1], key.training).c_str(),
                 words(times[2], key.training).c_str());
  return choice;
}

}  // namespace

Choice choose(const Key &key, const Settings &settings, const Problem &problem, const Handle &handle,
              const dnnops_tensor *inputs, bool is_forward) {
  // A recording launches the same kernels, so passes that recur are recorded even without timing.
  if (settings.algo != ALGO_AUTO) return {settings.algo, ALL_REPLAY};
  // The other algorithms support none of these, and timing could select a different one in the next process.
  if (key.padded || key.projected || key.dtype == DNNOPS_FLOAT64 || settings.deterministic)
    return {CUDNN_RNN_ALGO_STANDARD, ALL_REPLAY};
  const Choice safe{CUDNN_RNN_ALGO_STANDARD, 0};
  {
    std::lock_guard<std::mutex> lock(choices().mutex);
    const auto found = choices().made.find(key);
    if (found != choices().made.end()) return found->second;
    if (!is_forward || choices().made.size() >= MOST_CHOICES) return safe;
  }
  const Choice found =
      is_capturing(handle.stream) ? safe : find_fastest(key, settings, problem, handle, inputs);
  // If another thread was faster, its selection is used.
  std::lock_guard<std::mutex> lock(choices().mutex);
  return choices().made.emplace(key, found).first->second;
}

}  // namespace dnnops::rnn
