// Reductions of rows that are adjacent in memory. dnnops/gpuarray/row_reduction.py compiles this with CuPy,
// after the declarations of dnnops/gpuarray/reduction_source.py; a test compiles it for the host.
//
// Macro: LANES, a power of 2 up to THREADS: the number of threads that share a row, or a part of one.

// A quarter of a multiprocessor's threads; each has this many loads of 16 bytes in flight.
constexpr int THREADS = 256, LOADS = 4;
constexpr int V = 16 / (int)sizeof(Stored);
// Whether packs are loaded before the last ones are added. Adding float32 in float64 takes long; where fewer threads
// share a row, the work of others hides that.
constexpr bool AHEAD = LANES == THREADS && sizeof(Stored) == 4 && sizeof(Acc) == 8;

union Pack {
  uint4 words;
  Stored of[V];
};

// Combines the values of all lanes of each row. At least the first lane gets the result.
DEVICE Acc of_lanes(Acc value) {
  UNROLL
  for (int apart = (LANES < 32 ? LANES : 32) / 2; apart; apart /= 2)
    value = combine(value, (Acc)__shfl_xor_sync(0xffffffffu, value, apart));
#if LANES > 32
  __shared__ Acc of_warps[THREADS / 32];
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x % LANES == 0) {
    UNROLL
    for (int warp = 1; warp < LANES / 32; ++warp) value = combine(value, of_warps[threadIdx.x / 32 + warp]);
  }
#endif
  return value;
}

DEVICE void add(Acc &sum, const Pack &pack) {
  UNROLL
  for (int v = 0; v < V; ++v) sum = combine(sum, acc_of(pack.of[v]));
}

// With more than one part, each part writes its value to `partial`, for finish_rows. All threads of a block then share
// a row.
KERNEL void __launch_bounds__(THREADS, 4)
    reduce_rows(const Stored *from, Result *to, Acc *partial, long long rows, long long length, int parts) {
  constexpr int ROWS = THREADS / LANES;  // rows per block
  if (ROWS > 1) parts = 1;               // known to the compiler
  const int lane = threadIdx.x % LANES, part = blockIdx.x % parts;
  const long long row = (long long)(blockIdx.x / parts) * ROWS + threadIdx.x / LANES;
  Acc sums[LOADS];
  UNROLL
  for (int k = 0; k < LOADS; ++k) sums[k] = IDENTITY;
  if (row < rows) {
    const Stored *const begin = from + row * length;
    const int skew = (int)(reinterpret_cast<unsigned long long>(begin) % 16 / sizeof(Stored));
    long long head = skew ? V - skew : 0;
    if (head > length) head = length;
    const long long packs = (length - head) / V, step = (long long)LANES * parts;
    const uint4 *const aligned = reinterpret_cast<const uint4 *>(begin + head);
    long long i = (long long)part * LANES + lane;
    const auto is_full = [&](long long at) { return at + (LOADS - 1) * step < packs; };
    Pack loaded[LOADS];
    const auto load = [&] {
      UNROLL
      for (int k = 0; k < LOADS; ++k) loaded[k].words = __ldg(aligned + i + k * step);
    };
    if (AHEAD && is_full(i)) load();
    while (is_full(i)) {
      if (!AHEAD) load();
      i += LOADS * step;
      const bool goes_on = AHEAD && is_full(i);
      UNROLL
      for (int k = 0; k < LOADS; ++k) {
        const Pack pack = loaded[k];
        if (goes_on) loaded[k].words = __ldg(aligned + i + k * step);
        add(sums[k], pack);
      }
    }
    // At most LOADS - 1 packs are left; short rows only have these.
    Pack left[LOADS - 1];
    UNROLL
    for (int k = 0; k < LOADS - 1; ++k)
      if (i + k * step < packs) left[k].words = __ldg(aligned + i + k * step);
    UNROLL
    for (int k = 0; k < LOADS - 1; ++k)
      if (i + k * step < packs) add(sums[k], left[k]);
    if (part == 0) {  // the elements before and after the packs, less than a pack on either side
      for (long long j = lane; j < head; j += LANES) sums[1] = combine(sums[1], acc_of(begin[j]));
      for (long long j = head + packs * V + lane; j < length; j += LANES) sums[2] = combine(sums[2], acc_of(begin[j]));
    }
  }
  const Acc all = of_lanes(combine(combine(sums[0], sums[1]), combine(sums[2], sums[3])));
  if (lane || row >= rows) return;
  if (parts > 1)
    partial[row * parts + part] = all;
  else
    to[row] = result_of(all);
}

// One block per row.
#if LANES == 256
static_assert(LANES == THREADS, "all threads of a block share a row");
KERNEL void __launch_bounds__(THREADS) finish_rows(const Acc *partial, Result *to, int parts) {
  const Acc *const from = partial + (long long)blockIdx.x * parts;
  Acc sum = IDENTITY;
  for (int i = threadIdx.x; i < parts; i += THREADS) sum = combine(sum, from[i]);
  sum = of_lanes(sum);
  if (threadIdx.x == 0) to[blockIdx.x] = result_of(sum);
}
#endif
