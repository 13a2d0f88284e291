// Copies whose addresses change between launches of a CUDA graph, as in c_code/gpu/capture/graph_copies.cpp.
// dnnops/gpu/kernels.py compiles this with CuPy.

// Loads of one thread before its stores, which keep the memory busy.
constexpr int AT_ONCE = 4;
// Copies whose words are read together: their memory is the host's, and each read takes about a microsecond.
constexpr int COPIES_AT_ONCE = 128;
constexpr int WARP = 32;

// Copies one warp's share of the items, which go to the warps in turn.
template <class T>
DEVICE void copy_items(char *to, const char *from, long long bytes, unsigned warp, unsigned warps) {
  const long long count = bytes / (long long)sizeof(T), step = WARP * (long long)warps;
  const T *source = (const T *)from;
  T *target = (T *)to;
  for (long long i = WARP * (long long)warp + threadIdx.x % WARP; i < count; i += AT_ONCE * step) {
    T items[AT_ONCE];
    UNROLL
    for (int k = 0; k < AT_ONCE; ++k)
      if (i + k * step < count) items[k] = source[i + k * step];
    UNROLL
    for (int k = 0; k < AT_ONCE; ++k)
      if (i + k * step < count) target[i + k * step] = items[k];
  }
}

// Copies one warp's share, and returns how many warps have one. The first of these is warp 0.
DEVICE unsigned copy_memory(char *to, const char *from, long long bytes, unsigned warp, unsigned warps) {
  if (to == from) return 0;
  // The largest power of two that divides both addresses.
  const unsigned long long addresses = (unsigned long long)to | (unsigned long long)from | 16;
  const long long size = (long long)(addresses & (~addresses + 1)), even = bytes / size * size;
  if (size == 16) copy_items<uint4>(to, from, even, warp, warps);
  if (size == 8) copy_items<unsigned long long>(to, from, even, warp, warps);
  if (size == 4) copy_items<unsigned>(to, from, even, warp, warps);
  if (size == 2) copy_items<unsigned short>(to, from, even, warp, warps);
  if (size == 1) copy_items<unsigned char>(to, from, even, warp, warps);
  copy_items<unsigned char>(to + even, from + even, bytes - even, warp, warps);
  const long long shares = (bytes + WARP * size - 1) / (WARP * size);
  return shares < warps ? (unsigned)shares : warps;
}

KERNEL void graph_copies(GRID_CONSTANT const GraphCopiesParams p) {
  wait_for_stream();
  __shared__ long long words[COPY_WORDS * COPIES_AT_ONCE];
  const unsigned launch = *(volatile unsigned *)p.counters;
  const char *slot = p.table + TABLE_HEADER_BYTES + (long long)(launch & (unsigned)(p.slots - 1)) * p.slot_bytes;
  const volatile long long *copies = (const volatile long long *)slot + COPY_WORDS * p.first;
  const unsigned warps_of_block = blockDim.x / WARP, warps = gridDim.x * warps_of_block;
  unsigned warp = blockIdx.x * warps_of_block + threadIdx.x / WARP;
  for (long long begin = 0; begin < p.count; begin += COPIES_AT_ONCE) {
    const int here = p.count - begin < COPIES_AT_ONCE ? (int)(p.count - begin) : COPIES_AT_ONCE;
    __syncthreads();
    for (int i = threadIdx.x; i < COPY_WORDS * here; i += blockDim.x) words[i] = copies[COPY_WORDS * begin + i];
    __syncthreads();
    // Each copy starts at the warp after those that have a share of the one before, so small ones run side by side.
    for (int i = 0; i < here; ++i) {
      const long long *copy = words + COPY_WORDS * i;
      const unsigned used = copy_memory((char *)copy[0], (const char *)copy[1], copy[2], warp, warps);
      warp = warp < used ? warp + warps - used : warp - used;
    }
  }
  if (!p.is_last) return;
  // The last block that has read its slot lets the host write to it.
  __syncthreads();
  if (threadIdx.x) return;
  __threadfence();
  if (atomicAdd(p.counters + 1, 1u) != gridDim.x - 1) return;
  p.counters[0] = launch + 1;
  p.counters[1] = 0;
  __threadfence_system();
  *(volatile unsigned *)p.table = launch + 1;
}
