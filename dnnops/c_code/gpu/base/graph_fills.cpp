#include "graph_fills.hpp"

#include <algorithm>
#include <vector>

#include "../kernels/fill_params.hpp"
#include "../kernels/kernel_loader.hpp"
#include "descriptor.hpp"

namespace dnnops {

namespace {

constexpr unsigned THREADS = 256, MAX_BLOCKS = 1024;
constexpr int64_t BYTES_OF_BLOCK = int64_t(THREADS) * 16;

// The nodes before a fill, or after it. These edges have no data, which only edges from kernels to kernels have.
std::vector<cudaGraphNode_t> neighbours(cudaGraphNode_t node, bool before) {
  const auto list = [&](cudaGraphNode_t *nodes, size_t *count) {
#if CUDART_VERSION >= 13000
    return before ? cudaGraphNodeGetDependencies(node, nodes, nullptr, count)
                  : cudaGraphNodeGetDependentNodes(node, nodes, nullptr, count);
#else
    return before ? cudaGraphNodeGetDependencies(node, nodes, count)
                  : cudaGraphNodeGetDependentNodes(node, nodes, count);
#endif
  };
  size_t count = 0;
  DNNOPS_CHECK(list(nullptr, &count));
  std::vector<cudaGraphNode_t> found(count);
  if (count) DNNOPS_CHECK(list(found.data(), &count));
  return found;
}

void add_edge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
  DNNOPS_CHECK(cudaGraphAddDependencies(graph, &from, &to, nullptr, 1));
#else
  DNNOPS_CHECK(cudaGraphAddDependencies(graph, &from, &to, 1));
#endif
}

unsigned repeated(unsigned value, unsigned item_size) {
  if (item_size == 1) return (value & 0xff) * 0x01010101u;
  return item_size == 2 ? (value & 0xffff) * 0x00010001u : value;
}

}  // namespace

int64_t replace_fills(cudaGraph_t graph, const Handle &handle) {
  size_t count = 0;
  DNNOPS_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  DNNOPS_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  int64_t left = 0;
  Kernel kernel;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    DNNOPS_CHECK(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeMemset) continue;
    cudaMemsetParams given;
    DNNOPS_CHECK(cudaGraphMemsetNodeGetParams(node, &given));
    const size_t row = given.width * given.elementSize;
    if (given.height > 1 && given.pitch != row) {
      ++left;
      continue;
    }
    if (!kernel.function) kernel = load_kernel(handle, "fill", "fill", "");
    const auto bytes = static_cast<long long>(row * std::max<size_t>(given.height, 1));
    FillParams params = {static_cast<unsigned char *>(given.dst), bytes, repeated(given.value, given.elementSize)};
    const int64_t blocks = (params.bytes + BYTES_OF_BLOCK - 1) / BYTES_OF_BLOCK;
    void *arguments[] = {&params};
    const cudaGraphNode_t fill =
        add_kernel_node(graph, neighbours(node, true), kernel,
                        static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, MAX_BLOCKS)), THREADS, arguments);
    for (cudaGraphNode_t user : neighbours(node, false)) add_edge(graph, fill, user);
    DNNOPS_CHECK(cudaGraphDestroyNode(node));
  }
  return left;
}

}  // namespace dnnops
