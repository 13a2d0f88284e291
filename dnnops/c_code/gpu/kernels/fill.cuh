// Fills of memory in CUDA graphs, as in c_code/gpu/capture/graph_fills.cpp. dnnops/gpu/kernels.py compiles this with CuPy.

KERNEL void fill(GRID_CONSTANT const FillParams p) {
  wait_for_stream();
  const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x, step = gridDim.x * (long long)blockDim.x;
  const long long unaligned = (16 - (unsigned long long)p.to % 16) % 16;
  const long long head = unaligned < p.bytes ? unaligned : p.bytes;
  const long long vectors = (p.bytes - head) / 16, tail = head + 16 * vectors;
  const int turned = 8 * (int)(head % 4);
  const unsigned word = turned ? p.word >> turned | p.word << (32 - turned) : p.word;
  uint4 *const aligned = (uint4 *)(p.to + head);
  for (long long i = first; i < vectors; i += step) aligned[i] = make_uint4(word, word, word, word);
  for (long long i = first; i < head; i += step) p.to[i] = (unsigned char)(p.word >> 8 * (i % 4));
  for (long long i = tail + first; i < p.bytes; i += step) p.to[i] = (unsigned char)(p.word >> 8 * (i % 4));
}
