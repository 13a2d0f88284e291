// What a GPU's cache holds after memory was written has to be written back before anything else can take its place,
// at the cost of what runs then.  What was read can just be dropped.  dnnops/cudnn/kernels.py compiles this with CuPy.

// Reads `count` vectors, which have to be zero.
KERNEL void read_zeros(const uint4 *from, long long count, uint4 *never) {
  wait_for_stream();
  uint4 found = make_uint4(0, 0, 0, 0);
  UNROLL_4
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count;
       i += (long long)gridDim.x * blockDim.x) {
    const uint4 loaded = from[i];
    found = make_uint4(found.x | loaded.x, found.y | loaded.y, found.z | loaded.z, found.w | loaded.w);
  }
  // Or the compiler would leave out the loads.
  if (found.x | found.y | found.z | found.w) *never = found;
}
