// Sums over windows along some axes of an array, for derivatives of the gradients of normalizations.
#include "../base/plan.hpp"
#include "window_norm.hpp"

namespace dnnops {
namespace {

// params: the length of the windows, a bit for each axis, whether windows are longer before the center than after it.
template <class T>
void run(const int64_t *params, const dnnops_tensor &input, dnnops_tensor &output) {
  const int64_t count = element_count(input.shape, input.ndim), bytes = (count * sizeof(T) + 63) / 64 * 64;
  if (count == 0) return;
  const int64_t behind = params[2] ? params[0] / 2 : (params[0] - 1) / 2, ahead = params[0] - 1 - behind;
  // Each axis is summed from one array into another; the last one is the output.
  char *scratch = thread_scratch(2 * bytes);
  T *const buffers[2] = {reinterpret_cast<T *>(scratch), reinterpret_cast<T *>(scratch + bytes)};
  const T *from = static_cast<const T *>(input.data);
  if (!is_contiguous(input)) {
    pack(input, buffers[0], false);
    from = buffers[0];
  }
  int64_t inner = 1, left = params[1];
  for (int64_t axis = input.ndim - 1; axis >= 0; --axis) {
    const int64_t length = input.shape[axis];
    if (params[1] >> axis & 1) {
      left &= ~((int64_t)1 << axis);
      T *to = left == 0 ? static_cast<T *>(output.data) : from == buffers[0] ? buffers[1] : buffers[0];
      const int64_t pieces = piece_count(count / length / inner, length, inner);
#pragma omp parallel for if (count > 16384)
      for (int64_t piece = 0; piece < pieces; ++piece) sum_piece(from, to, piece, length, inner, behind, ahead);
      from = to;
    }
    inner *= length;
  }
}

}  // namespace
}  // namespace dnnops

using namespace dnnops;

DNNOPS_EXPORT int dnnops_onednn_window_sum_shape(const dnnops_context *, const int64_t *params,
                                                 const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnWindowSum", inputs, 1, [&] {
    if (params[0] < 1 || params[1] <= 0 || params[1] >> inputs[0].ndim)
      fail(DNNOPS_VALUE_ERROR, "windows of %lld elements or their axes are invalid", (long long)params[0]);
    same_shapes(inputs, 1, outputs, 1);
  });
}
DNNOPS_EXPORT int dnnops_onednn_window_sum(const dnnops_context *, const int64_t *params, const dnnops_tensor *inputs,
                                           dnnops_tensor *outputs) {
  return guarded("OneDnnWindowSum", inputs, 1, [&] {
    for_float_dtype(inputs[0].dtype, [&](auto zero) { run<decltype(zero)>(params, inputs[0], outputs[0]); });
  });
}
