// Reductions that cudnnReduceTensor does not support: over a single element each, and with 64-bit indices.
//
// Macros: FROM and TO, dtypes as in numbers.cuh, and ABSOLUTE.

struct reduction_launch {
  const void *from;
  void *to;
  long long count;
};

KERNEL void __launch_bounds__(256) copy_elements(const GRID_CONSTANT reduction_launch launch) {
  wait_for_stream();
  const auto *from = static_cast<const Number<FROM>::Bits *>(launch.from);
  auto *to = static_cast<Number<TO>::Bits *>(launch.to);
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < launch.count;
       i += (long long)gridDim.x * blockDim.x) {
    const auto value = Number<FROM>::acc(from[i]);
    to[i] = Number<TO>::bits(ABSOLUTE && value < 0 ? -value : value == 0 && ABSOLUTE ? 0 : value);
  }
}

KERNEL void __launch_bounds__(256) widen_indices(const GRID_CONSTANT reduction_launch launch) {
  wait_for_stream();
  const auto *from = static_cast<const unsigned *>(launch.from);
  auto *to = static_cast<long long *>(launch.to);
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < launch.count;
       i += (long long)gridDim.x * blockDim.x)
    to[i] = from[i];
}
