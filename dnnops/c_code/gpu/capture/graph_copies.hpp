// Copies in CUDA graphs whose addresses change between launches.
#ifndef DNNOPS_CUDNN_GRAPH_COPIES_HPP
#define DNNOPS_CUDNN_GRAPH_COPIES_HPP

#include "../base/handle.hpp"

namespace dnnops {

// Adds kernels that make the first copies of a launch's slot in `table` before all nodes of a graph, and the others
// after them. A call of cudaMemcpyAsync for each would take the host about as long as launching the whole graph.
void add_copies(cudaGraph_t graph, const Handle &handle, const dnnops_launch_table &table);

}  // namespace dnnops
#endif
