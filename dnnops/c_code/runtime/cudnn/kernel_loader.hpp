// Kernels that are compiled at run time, by Python, and launched through the driver.
#ifndef DNNOPS_CUDNN_KERNEL_LOADER_HPP
#define DNNOPS_CUDNN_KERNEL_LOADER_HPP

#include <string>

#include "handle.hpp"

namespace dnnops {

struct Kernel {
  void *function = nullptr;  // a CUfunction
  // It may be launched while what is ahead of it in the stream still runs: it waits by itself.
  bool waits = false;
};

// The kernel `name` of the source file group that Python knows by `program`, compiled with these
// options for the handle's device; kept by the process.  Throws DNNOPS_NOT_SUPPORTED with the compiler's words,
// or if work on the handle's stream is being captured and the kernel isn't there yet.
Kernel load_kernel(const Handle &handle, const char *program, const char *name, const std::string &options);

void launch_kernel(const Kernel &kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, void *stream,
                   void **arguments);

// How many blocks of a kernel run on a multiprocessor at once.
int blocks_at_once(const Kernel &kernel, unsigned threads, unsigned shared_bytes);

// All of the blocks run at once: they may wait for each other.
void launch_cooperative(const Kernel &kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, void *stream,
                        void **arguments);

}  // namespace dnnops
#endif
