// The parameters, operands and checks of dropout in both libraries.
#ifndef DNNOPS_DROPOUT_PROBLEM_HPP
#define DNNOPS_DROPOUT_PROBLEM_HPP

#include <cstring>

#include "shapes.hpp"

namespace dnnops {

// Each group of DROPOUT_GROUP elements takes the words of DROPOUT_BLOCKS blocks of random numbers.
constexpr int64_t DROPOUT_GROUP = 64, DROPOUT_BLOCKS = 16;

// A position in a sequence of random numbers.
struct DropoutPlace {
  uint64_t seed, offset;
};

inline double read_probability(const dnnops_tensor &p) {
  if (p.dtype != DNNOPS_FLOAT64 || p.ndim != 0) fail(DNNOPS_TYPE_ERROR, "p must be a float64 scalar");
  double value;
  std::memcpy(&value, p.data, sizeof value);
  if (!(value >= 0 && value <= 1)) fail(DNNOPS_VALUE_ERROR, "p must be at least 0 and at most 1, got %g", value);
  return value;
}

// An element is dropped if its random word is below this threshold.
inline uint32_t dropout_threshold(double p) {
  return p < 1 ? static_cast<uint32_t>(p * 4294967296.0) : 0xffffffffu;
}

// The factor of the elements that are kept. If p is 1, the largest word is not below the threshold.
inline double dropout_scale(double p) { return p < 1 ? 1 / (1 - p) : 0; }

inline DropoutPlace read_place(const dnnops_tensor &state) {
  int64_t words[2];
  read_vector("state", state, 2, words);
  return {static_cast<uint64_t>(words[0]), static_cast<uint64_t>(words[1])};
}

// Writes the state for the next call.
inline void write_next_place(const DropoutPlace &place, int64_t count, void *state) {
  const uint64_t groups = static_cast<uint64_t>(count + DROPOUT_GROUP - 1) / DROPOUT_GROUP;
  const uint64_t next[2] = {place.seed, place.offset + groups * DROPOUT_BLOCKS};
  std::memcpy(state, next, sizeof next);
}

inline int64_t reserve_bytes(const dnnops_tensor &x) { return (element_count(x.shape, x.ndim) + 7) / 8; }

// Inputs: x, p, state. Outputs: y, reserve, the next state. On a device, p and the state cannot be read.
inline void dropout_shapes(const dnnops_tensor *inputs, dnnops_tensor *outputs, bool on_host = true) {
  const dnnops_tensor &x = inputs[0];
  if (on_host) {
    read_probability(inputs[1]);
    read_place(inputs[2]);
  }
  set_output(outputs[0], x);
  set_output(outputs[1], DNNOPS_UINT8, {reserve_bytes(x)});
  set_output(outputs[2], DNNOPS_INT64, {2});
}

// Inputs: the gradient with respect to the output, p, reserve.
inline void dropout_grad_shape(const dnnops_tensor *inputs, dnnops_tensor *outputs, bool on_host = true) {
  const dnnops_tensor &gy = inputs[0], &reserve = inputs[2];
  if (on_host) read_probability(inputs[1]);
  if (reserve.dtype != DNNOPS_UINT8 || reserve.ndim != 1)
    fail(DNNOPS_TYPE_ERROR, "reserve must be a uint8 vector");
  if (reserve.shape[0] != reserve_bytes(gy))
    fail(DNNOPS_VALUE_ERROR, "reserve has %lld bytes, expected %lld for gy of shape %s", (long long)reserve.shape[0],
         (long long)reserve_bytes(gy), list_of(gy.shape, gy.ndim).c_str());
  set_output(outputs[0], gy);
}

}  // namespace dnnops
#endif
