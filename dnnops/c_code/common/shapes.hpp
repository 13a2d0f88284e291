// Helpers of the shape functions: compare the shapes of operands, set those of outputs.
#ifndef DNNOPS_SHAPES_HPP
#define DNNOPS_SHAPES_HPP

#include <algorithm>
#include <initializer_list>

#include "error.hpp"

namespace dnnops {

inline bool same_shape(const dnnops_tensor &a, const dnnops_tensor &b) {
  return a.ndim == b.ndim && std::equal(a.shape, a.shape + a.ndim, b.shape);
}

inline void set_output(dnnops_tensor &output, int64_t dtype, const int64_t *shape, int64_t ndim) {
  output.dtype = dtype;
  output.ndim = ndim;
  std::copy(shape, shape + ndim, output.shape);
}

inline void set_output(dnnops_tensor &output, int64_t dtype, std::initializer_list<int64_t> shape) {
  set_output(output, dtype, shape.begin(), static_cast<int64_t>(shape.size()));
}

// Gives an output the dtype and shape of another array.
inline void set_output(dnnops_tensor &output, const dnnops_tensor &like) {
  set_output(output, like.dtype, like.shape, like.ndim);
}

// Calls loops(T{}) with the element type of a dtype.
template <class Loops>
void for_float_dtype(int64_t dtype, Loops &&loops) {
  if (dtype == DNNOPS_FLOAT32)
    loops(float{});
  else if (dtype == DNNOPS_FLOAT64)
    loops(double{});
  else
    fail(DNNOPS_TYPE_ERROR, "expected float32 or float64, got %s", dtype_name(dtype));
}

}  // namespace dnnops
#endif
