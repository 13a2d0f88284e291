// Kernels that Python compiles at run time, launched through the driver.
#ifndef DNNOPS_CUDNN_KERNEL_LOADER_HPP
#define DNNOPS_CUDNN_KERNEL_LOADER_HPP

#include <string>
#include <vector>

#include "../base/handle.hpp"
#include "kernel_launch.hpp"

namespace dnnops {

// The kernel `name` of the group of source files that Python calls `program`, compiled with these options for
// the handle's device and kept by the process. Throws DNNOPS_NOT_SUPPORTED with the compiler's output, or if
// work on the handle's stream is being captured and the kernel is not loaded yet.
Kernel load_kernel(const Handle &handle, const char *program, const char *name, const std::string &options);

// The number of blocks of a kernel that run on a multiprocessor at once.
int blocks_at_once(const Kernel &kernel, unsigned threads, unsigned shared_bytes);

// Launches blocks that all run at once, so that they may wait for each other.
void launch_cooperative(const Kernel &kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, void *stream,
                        void **arguments);

// Adds a kernel to a graph, to run after some of its nodes. The graph copies the arguments.
cudaGraphNode_t add_kernel_node(cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after, const Kernel &kernel,
                                unsigned blocks, unsigned threads, void **arguments);

}  // namespace dnnops
#endif
