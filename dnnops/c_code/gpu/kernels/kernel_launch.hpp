// Launches compiled kernels through the driver.
#ifndef DNNOPS_CUDNN_KERNEL_LAUNCH_HPP
#define DNNOPS_CUDNN_KERNEL_LAUNCH_HPP

namespace dnnops {

struct Kernel {
  void *function = nullptr;  // a CUfunction
  // Whether it may be launched while earlier work in the stream still runs: such a kernel waits by itself.
  bool waits = false;
};

void launch_kernel(const Kernel &kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, void *stream,
                   void **arguments);

}  // namespace dnnops
#endif
