// Local response normalization across channels, and its gradient, in dnnops loops: oneDNN is fast only for a
// few layouts and parameters, and places windows of even length differently.
//
// An array is viewed as (batch, channel, inner). A task is a tile: all channels of one image, and as many
// elements of the inner axis as fit with their windows in the first-level cache.
#include <memory>

#include <omp.h>

#include "../../common/op.hpp"
#include "../base/views.hpp"
#include "window_norm.hpp"
#include "window_wide.hpp"

namespace dnnops {
namespace {

// The rows of a tile, dense, one for each channel.
template <class T>
struct Rows {
  T *data;
  int64_t step;
  T *operator[](int64_t channel) const { return data + channel * step; }
};

template <class T, class Power>
void forward_tile(const WindowNorm &norm, const Power &power, int64_t channels, int64_t width, Rows<const T> x,
                  Rows<T> y, T *spare) {
  for (int64_t c = 0; c < channels; ++c) {
    const int64_t first = std::max<int64_t>(0, c - norm.behind), last = std::min(channels, c + norm.ahead + 1);
    set_squares(x[first], spare, width);
    for (int64_t j = first + 1; j < last; ++j) add_squares(x[j], spare, width);
    normalize_row(norm, power, x[c], spare, y[c], width);
  }
}

// Spare memory: 2 n + 1 rows. A channel's share is needed by all channels whose windows contain it, so shares
// and powers are kept in rings of n rows.
template <class T, class Power>
void backward_tile(const WindowNorm &norm, const Power &power, int64_t channels, int64_t width, Rows<const T> x,
                   Rows<const T> gy, Rows<T> dx, T *spare) {
  T *sums = spare;
  const Rows<T> powers{spare + width, width}, shares{spare + (1 + norm.n) * width, width};
  const T factor = (T)(2 * norm.scale * norm.beta);
  for (int64_t j = 0; j < channels + norm.behind; ++j) {
    if (j < channels) {
      const int64_t first = std::max<int64_t>(0, j - norm.behind), last = std::min(channels, j + norm.ahead + 1);
      set_squares(x[first], sums, width);
      for (int64_t i = first + 1; i < last; ++i) add_squares(x[i], sums, width);
      share_row(norm, power, x[j], gy[j], sums, powers[j % norm.n], shares[j % norm.n], width);
    }
    const int64_t c = j - norm.behind;
    if (c < 0) continue;
    const int64_t first = std::max<int64_t>(0, c - norm.ahead), last = std::min(channels, c + norm.behind + 1);
    std::copy(shares[first % norm.n], shares[first % norm.n] + width, sums);
    for (int64_t i = first + 1; i < last; ++i) add_row(shares[i % norm.n], sums, width);
    const T *values = x[c], *gradients = gy[c], *p = powers[c % norm.n];
    T *results = dx[c];
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) results[i] = gradients[i] * p[i] - factor * values[i] * sums[i];
  }
}

// A tile of an array, copied to dense rows if necessary.
template <class T>
void load_tile(const T *from, const View &view, int64_t width, T *to) {
  for (int64_t i = 0; i < width; ++i)
    for (int64_t c = 0; c < view.shape[1]; ++c) to[c * width + i] = from[c * view.strides[1] + i * view.strides[2]];
}
template <class T>
void store_tile(const T *from, const View &view, int64_t width, T *to) {
  for (int64_t i = 0; i < width; ++i)
    for (int64_t c = 0; c < view.shape[1]; ++c) to[c * view.strides[1] + i * view.strides[2]] = from[c * width + i];
}

// The inputs x and, backward, the gradient with respect to the output; the output is contiguous.
struct Operands {
  View views[3];
  void *data[3];
  int count;
};

// Calls compute(width, rows of each operand, spare memory of spare_rows rows) for each tile.
template <class T, class Compute>
void for_tiles(const Operands &operands, int64_t spare_rows, Compute &&compute) {
  const View &view = operands.views[0];
  const int64_t batch = view.shape[0], channels = view.shape[1], inner = view.shape[2];
  bool is_dense[3];
  int64_t copied = 0;
  for (int i = 0; i < operands.count; ++i) {
    is_dense[i] = operands.views[i].strides[2] == 1;
    copied += is_dense[i] ? 0 : channels;
  }
  // Longer rows need fewer calls; rows are shorter if whole tiles are copied.
  const int64_t wanted = (copied ? 256 : 2048) / (int64_t)sizeof(T);
  const int64_t pieces = (inner + wanted - 1) / wanted, longest = (inner + pieces - 1) / pieces;
  // Allocated here because no exception may leave a thread.
  const int64_t own = (copied + spare_rows) * longest;
  const std::unique_ptr<T[]> memory(new T[omp_get_max_threads() * own]);
#pragma omp parallel if (batch * channels * inner > 16384)
  {
    T *const mine = memory.get() + omp_get_thread_num() * own;
#pragma omp for
    for (int64_t task = 0; task < batch * pieces; ++task) {
      const int64_t n = task / pieces, begin = inner * (task % pieces) / pieces;
      const int64_t width = inner * (task % pieces + 1) / pieces - begin;
      T *next = mine, *origin[3];
      Rows<T> rows[3];
      for (int i = 0; i < operands.count; ++i) {
        const View &own = operands.views[i];
        origin[i] = static_cast<T *>(operands.data[i]) + n * own.strides[0] + begin * own.strides[2];
        rows[i] = {origin[i], own.strides[1]};
        if (is_dense[i]) continue;
        rows[i] = {next, width};
        next += channels * width;
        if (i < operands.count - 1) load_tile<T>(origin[i], own, width, rows[i].data);
      }
      compute(width, rows, next);
      const int out = operands.count - 1;
      if (!is_dense[out]) store_tile<T>(rows[out].data, operands.views[out], width, origin[out]);
    }
  }
}

// Inputs: x; backward: x, the gradient with respect to the output.
template <bool kBackward>
struct Params : WindowNormParams {
  static const char *op() { return kBackward ? "OneDnnLRNGrad" : "OneDnnLRN"; }
  static int input_count() { return kBackward ? 2 : 1; }
};

// Double: the type of elements whose dtype is float64.
template <bool kBackward, class Double>
void run_as(const OpCall<Params<kBackward>> &call) {
  const dnnops_tensor *inputs = call.inputs, &output = call.outputs[0];
  const int input_count = call.params.input_count();
  const int64_t count = element_count(output.shape, output.ndim);
  if (count == 0) return;
  const int64_t bounds[4] = {0, 1, 2, output.ndim}, size = count * item_size(output.dtype);
  Operands operands;
  operands.count = input_count + 1;
  bool is_packed[2] = {false, false};
  for (int i = 0; i < input_count; ++i) {
    operands.data[i] = inputs[i].data;
    is_packed[i] = !strided_view(bounds, inputs[i], operands.views[i]);
    if (is_packed[i]) operands.views[i] = contiguous_view(bounds, inputs[i]);
  }
  const size_t padded = (size + 63) / 64 * 64;
  char *scratch = thread_scratch((is_packed[0] + is_packed[1]) * padded);
  for (int i = 0; i < input_count; ++i) {
    if (!is_packed[i]) continue;
    pack(inputs[i], operands.data[i] = scratch, false);
    scratch += padded;
  }
  operands.data[input_count] = output.data;
  operands.views[input_count] = contiguous_view(bounds, output);
  // Without an inner axis, vectors run along the batch instead.
  for (int i = 0; i < operands.count; ++i) {
    View &view = operands.views[i];
    if (view.shape[2] != 1) continue;
    std::swap(view.shape[0], view.shape[2]);
    std::swap(view.strides[0], view.strides[2]);
  }
  const WindowNorm norm = window_norm(call.params, 1);
  const int64_t channels = operands.views[0].shape[1];
  const auto constant = [](auto rows) { return Rows<const std::remove_pointer_t<decltype(rows.data)>>{rows.data, rows.step}; };
  for_float_dtype(output.dtype, [&](auto zero) {
    using T = std::conditional_t<std::is_same_v<decltype(zero), double>, Double, float>;
    with_power(norm.beta, [&](const auto &power) {
      if constexpr (kBackward)
        for_tiles<T>(operands, 2 * norm.n + 1, [&](int64_t width, const Rows<T> *rows, T *spare) {
          backward_tile<T>(norm, power, channels, width, constant(rows[0]), constant(rows[1]), rows[2], spare);
        });
      else
        for_tiles<T>(operands, 1, [&](int64_t width, const Rows<T> *rows, T *spare) {
          forward_tile<T>(norm, power, channels, width, constant(rows[0]), rows[1], spare);
        });
    });
  });
}

template <bool kBackward>
void run(const OpCall<Params<kBackward>> &call) {
  constexpr int output_count = 1;
  for_float_dtype(call.outputs[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    using Double = std::conditional_t<std::is_same_v<T, float>, double, long double>;
    if (!run_wide<T>(call, output_count, run_as<kBackward, Double>)) run_as<kBackward, double>(call);
  });
}

template <bool kBackward>
void shape(const OpCall<Params<kBackward>> &call) {
  if (call.inputs[0].ndim < 2) fail(DNNOPS_TYPE_ERROR, "expected an array with a batch and a channel axis");
  same_shapes(call.inputs, call.params.input_count(), call.outputs, 1);
}

}  // namespace

DNNOPS_OP(onednn_lrn, Params<false>, shape, run)
DNNOPS_OP(onednn_lrn_grad, Params<true>, shape, run)

}  // namespace dnnops
