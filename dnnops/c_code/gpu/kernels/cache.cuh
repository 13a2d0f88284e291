// Memory that was written must be written back from a GPU's cache before anything else can take its place, which slows
// down whatever runs then. Memory that was only read can be dropped. dnnops/gpu/kernels.py compiles this with CuPy.

// Reads `count` vectors, which must be zero.
KERNEL void read_zeros(const uint4 *from, long long count, uint4 *never) {
  wait_for_stream();
  uint4 found = make_uint4(0, 0, 0, 0);
  UNROLL_4
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count;
       i += (long long)gridDim.x * blockDim.x) {
    const uint4 loaded = from[i];
    found = make_uint4(found.x | loaded.x, found.y | loaded.y, found.z | loaded.z, found.w | loaded.w);
  }
  // Prevents the compiler from removing the loads.
  if (found.x | found.y | found.z | found.w) *never = found;
}
