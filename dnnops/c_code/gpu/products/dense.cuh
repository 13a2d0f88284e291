// The rest of a dense layer, for epilogues that cuBLASLt does not have.
//
// Macro: DTYPE, as in numbers.cuh.

constexpr int DENSE_WORD = 16 / sizeof(Bits);  // elements in 16 bytes

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

// Returns an element of the layer. What there is none of is null.
DEVICE Bits finished(const DenseParams &p, Bits product, const Bits *addend, const Bits *bias) {
  Acc value = p.from_zero ? 0 : to_acc(product);
  if (addend) value += to_acc(*addend);
  if (bias) value += to_acc(*bias);
  if (p.activation == DENSE_RELU) value = value <= 0 ? 0 : value;  // NaN stays NaN
  if (p.activation == DENSE_GELU) value = dense_gelu(value);
  return from_acc(value);
}

union DenseWord {
  uint4 word;
  Bits elements[DENSE_WORD];
};

// Words of 16 bytes, all of which are read before the first is written.
DEVICE void finish_words(const DenseParams &p) {
  const unsigned row_words = (unsigned)(p.columns / DENSE_WORD), words = (unsigned)(p.rows * row_words);
  const unsigned first = blockIdx.x * (DENSE_THREADS * DENSE_WORDS) + threadIdx.x;
  uint4 *const out = static_cast<uint4 *>(p.out);
  DenseWord read[DENSE_WORDS];
  UNROLL
  for (int i = 0; i < DENSE_WORDS; ++i)
    if (const unsigned word = first + i * DENSE_THREADS; word < words && !p.from_zero) read[i].word = out[word];
  UNROLL
  for (int i = 0; i < DENSE_WORDS; ++i) {
    const unsigned word = first + i * DENSE_THREADS;
    if (word >= words) break;
    DenseWord addend, bias;
    if (p.addend || p.bias) {
      const unsigned row = word / row_words, column = word - row * row_words;
      if (p.addend)
        addend.word = *reinterpret_cast<const uint4 *>(static_cast<const Bits *>(p.addend) + row * p.addend_row +
                                                       (long long)column * DENSE_WORD);
      if (p.bias) bias.word = static_cast<const uint4 *>(p.bias)[column];
    }
    UNROLL
    for (int k = 0; k < DENSE_WORD; ++k)
      read[i].elements[k] = finished(p, read[i].elements[k], p.addend ? addend.elements + k : nullptr,
                                     p.bias ? bias.elements + k : nullptr);
    store_16_bytes(out + word, read[i].word);
  }
}

DEVICE void finish_elements(const DenseParams &p) {
  const long long count = p.rows * p.columns;
  const long long first = (long long)blockIdx.x * (DENSE_THREADS * DENSE_ELEMENTS) + threadIdx.x;
  Bits *const out = static_cast<Bits *>(p.out);
  UNROLL
  for (int i = 0; i < DENSE_ELEMENTS; ++i) {
    const long long number = first + i * DENSE_THREADS;
    if (number >= count) break;
    const long long row = number / p.columns, column = number - row * p.columns;
    const Bits *const addend = static_cast<const Bits *>(p.addend), *const bias = static_cast<const Bits *>(p.bias);
    out[number] = finished(p, out[number], addend ? addend + row * p.addend_row + column : nullptr,
                           bias ? bias + column : nullptr);
  }
}

KERNEL void __launch_bounds__(DENSE_THREADS) dense(const GRID_CONSTANT DenseParams p) {
  wait_for_stream();
  if (p.by_words)
    finish_words(p);
  else
    finish_elements(p);
}
