#include "graph_edges.hpp"

#include <algorithm>

#include "../base/descriptor.hpp"

namespace dnnops {

namespace {

// Stores both ends of the edges, or only counts them if `from` and `to` are null.
cudaError_t get_edges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to, size_t *count) {
#if CUDART_VERSION >= 12030
  // Edges have data from CUDA 12.3 on, and without a place for it, those that do are an error.
  std::vector<cudaGraphEdgeData> data(from ? *count : 0);
  cudaGraphEdgeData *const place = from ? data.data() : nullptr;
#endif
#if CUDART_VERSION >= 13000
  return cudaGraphGetEdges(graph, from, to, place, count);
#else
#if CUDART_VERSION >= 12030
  int driver = 0;
  DNNOPS_CHECK(cudaDriverGetVersion(&driver));
  if (driver >= 12030) return cudaGraphGetEdges_v2(graph, from, to, place, count);
#endif
  return cudaGraphGetEdges(graph, from, to, count);
#endif
}

// The nodes at one end of all edges, once for each edge.
std::vector<cudaGraphNode_t> ends(cudaGraph_t graph, Edges edges) {
  size_t count = 0;
  DNNOPS_CHECK(get_edges(graph, nullptr, nullptr, &count));
  std::vector<cudaGraphNode_t> from(count), to(count);
  if (count) DNNOPS_CHECK(get_edges(graph, from.data(), to.data(), &count));
  return edges == EDGES_TO ? to : from;
}

}  // namespace

std::vector<cudaGraphNode_t> neighbours(cudaGraphNode_t node, Edges edges) {
  const auto list = [&](cudaGraphNode_t *nodes, size_t *count) {
#if CUDART_VERSION >= 13000
    return edges == EDGES_TO ? cudaGraphNodeGetDependencies(node, nodes, nullptr, count)
                             : cudaGraphNodeGetDependentNodes(node, nodes, nullptr, count);
#else
    return edges == EDGES_TO ? cudaGraphNodeGetDependencies(node, nodes, count)
                             : cudaGraphNodeGetDependentNodes(node, nodes, count);
#endif
  };
  size_t count = 0;
  DNNOPS_CHECK(list(nullptr, &count));
  std::vector<cudaGraphNode_t> found(count);
  if (count) DNNOPS_CHECK(list(found.data(), &count));
  return found;
}

std::vector<cudaGraphNode_t> nodes_without(cudaGraph_t graph, Edges edges) {
  std::vector<cudaGraphNode_t> with = ends(graph, edges), found = nodes_of(graph);
  std::sort(with.begin(), with.end());
  const auto has_one = [&](cudaGraphNode_t node) { return std::binary_search(with.begin(), with.end(), node); };
  found.erase(std::remove_if(found.begin(), found.end(), has_one), found.end());
  return found;
}

void add_edge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
  DNNOPS_CHECK(cudaGraphAddDependencies(graph, &from, &to, nullptr, 1));
#else
  DNNOPS_CHECK(cudaGraphAddDependencies(graph, &from, &to, 1));
#endif
}

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph) {
  size_t count = 0;
  DNNOPS_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count) DNNOPS_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  return nodes;
}

}  // namespace dnnops
