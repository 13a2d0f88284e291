// Divisive normalization by the squares in a spatial window, and its gradients, in plain loops with one image
// plane per task.
#include <memory>

#include <omp.h>

#include "../../common/op.hpp"
#include "../base/contiguous.hpp"
#include "../base/plan.hpp"
#include "window_norm.hpp"
#include "window_wide.hpp"

namespace dnnops {
namespace {

// Inputs: x, means if present and, backward, the gradient with respect to the output. Outputs: y, or dx and, with
// means, dmeans.
template <bool kBackward>
struct Params : WindowNormParams {
  int64_t has_means;
  static const char *op() { return kBackward ? "OneDnnDivisiveNormalizationGrad" : "OneDnnDivisiveNormalization"; }
  int input_count() const { return (kBackward ? 2 : 1) + (has_means ? 1 : 0); }
};

struct Plane {
  int64_t ndim, shape[3], size;
};

// Sums a plane over windows. Returns the buffer that holds the result, values or spare.
template <class T>
T *sum_windows(const Plane &plane, T *values, T *spare, int64_t behind, int64_t ahead) {
  int64_t inner = 1;
  for (int64_t axis = plane.ndim - 1; axis >= 0; --axis) {
    const int64_t length = plane.shape[axis];
    if (length > 1) {
      const int64_t pieces = piece_count(plane.size / length / inner, length, inner);
      for (int64_t piece = 0; piece < pieces; ++piece) sum_piece(values, spare, piece, length, inner, behind, ahead);
      std::swap(values, spare);
    }
    inner *= length;
  }
  return values;
}

// Operands of the Op that are absent are null.
template <class T>
struct Operands {
  const T *x, *means, *gy;
  T *first, *second;
};

// Memory: 3 planes.
template <class T, class Power>
void run_plane(const WindowNorm &norm, const Power &power, const Plane &plane, const Operands<T> &of, T *memory) {
  const int64_t size = plane.size;
  T *values = memory, *spare = memory + size, *powers = memory + 2 * size;
  if (of.means) {
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) values[i] = (of.x[i] - of.means[i]) * (of.x[i] - of.means[i]);
  } else {
    set_squares(of.x, values, size);
  }
  const T *sums = sum_windows(plane, values, spare, norm.behind, norm.ahead);
  if (!of.gy) return normalize_row(norm, power, of.x, sums, of.first, size);
  share_row(norm, power, of.x, of.gy, sums, powers, values, size);
  sums = sum_windows(plane, values, spare, norm.ahead, norm.behind);
  const T factor = (T)(2 * norm.scale * norm.beta);
  if (of.means) {
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) {
      const T through_squares = factor * (of.x[i] - of.means[i]) * sums[i];
      of.first[i] = of.gy[i] * powers[i] - through_squares;
      of.second[i] = through_squares;
    }
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) of.first[i] = of.gy[i] * powers[i] - factor * of.x[i] * sums[i];
}

// Double: the type of elements whose dtype is float64.
template <bool kBackward, class Double>
void run_as(const OpCall<Params<kBackward>> &call) {
  const Params<kBackward> &params = call.params;
  const dnnops_tensor *inputs = call.inputs, *outputs = call.outputs, &x = inputs[0];
  const int64_t count = element_count(x.shape, x.ndim), inputs_given = params.input_count();
  if (count == 0) return;
  Plane plane{x.ndim - 2, {1, 1, 1}, 1};
  for (int64_t i = 0; i < plane.ndim; ++i) plane.size *= plane.shape[i] = x.shape[2 + i];
  const int64_t planes = count / plane.size;
  const void *data[3];
  contiguous_inputs(inputs, inputs_given, data);
  const WindowNorm norm = window_norm(params, plane.ndim);
  for_float_dtype(x.dtype, [&](auto zero) {
    using T = std::conditional_t<std::is_same_v<decltype(zero), double>, Double, float>;
    const auto at = [&](const void *array, int64_t index) {
      return array ? static_cast<const T *>(array) + index * plane.size : nullptr;
    };
    const void *means = params.has_means ? data[1] : nullptr, *gy = kBackward ? data[inputs_given - 1] : nullptr;
    void *second = kBackward && params.has_means ? outputs[1].data : nullptr;
    with_power(norm.beta, [&](const auto &power) {
      // Allocated here because no exception may leave a thread.
      const std::unique_ptr<T[]> memory(new T[omp_get_max_threads() * 3 * plane.size]);
#pragma omp parallel if (count > 16384)
      {
        T *const mine = memory.get() + omp_get_thread_num() * 3 * plane.size;
#pragma omp for
        for (int64_t i = 0; i < planes; ++i)
          run_plane<T>(norm, power, plane,
                       {at(data[0], i), at(means, i), at(gy, i), const_cast<T *>(at(outputs[0].data, i)),
                        const_cast<T *>(at(second, i))},
                       mine);
      }
    });
  });
}

template <bool kBackward>
void run(const OpCall<Params<kBackward>> &call) {
  const int output_count = kBackward && call.params.has_means ? 2 : 1;
  for_float_dtype(call.outputs[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    using Double = std::conditional_t<std::is_same_v<T, float>, double, long double>;
    if (!run_wide<T>(call, output_count, run_as<kBackward, Double>)) run_as<kBackward, double>(call);
  });
}

template <bool kBackward>
void shape(const OpCall<Params<kBackward>> &call) {
  const Params<kBackward> &params = call.params;
  if (call.inputs[0].ndim < 3 || call.inputs[0].ndim > 5)
    fail(DNNOPS_TYPE_ERROR, "expected a batch axis, a channel axis, and one to three spatial axes");
  same_shapes(call.inputs, params.input_count(), call.outputs, kBackward && params.has_means ? 2 : 1);
}

}  // namespace

DNNOPS_OP(onednn_divisive_normalization, Params<false>, shape, run)
DNNOPS_OP(onednn_divisive_normalization_grad, Params<true>, shape, run)

}  // namespace dnnops
