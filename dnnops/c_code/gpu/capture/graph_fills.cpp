#include "graph_fills.hpp"

#include <algorithm>

#include "../base/descriptor.hpp"
#include "../kernels/fill_params.hpp"
#include "../kernels/kernel_loader.hpp"
#include "graph_edges.hpp"

namespace dnnops {

namespace {

constexpr unsigned THREADS = 256, MAX_BLOCKS = 1024;
constexpr int64_t BYTES_OF_BLOCK = int64_t(THREADS) * 16;

unsigned repeated(unsigned value, unsigned item_size) {
  if (item_size == 1) return (value & 0xff) * 0x01010101u;
  return item_size == 2 ? (value & 0xffff) * 0x00010001u : value;
}

}  // namespace

int64_t replace_fills(cudaGraph_t graph, const Handle &handle) {
  int64_t left = 0;
  Kernel kernel;
  for (cudaGraphNode_t node : nodes_of(graph)) {
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
        add_kernel_node(graph, neighbours(node, EDGES_TO), kernel,
                        static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, MAX_BLOCKS)), THREADS, arguments);
    for (cudaGraphNode_t user : neighbours(node, EDGES_FROM)) add_edge(graph, fill, user);
    DNNOPS_CHECK(cudaGraphDestroyNode(node));
  }
  return left;
}

}  // namespace dnnops
