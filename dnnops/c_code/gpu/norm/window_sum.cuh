// Sums over windows along one axis. dnnops/gpu/window_sum.py compiles this with CuPy, and a test compiles
// it for the host.
#ifdef __CUDACC_RTC__
#define DEVICE __device__ inline
#else
#define DEVICE inline
#endif

// The sum for element i of an array whose axis has `size` elements, `step` apart.
template <class T>
DEVICE T window_sum(const T *x, long long size, long long step, long long before, long long after, long long i) {
  const long long at = i / step % size;
  const long long first = before < at ? -before : -at, last = after < size - 1 - at ? after : size - 1 - at;
  T sum = 0;
  for (long long k = first; k <= last; ++k) sum += x[i + k * step];
  return sum;
}

#ifdef __CUDACC_RTC__
template <class T>
__global__ void window_sum_kernel(const T *x, T *out, long long size, long long step, long long before,
                                  long long after, long long count) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < count) out[i] = window_sum<T>(x, size, step, before, after, i);
}
#endif
