// The epilogue of a convolution, in place: activation(scale * y + addend + bias). Compiled with
// DTYPE, VECTOR_DTYPE: of arrays, and of scale and bias
// PARTS, ACTIVATION: as in dnnops_conv_epilogue
// UNIT: the number of adjacent elements of a thread
// CHANNELS_LAST: whether they belong to adjacent channels, rather than to one
// INDEX: an unsigned type that holds the number of units

struct EpilogueLaunch {
  void *y;
  const void *scale, *bias, *addend;
  // The number of units; channels, and units from one channel to the next, both in units.
  unsigned long long units, channels, step;
  double coef;
};

struct alignas(sizeof(Bits) * UNIT) EpilogueUnit {
  Bits at[UNIT];
};

DEVICE Acc activated(Acc x, Acc coef) {
#if ACTIVATION == 1
  return x <= 0 ? 0 : x;  // NaN remains
#elif ACTIVATION == 2
  return x <= 0 ? 0 : x >= coef ? coef : x;
#elif ACTIVATION == 3
  return tanh(x);
#elif ACTIVATION == 4
  return 1 / (1 + exp(-x));
#elif ACTIVATION == 5
  return x > 0 ? x : coef * expm1(x);
#elif ACTIVATION == 6
  return x / (1 + exp(-coef * x));
#else
  return x;
#endif
}

DEVICE Acc of_channel(const void *vector, INDEX channel) {
  using Of = Number<VECTOR_DTYPE>;
  return (Acc)Of::acc(static_cast<const Of::Bits *>(vector)[channel]);
}

KERNEL void conv_epilogue(EpilogueLaunch launch) {
  wait_for_stream();
  EpilogueUnit *const y = static_cast<EpilogueUnit *>(launch.y);
  const INDEX count = (INDEX)launch.units, channels = (INDEX)launch.channels, step = (INDEX)launch.step;
  const INDEX stride = (INDEX)gridDim.x * blockDim.x;
  for (INDEX i = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
    EpilogueUnit unit = y[i];
#if PARTS & 4
    const EpilogueUnit addend = static_cast<const EpilogueUnit *>(launch.addend)[i];
#endif
#if PARTS & 3
    const INDEX first = CHANNELS_LAST ? i % channels * UNIT : i / step % channels;
#endif
    UNROLL for (int k = 0; k < UNIT; ++k) {
      Acc x = to_acc(unit.at[k]);
#if PARTS & 1
      x *= of_channel(launch.scale, CHANNELS_LAST ? first + k : first);
#endif
#if PARTS & 4
      x += to_acc(addend.at[k]);
#endif
#if PARTS & 2
      x += of_channel(launch.bias, CHANNELS_LAST ? first + k : first);
#endif
      unit.at[k] = from_acc(activated(x, (Acc)launch.coef));
    }
    y[i] = unit;
    if (count - i <= stride) break;  // the sum might overflow
  }
}
