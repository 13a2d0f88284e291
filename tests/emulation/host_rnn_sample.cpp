// rnn_sample.hpp on the host, with CUDA's copies as copies on the host. Fails if a check fails.
#include "gpu/rnn/rnn_sample.hpp"

#include <cstdlib>

#include "host_require.hpp"

extern "C" {
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t) {
  for (size_t i = 0; i < height; ++i)
    std::memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
}

namespace dnnops {
void fail_cudnn(cudnnStatus_t, const char *) { std::abort(); }
void fail_cuda(cudaError_t, const char *) { std::abort(); }
}  // namespace dnnops

using namespace dnnops;
using namespace dnnops::rnn;

int main() {
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const uint16_t word = bits;
    _Float16 value;
    std::memcpy(&value, &word, sizeof value);
    const float found = from_float16(word);
    REQUIRE(found == (float)value || (std::isnan(found) && std::isnan((float)value)));
  }
  REQUIRE(from_bfloat16(0xc040) == -3);
  // Sizes near the limit on the number of groups; reading behind the end is an error.
  for (int64_t count : {0, 1, 3, 4, 5, 100, 16384, 16385, 40000, 65536, 1000003}) {
    std::vector<float> array(count);
    for (int64_t i = 0; i < count; ++i) array[i] = i;
    const std::vector<float> sample = take_sample(Handle(), array.data(), count * 4, DNNOPS_FLOAT32);
    REQUIRE((int64_t)sample.size() >= std::min<int64_t>(count / 4 * 4, 10000) && sample.size() <= 4 * 4200);
    REQUIRE(sample.empty() || sample.back() > count * 0.99 - 4);
  }
  const std::vector<float> right = {3, 4}, wrong = {3, 5}, broken = {3, NAN}, zeros = {0, 0};
  REQUIRE(difference(right, right) == 0);
  REQUIRE(std::abs(difference(wrong, right) - 0.2) < 1e-12);
  REQUIRE(difference(broken, right) == HUGE_VAL);
  REQUIRE(difference(right, broken) == 0);
  REQUIRE(difference(right, zeros) == HUGE_VAL);
}
