// Gradients of elu and swish. cuDNN's slope of elu, y + alpha, has lost the digits of a small one, and its slope of
// swish multiplies 0 by infinity.
//
// Macros: DTYPE, as in numbers.cuh; SWISH, or elu.

constexpr int THREADS = 256, ELEMENTS = 4;  // of a thread, one block's width apart

DEVICE Acc slope_of(Acc x, Acc coef) {
#if SWISH
  // Beyond it, the slope is 0 or 1, as in dnnops/nnet/activation/op.py.
  const Acc bound = sizeof(Acc) == sizeof(double) ? 1024 : 128, product = coef * x;
  const Acc scaled = product < -bound ? -bound : product > bound ? bound : product;  // NaN is kept
  const Acc other = 1 / (1 + exp(scaled)), sigmoid = 1 / (1 + exp(-scaled));
  return sigmoid * (1 + scaled * other);
#else
  return is_positive(x) ? 1 : coef * exp(x);
#endif
}

KERNEL void __launch_bounds__(THREADS) activation_grad(const GRID_CONSTANT ActivationGradParams p) {
  wait_for_stream();
  const Bits *const x = static_cast<const Bits *>(p.x), *const gy = static_cast<const Bits *>(p.gy);
  Bits *const gx = static_cast<Bits *>(p.gx);
  const long long first = (long long)blockIdx.x * (THREADS * ELEMENTS) + threadIdx.x;
  Bits given[ELEMENTS], gradient[ELEMENTS];
  UNROLL
  for (int i = 0; i < ELEMENTS; ++i) {
    const long long at = first + i * THREADS;
    if (at < p.count) given[i] = x[at];
    if (at < p.count) gradient[i] = gy[at];
  }
  UNROLL
  for (int i = 0; i < ELEMENTS; ++i) {
    const long long at = first + i * THREADS;
    if (at < p.count) gx[at] = from_acc(to_acc(gradient[i]) * slope_of(to_acc(given[i]), (Acc)p.coef));
  }
}
