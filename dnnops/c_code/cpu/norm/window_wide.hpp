// Local response and divisive normalization of large numbers, whose squares or powers would leave the range of their
// dtype: of float32 in float64, and of float64 in long double, which on most platforms has a larger range.
#ifndef DNNOPS_ONEDNN_WINDOW_WIDE_HPP
#define DNNOPS_ONEDNN_WINDOW_WIDE_HPP

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <type_traits>
#include <vector>

#include "../../common/op.hpp"
#include "../base/pieces.hpp"

namespace dnnops {

// From here on, gradients take powers of squares that may be subnormal. Ordinary data is far from it.
template <class T>
constexpr T kMostSquared = std::is_same_v<T, float> ? 1e9 : 1e75;

template <class T>
using Wider = std::conditional_t<std::is_same_v<T, float>, double, long double>;

template <class T>
bool has_large_elements(const dnnops_tensor &x) {
  std::atomic<bool> found{false};
  const Pieces<T> pieces(x);
  by_pieces(element_count(x.shape, x.ndim), [&](int64_t begin, int64_t count) {
    T buffer[kPiece], most = 0;
    const T *values = pieces.read(begin, count, buffer);
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(values[i]));
    if (most > kMostSquared<T>) found = true;
  });
  return found;
}

// A contiguous copy in the wider type. There is no dtype for long double: the tensor says float64, with its strides.
template <class T>
class WideCopy {
 public:
  dnnops_tensor tensor;

  explicit WideCopy(const dnnops_tensor &like) : tensor(like) {
    values_.reset(new Wider<T>[element_count(like.shape, like.ndim)]);
    tensor.data = values_.get();
    tensor.dtype = DNNOPS_FLOAT64;
    int64_t step = sizeof(double);
    for (int64_t axis = like.ndim - 1; axis >= 0; step *= like.shape[axis--]) tensor.strides[axis] = step;
  }
  void take(const dnnops_tensor &x) {
    const Pieces<T> pieces(x);
    by_pieces(element_count(x.shape, x.ndim), [&](int64_t begin, int64_t count) {
      T buffer[kPiece];
      std::copy_n(pieces.read(begin, count, buffer), count, values_.get() + begin);
    });
  }
  void round_into(const dnnops_tensor &output) const {
    const Pieces<T> pieces(output);
    by_pieces(element_count(output.shape, output.ndim), [&](int64_t begin, int64_t count) {
      T buffer[kPiece], *to = pieces.target(begin, buffer);
      for (int64_t i = 0; i < count; ++i) to[i] = (T)values_[begin + i];
      pieces.finish(begin, count, buffer);
    });
  }

 private:
  std::unique_ptr<Wider<T>[]> values_;
};

// Runs a call on operands of type T in the wider type if they have large elements; else returns false.
template <class T, class Params, class Run>
bool run_wide(const OpCall<Params> &call, int output_count, Run &&run) {
  const int input_count = call.params.input_count();
  if (std::none_of(call.inputs, call.inputs + input_count, has_large_elements<T>)) return false;
  std::vector<WideCopy<T>> copies;
  for (int i = 0; i < input_count; ++i) {
    copies.emplace_back(call.inputs[i]);
    copies.back().take(call.inputs[i]);
  }
  for (int i = 0; i < output_count; ++i) copies.emplace_back(call.outputs[i]);
  std::vector<dnnops_tensor> tensors;
  for (const WideCopy<T> &copy : copies) tensors.push_back(copy.tensor);
  run(OpCall<Params>{call.context, call.params, tensors.data(), tensors.data() + input_count});
  for (int i = 0; i < output_count; ++i) copies[input_count + i].round_into(call.outputs[i]);
  return true;
}

}  // namespace dnnops
#endif
