// The edges of CUDA graphs, in the versions of CUDA that spell their functions differently.
#ifndef DNNOPS_CUDNN_GRAPH_EDGES_HPP
#define DNNOPS_CUDNN_GRAPH_EDGES_HPP

#include <cuda_runtime_api.h>

#include <vector>

namespace dnnops {

enum Edges { EDGES_TO, EDGES_FROM };

// The nodes at the other ends of the edges to a node, or from it. None of these may have data, which only edges from
// kernels to kernels have.
std::vector<cudaGraphNode_t> neighbours(cudaGraphNode_t node, Edges edges);

// The nodes of a graph without edges to them, or from them.
std::vector<cudaGraphNode_t> nodes_without(cudaGraph_t graph, Edges edges);

// Lets a node run after another one.
void add_edge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to);

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph);

}  // namespace dnnops
#endif
