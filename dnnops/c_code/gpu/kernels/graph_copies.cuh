// Copies whose addresses change between launches of a CUDA graph, as in c_code/gpu/base/graph_copies.cpp.
// dnnops/gpu/kernels.py compiles this with CuPy.

// Loads of one thread before its stores, which keep the memory busy.
constexpr int AT_ONCE = 4;
// Copies whose words are read together: their memory is the host's, and each read takes about a microsecond.
constexpr int COPIES_AT_ONCE = 32;

template <class T>
DEVICE void copy_items(char *to, const char *from, long long bytes) {
  const long long count = bytes / (long long)sizeof(T), step = gridDim.x * (long long)blockDim.x;
  const T *source = (const T *)from;
  T *target = (T *)to;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += AT_ONCE * step) {
    T items[AT_ONCE];
    UNROLL
    for (int k = 0; k < AT_ONCE; ++k)
      if (i + k * step < count) items[k] = source[i + k * step];
    UNROLL
    for (int k = 0; k < AT_ONCE; ++k)
      if (i + k * step < count) target[i + k * step] = items[k];
  }
}

DEVICE void copy_memory(char *to, const char *from, long long bytes) {
  if (to == from) return;
  const unsigned long long addresses = (unsigned long long)to | (unsigned long long)from;
  const long long size = addresses % 16 == 0 ? 16 : addresses % 4 == 0 ? 4 : 1, even = bytes / size * size;
  if (size == 16) copy_items<uint4>(to, from, even);
  if (size == 4) copy_items<unsigned>(to, from, even);
  copy_items<unsigned char>(size == 1 ? to : to + even, size == 1 ? from : from + even,
                            size == 1 ? bytes : bytes - even);
}

KERNEL void graph_copies(GRID_CONSTANT const GraphCopiesParams p) {
  wait_for_stream();
  __shared__ long long words[COPY_WORDS * COPIES_AT_ONCE];
  const unsigned launch = *(volatile unsigned *)p.counters;
  const char *slot = p.table + TABLE_HEADER_BYTES + (long long)(launch & (unsigned)(p.slots - 1)) * p.slot_bytes;
  const volatile long long *copies = (const volatile long long *)slot + COPY_WORDS * p.first;
  for (long long begin = 0; begin < p.count; begin += COPIES_AT_ONCE) {
    const int here = p.count - begin < COPIES_AT_ONCE ? (int)(p.count - begin) : COPIES_AT_ONCE;
    __syncthreads();
    for (int i = threadIdx.x; i < COPY_WORDS * here; i += blockDim.x) words[i] = copies[COPY_WORDS * begin + i];
    __syncthreads();
    for (int i = 0; i < COPY_WORDS * here; i += COPY_WORDS)
      copy_memory((char *)words[i], (const char *)words[i + 1], words[i + 2]);
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
