// The common parts of all kernels. dnnops/gpu/kernels.py compiles programs with it, using CuPy;
// tests/emulation/host_cuda.hpp has the same names for tests on the host.
#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__
#define UNROLL _Pragma("unroll")
#define UNROLL_4 _Pragma("unroll 4")
#define DNNOPS_PRAGMA(words) _Pragma(#words)
#define UNROLL_BY(count) DNNOPS_PRAGMA(unroll (count))
#define NO_UNROLL _Pragma("unroll 1")
#define GRID_CONSTANT __grid_constant__

// Kernels are launched before earlier work in the stream has finished (launch_kernel in
// c_code/gpu/kernels/kernel_loader.cpp), so each kernel begins by waiting for it.
DEVICE void wait_for_stream() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A single instruction. For a 64-bit constant, the compiler would add a product with its upper half, which is zero.
DEVICE unsigned long long wide_product(unsigned a, unsigned b) {
  unsigned long long product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
}

// To be called between two polls of what another block writes.
DEVICE void pause() { __nanosleep(64); }

// Reads what another block has written. Unlike __ldcg(), the compiler does not move it.
DEVICE double read_from_cache(const double *from) {
  double value;
  asm volatile("ld.global.cg.f64 %0, [%1];" : "=d"(value) : "l"(from) : "memory");
  return value;
}

// Tells other blocks that this thread's writes, and those that it has observed, are complete.
DEVICE void add_release(unsigned *to, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
DEVICE unsigned read_acquire(const unsigned *from) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// A write that other blocks poll: atomic, but not ordered with other accesses.
DEVICE void write_relaxed(double *to, double value) {
  asm volatile("st.relaxed.gpu.global.f64 [%0], %1;" ::"l"(to), "d"(value) : "memory");
}
DEVICE double read_relaxed(const double *from) {
  double value;
  asm volatile("ld.relaxed.gpu.global.f64 %0, [%1];" : "=d"(value) : "l"(from) : "memory");
  return value;
}

// A single store: the compiler may split an assignment into one for each element if the elements were computed.
DEVICE void store_16_bytes(void *to, uint4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

// Prevents the compiler from keeping values derived from this one, such as unpacked numbers, instead of it,
// or from computing them earlier.
DEVICE void forget_uses(uint4 &value) { asm volatile("" : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)); }
template <class T>
DEVICE void forget_uses(T *&value) {
  asm volatile("" : "+l"(value));
}
DEVICE void forget_uses(int &value) { asm volatile("" : "+r"(value)); }

// Copies from global to shared memory, asynchronously.
template <int BYTES>
DEVICE void copy_bytes(void *to, const void *from) {
  static_assert(BYTES == 4 || BYTES == 8, "of what goes by way of the level 1 cache");
  const unsigned address = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(BYTES) : "memory");
}
DEVICE void copy_16_bytes(char *to, const char *from) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
// Writes zeros and reads nothing unless the source exists.
DEVICE void copy_16_bytes_or_zeros(void *to, const void *from, bool exists) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(to), bytes = exists ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}
DEVICE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#endif
