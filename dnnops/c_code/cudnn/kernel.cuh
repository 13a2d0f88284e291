// What all kernels share.  dnnops/cudnn/kernels.py compiles programs of them with CuPy; for tests on the host
// tests/cudnn/host_cuda.hpp has the same names.
#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__
#define UNROLL _Pragma("unroll")
#define UNROLL_4 _Pragma("unroll 4")
#define NO_UNROLL _Pragma("unroll 1")
#define GRID_CONSTANT __grid_constant__

// Kernels are launched before the work ahead of them in the stream has ended (launch_kernel in
// c_code/runtime/cudnn/kernel_loader.cpp), so each begins by waiting for it.
DEVICE void wait_for_stream() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif
