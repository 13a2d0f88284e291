// The measurements of a network's algorithms, from which one is selected.
#ifndef DNNOPS_CUDNN_RNN_TIMES_HPP
#define DNNOPS_CUDNN_RNN_TIMES_HPP

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace dnnops::rnn {

// Other algorithms must be this much faster than the first, the standard algorithm: times vary, and it is the
// safe choice.
constexpr double MARGIN = 0.98;
// A pass that is no slower than this as a CUDA graph is launched as one, since that takes less of the host's time.
constexpr double REPLAY_MARGIN = 1.002;
// An algorithm that takes this many times the memory must be worth it by its speed. With several layers, none
// is accepted that needs more memory than PyTorch, which uses persistent algorithms only for a single layer.
constexpr double MORE_SPACE = 1.05, WORTH_SPACE = 0.85;

// The gradient has two passes: with respect to the input and the states, and with respect to the parameters.
enum Pass { FORWARD, DATA, WEIGHTS, PASSES };

// For each pass: infinity if it does not run, 0 if it is not needed.
using Milliseconds = std::array<double, PASSES>;

// The times of an algorithm.
struct Times {
  Milliseconds launched = {HUGE_VAL, HUGE_VAL, HUGE_VAL}, recorded = launched;
  int64_t space = 0;                       // bytes per step: results, reserve and workspace
  std::vector<std::vector<float>> sample;  // of the results
  std::string replay_failure;              // why it could not be recorded

  bool runs() const { return launched[FORWARD] < HUGE_VAL; }
  bool replays(int pass) const {
    return recorded[pass] < HUGE_VAL && recorded[pass] <= REPLAY_MARGIN * launched[pass];
  }
  // A bit for each pass that is faster as a CUDA graph.
  int64_t replays() const {
    int64_t bits = 0;
    for (int pass = 0; pass < PASSES; ++pass) bits |= static_cast<int64_t>(replays(pass)) << pass;
    return bits;
  }
  double best() const {
    double sum = 0;
    for (int pass = 0; pass < PASSES; ++pass) sum += replays(pass) ? recorded[pass] : launched[pass];
    return sum;
  }
};

// The index of the algorithm to use; the first is the standard algorithm.
inline int fastest_of(const Times *times, int count, int64_t layers) {
  int fastest = 0;
  for (int i = 1; i < count; ++i) {
    const bool takes_more = times[i].space > MORE_SPACE * times[0].space;
    if (takes_more && layers > 1 && times[0].best() < HUGE_VAL) continue;
    if (times[i].best() < times[0].best() * (takes_more ? WORTH_SPACE : MARGIN) &&
        times[i].best() < times[fastest].best())
      fastest = i;
  }
  return fastest;
}

}  // namespace dnnops::rnn
#endif
