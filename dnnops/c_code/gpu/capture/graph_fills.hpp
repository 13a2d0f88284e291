// Fills of memory in CUDA graphs.
#ifndef DNNOPS_CUDNN_GRAPH_FILLS_HPP
#define DNNOPS_CUDNN_GRAPH_FILLS_HPP

#include "../base/handle.hpp"

namespace dnnops {

// Lets kernels fill memory in place of a graph's fills. The driver launches a sequence of kernels in a few
// microseconds, and each fill between them adds more than one. Returns how many fills are left: those of rows with gaps.
int64_t replace_fills(cudaGraph_t graph, const Handle &handle);

}  // namespace dnnops
#endif
