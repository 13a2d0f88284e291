// Batch normalization of inference, folded into the filters and biases of many convolutions at once. Compiled with
// FILTER_DTYPE, VECTOR_DTYPE, OUT_DTYPE: of the filters, of the statistics, and of the results
// ITEMS: the largest number of convolutions

struct FoldItem {
  const void *filters, *gamma, *beta, *mean, *var;  // of gamma and the others, one element for each filter
  void *scaled, *bias;
  // The number of filters, their channels and their positions; filters per block; and the item's first block.
  unsigned outputs, channels, positions, per_block, first_block;
  unsigned transposes;  // whether the scaled filters are channels last
};

struct FoldLaunch {
  double epsilon;
  unsigned long long count;
  FoldItem items[ITEMS];
};

DEVICE double element(const void *vector, unsigned i) {
  using Of = Number<VECTOR_DTYPE>;
  return Of::acc(static_cast<const Of::Bits *>(vector)[i]);
}

// Finite numbers stay finite in float16: an infinite filter times 0 would be NaN, and so would the difference of a
// product and a bias that are both infinite.
template <class Acc>
DEVICE Number<OUT_DTYPE>::Bits finite(Acc value) {
  using Out = Number<OUT_DTYPE>;
  const Acc LARGEST = 65504, INFINITE = INFINITY;
  if (OUT_DTYPE == 2 && value > LARGEST && value < INFINITE) value = LARGEST;
  if (OUT_DTYPE == 2 && value < -LARGEST && value > -INFINITE) value = -LARGEST;
  return Out::bits((Out::Acc)value);
}

KERNEL void fold_batchnorm(GRID_CONSTANT const FoldLaunch launch) {
  wait_for_stream();
  using In = Number<FILTER_DTYPE>;
  using Out = Number<OUT_DTYPE>;
  unsigned number = 0;
  while (number + 1 < launch.count && launch.items[number + 1].first_block <= blockIdx.x) ++number;
  const FoldItem &item = launch.items[number];
  const unsigned begin = (blockIdx.x - item.first_block) * item.per_block;
  const unsigned end = item.outputs - begin < item.per_block ? item.outputs : begin + item.per_block;
  const unsigned size = item.channels * item.positions;
  for (unsigned k = begin; k < end; ++k) {
    const double scale = element(item.gamma, k) / sqrt(element(item.var, k) + launch.epsilon);
    const In::Bits *const from = static_cast<const In::Bits *>(item.filters) + (size_t)k * size;
    Out::Bits *const to = static_cast<Out::Bits *>(item.scaled) + (size_t)k * size;
    if (threadIdx.x == 0)
      static_cast<Out::Bits *>(item.bias)[k] =
          finite((Out::Acc)(element(item.beta, k) - element(item.mean, k) * scale));
    const In::Acc factor = (In::Acc)scale;
    if (item.transposes) {
      UNROLL_4
      for (unsigned i = threadIdx.x; i < size; i += blockDim.x) {
        const unsigned position = i / item.channels, channel = i - position * item.channels;
        to[i] = finite(In::acc(from[channel * item.positions + position]) * factor);
      }
    } else {
      UNROLL_4
      for (unsigned i = threadIdx.x; i < size; i += blockDim.x)
        to[i] = finite(In::acc(from[i]) * factor);
    }
  }
}
