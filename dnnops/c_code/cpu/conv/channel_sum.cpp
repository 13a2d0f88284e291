// Sums a float32 array over all axes except the channels, which gives the gradient with respect to a bias.
#include "../../common/op.hpp"
#include "../base/plan.hpp"

namespace dnnops {
namespace {

struct Params {
  static const char *op() { return "OneDnnChannelSum"; }
  static int input_count() { return 1; }
};

// Rows are short enough to be summed in float32 without losing accuracy; the row sums are added up in float64.
constexpr int64_t kRow = 1024;

double sum_of(const float *values, int64_t count) {
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kRow) {
    const int64_t end = begin + kRow < count ? begin + kRow : count;
    float row = 0;
#pragma omp simd reduction(+ : row)
    for (int64_t i = begin; i < end; ++i) row += values[i];
    total += row;
  }
  return total;
}

void run(const OpCall<Params> &call) {
  const dnnops_tensor &input = call.inputs[0];
  float *const output = static_cast<float *>(call.outputs[0].data);
  const int64_t batch = input.shape[0], channels = input.shape[1];
  const int64_t inner = element_count(input.shape + 2, input.ndim - 2);
  const float *data = static_cast<const float *>(input.data);
  int64_t batch_step = channels * inner, channel_step = inner, step = sizeof(float);
  bool inner_contiguous = true;
  for (int64_t i = input.ndim - 1; i >= 2; --i) {
    inner_contiguous = inner_contiguous && (input.shape[i] == 1 || input.strides[i] == step);
    step *= input.shape[i];
  }
  if (inner_contiguous && input.strides[0] % (int64_t)sizeof(float) == 0 &&
      input.strides[1] % (int64_t)sizeof(float) == 0) {
    batch_step = input.strides[0] / (int64_t)sizeof(float);
    channel_step = input.strides[1] / (int64_t)sizeof(float);
  } else {
    float *packed = reinterpret_cast<float *>(thread_scratch(batch * channels * inner * sizeof(float)));
    pack(input, packed, false);
    data = packed;
  }
#pragma omp parallel for
  for (int64_t channel = 0; channel < channels; ++channel) {
    double total = 0;
    for (int64_t n = 0; n < batch; ++n) total += sum_of(data + n * batch_step + channel * channel_step, inner);
    output[channel] = (float)total;
  }
}

void shape(const OpCall<Params> &call) {
  dnnl_dtype(call.inputs[0].dtype);
  if (call.inputs[0].ndim < 2) fail(DNNOPS_TYPE_ERROR, "expected an array with a batch and a channel axis");
  set_output(call.outputs[0], DNNOPS_FLOAT32, {call.inputs[0].shape[1]});
}

}  // namespace

DNNOPS_OP(onednn_channel_sum, Params, shape, run)

}  // namespace dnnops
