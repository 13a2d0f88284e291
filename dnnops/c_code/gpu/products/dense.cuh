// The rest of a dense layer, for epilogues that cuBLASLt does not have.
//
// Macro: DTYPE, as in numbers.cuh.

DEVICE Acc dense_tanh(Acc x) {
#if DTYPE == 1
  return tanh(x);
#else
  return tanhf(x);
#endif
}

DEVICE Acc dense_gelu(Acc x) {
  const Acc inner = (Acc)0.7978845608028654 * (x + (Acc)0.044715 * x * x * x);
  return (Acc)0.5 * x * (1 + dense_tanh(inner));
}

KERNEL void __launch_bounds__(DENSE_THREADS) dense(const GRID_CONSTANT DenseParams p) {
  wait_for_stream();
  const long long groups = (p.columns + DENSE_ELEMENTS - 1) / DENSE_ELEMENTS;
  const long long number = (long long)blockIdx.x * DENSE_THREADS + threadIdx.x;
  const long long row = number / groups, first = number % groups * DENSE_ELEMENTS;
  if (row >= p.rows) return;
  UNROLL
  for (int i = 0; i < DENSE_ELEMENTS; ++i) {
    const long long column = first + i;
    if (column >= p.columns) break;
    Bits *const out = static_cast<Bits *>(p.out) + row * p.columns + column;
    Acc value = p.from_zero ? 0 : to_acc(*out);
    if (p.addend) value += to_acc(static_cast<const Bits *>(p.addend)[row * p.addend_row + column]);
    if (p.bias) value += to_acc(static_cast<const Bits *>(p.bias)[column]);
    if (p.activation == DENSE_RELU) value = value <= 0 ? 0 : value;  // NaN stays NaN
    if (p.activation == DENSE_GELU) value = dense_gelu(value);
    *out = from_acc(value);
  }
}
