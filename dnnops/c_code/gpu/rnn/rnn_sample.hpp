// Samples of arrays on the device, to check that two algorithms compute the same.
#ifndef DNNOPS_CUDNN_RNN_SAMPLE_HPP
#define DNNOPS_CUDNN_RNN_SAMPLE_HPP

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../base/handle.hpp"

namespace dnnops::rnn {

inline float from_float16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float value = std::ldexp(static_cast<float>(exponent ? fraction + 1024 : fraction), (exponent ? exponent : 1) - 25);
  if (exponent == 31) value = fraction ? NAN : HUGE_VALF;
  return bits >> 15 ? -value : value;
}

inline float from_bfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Takes elements from all over an array, in at most GROUPS groups of 16 bytes.
inline std::vector<float> take_sample(const Handle &handle, const void *array, int64_t bytes, int64_t dtype) {
  constexpr int64_t GROUP = 16, GROUPS = 4096;
  const int64_t groups = bytes / GROUP;
  // An odd step, since otherwise all groups could be in the same columns of a matrix.
  const int64_t step = std::max<int64_t>(1, groups / GROUPS) | 1;
  const int64_t taken = (groups + step - 1) / step;
  std::vector<char> raw(taken * GROUP);
  if (taken) {
    const cudaStream_t stream = static_cast<cudaStream_t>(handle.stream);
    DNNOPS_CHECK(
        cudaMemcpy2DAsync(raw.data(), GROUP, array, step * GROUP, GROUP, taken, cudaMemcpyDeviceToHost, stream));
    DNNOPS_CHECK(cudaStreamSynchronize(stream));
  }
  const int64_t item = item_size(dtype);
  std::vector<float> found(raw.size() / item);
  for (size_t i = 0; i < found.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, &raw[i * item], sizeof bits);
    if (dtype == DNNOPS_FLOAT16)
      found[i] = from_float16(bits);
    else if (dtype == DNNOPS_BFLOAT16)
      found[i] = from_bfloat16(bits);
    else
      std::memcpy(&found[i], &raw[i * item], sizeof found[i]);
  }
  return found;
}

// The norm of the difference relative to the norm of the second array; 0 if the latter is not finite, because
// nothing can be compared then, and infinity if only the first is not.
inline double difference(const std::vector<float> &found, const std::vector<float> &expected) {
  double squares = 0, all = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double apart = static_cast<double>(found[i]) - expected[i];
    squares += apart * apart;
    all += static_cast<double>(expected[i]) * expected[i];
  }
  if (!std::isfinite(all) || squares == 0) return 0;
  if (!std::isfinite(squares)) return HUGE_VAL;
  return std::sqrt(squares / all);
}

}  // namespace dnnops::rnn
#endif
