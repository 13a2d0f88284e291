#include "graph_copies.hpp"

#include <algorithm>
#include <vector>

#include "../base/descriptor.hpp"
#include "../kernels/graph_copies_params.hpp"
#include "../kernels/kernel_loader.hpp"
#include "graph_edges.hpp"

namespace dnnops {

namespace {

constexpr unsigned THREADS = 256, MAX_BLOCKS = 1024;
constexpr int64_t BYTES_OF_BLOCK = int64_t(THREADS) * 64;
// A warp for each small copy. All blocks read the words of all copies from the host, so only a few blocks are for these.
constexpr int64_t COPIES_OF_BLOCK = THREADS / 32, MAX_BLOCKS_OF_COPIES = 16;

static_assert(TABLE_HEADER_BYTES == sizeof(dnnops_table_header));
static_assert(sizeof(dnnops_copy) == COPY_WORDS * sizeof(int64_t));

cudaGraphNode_t add(cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after, const Kernel &kernel,
                    const dnnops_launch_table &table, int64_t first, int64_t count, int64_t bytes, bool is_last) {
  GraphCopiesParams params = {static_cast<char *>(table.memory), table.slot_bytes, table.slots,
                              static_cast<unsigned *>(table.counters), first, count, is_last};
  const int64_t of_copies = std::min((count + COPIES_OF_BLOCK - 1) / COPIES_OF_BLOCK, MAX_BLOCKS_OF_COPIES);
  const int64_t blocks = std::max((bytes + BYTES_OF_BLOCK - 1) / BYTES_OF_BLOCK, of_copies);
  void *arguments[] = {&params};
  return add_kernel_node(graph, after, kernel, static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, MAX_BLOCKS)),
                         THREADS, arguments);
}

}  // namespace

void add_copies(cudaGraph_t graph, const Handle &handle, const dnnops_launch_table &table) {
  const Kernel kernel = load_kernel(handle, "graph_copies", "graph_copies", "");
  if (table.before) {
    const std::vector<cudaGraphNode_t> first = nodes_without(graph, EDGES_TO);
    const cudaGraphNode_t node = add(graph, {}, kernel, table, 0, table.before, table.bytes_before, false);
    for (cudaGraphNode_t user : first) add_edge(graph, node, user);
  }
  add(graph, nodes_without(graph, EDGES_FROM), kernel, table, table.before, table.after, table.bytes_after, true);
}

}  // namespace dnnops
