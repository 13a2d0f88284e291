// The kernel for all ways of batchnorm.cuh.

// The number of the next unit of work, over all blocks.
DEVICE int next_number(const Shared &space) {
  __shared__ int number;
  __syncthreads();  // the previous number has been read, and so has other shared memory
  if (threadIdx.x == 0) number = (int)atomicAdd(space.blocks, 1u);
  __syncthreads();
  return number;
}

KERNEL void __launch_bounds__(THREADS, BLOCKS) batchnorm(const BatchNormParams p) {
  wait_for_stream();
  if constexpr (HOW == BATCHNORM_BY_GIVEN) {
    const Place place = place_of(p, blockIdx.x / p.splits);
    const Formula formula(p, Given(p, place), nullptr);
    normalize(p, Walk(p, place, blockIdx.x % p.splits), formula);
  } else if constexpr (HOW == BATCHNORM_SWEPT) {
    __shared__ SweptTable table;
    sweep_rows(p, table);
  } else if constexpr (HOW == BATCHNORM_BY_WARPS) {
    normalize_by_warps(p);
  } else if constexpr (HOW == BATCHNORM_HELD) {
    normalize_held(p);
  } else if constexpr (HOW == BATCHNORM_SHORT) {
    normalize_short(p);
  } else {
    __shared__ Table table;
    __shared__ Ready ready[COLUMNS];
    if constexpr (HOW == BATCHNORM_ALONE) {
      const int group = blockIdx.x, channel = group * COLUMNS + (int)threadIdx.x;
      const Place place = place_of(p, group);
      keep(p, place, 0);
      const Sums sums = sum_up(p, group, 0, table);
      if (threadIdx.x < COLUMNS && channel < p.channels)
        ready[threadIdx.x] = finish(p, channel, sums, known(p, channel), true);
      const Given given(p, place);
      __syncthreads();
      const Formula formula(p, given, own(ready));
      normalize(p, Walk(p, place, 0), formula);
    } else if constexpr (HOW == BATCHNORM_KEPT) {
      // A block works on each number it takes, so blocks only wait for others of their group.
      const Shared space(p);
      const int total = p.groups * p.splits;
      for (int work = next_number(space); work < total; work = next_number(space)) {
        const int group = work / p.splits, split = work % p.splits;
        add_to_group(p, space, group, split, table);
        normalize_when_ready(p, space, group, split, ready);
      }
    } else {
      // Blocks are numbered as they start, so everything that a block waits for has already started.
      const Shared space(p);
      const int number = next_number(space), total = p.groups * p.splits, pair = number - p.lag;
      const bool adds = pair < 0 || (number < 2 * total - p.lag && pair % 2 == 0);
      if (adds) {
        const int work = pair < 0 ? number : p.lag + pair / 2;
        add_to_group(p, space, work / p.splits, work % p.splits, table);
      } else {
        const int work = number < 2 * total - p.lag ? pair / 2 : number - total;
        normalize_when_ready(p, space, work / p.splits, work % p.splits, ready);
      }
    }
  }
}
