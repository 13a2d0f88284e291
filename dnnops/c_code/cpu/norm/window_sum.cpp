// Sums over windows along some axes of an array, for derivatives of the gradients of normalizations.
#include "../../common/op.hpp"
#include "../base/plan.hpp"
#include "window_norm.hpp"

namespace dnnops {
namespace {

struct Params {
  int64_t length;
  int64_t axes;             // a bit for each axis to sum along
  int64_t is_longer_behind;  // than ahead of the center, if the length is even
  static const char *op() { return "OneDnnWindowSum"; }
  static int input_count() { return 1; }
};

template <class T>
void run_in(const Params &params, const dnnops_tensor &input, const dnnops_tensor &output) {
  const int64_t count = element_count(input.shape, input.ndim), bytes = (count * sizeof(T) + 63) / 64 * 64;
  if (count == 0) return;
  const int64_t behind = (params.length - !params.is_longer_behind) / 2, ahead = params.length - 1 - behind;
  // Each axis is summed from one array into another; the last one is the output.
  char *scratch = thread_scratch(2 * bytes);
  T *const buffers[2] = {reinterpret_cast<T *>(scratch), reinterpret_cast<T *>(scratch + bytes)};
  const T *from = static_cast<const T *>(input.data);
  if (!is_contiguous(input)) {
    pack(input, buffers[0], false);
    from = buffers[0];
  }
  int64_t inner = 1, left = params.axes;
  for (int64_t axis = input.ndim - 1; axis >= 0; --axis) {
    const int64_t length = input.shape[axis];
    if (params.axes >> axis & 1) {
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

void run(const OpCall<Params> &call) {
  for_float_dtype(call.inputs[0].dtype,
                  [&](auto zero) { run_in<decltype(zero)>(call.params, call.inputs[0], call.outputs[0]); });
}

void shape(const OpCall<Params> &call) {
  const Params &params = call.params;
  if (params.length < 1 || params.axes <= 0 || params.axes >> call.inputs[0].ndim)
    fail(DNNOPS_VALUE_ERROR, "windows of %lld elements or their axes are invalid", (long long)params.length);
  same_shapes(call.inputs, 1, call.outputs, 1);
}

}  // namespace

DNNOPS_OP(onednn_window_sum, Params, shape, run)

}  // namespace dnnops
