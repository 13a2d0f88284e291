// Record what a stream runs as a CUDA graph, and run the graph.
#include <algorithm>
#include <vector>

#include "descriptor.hpp"
#include "graph_fills.hpp"
#include "handle.hpp"

namespace dnnops {

namespace {

// Fails if the graph copies from or to the host: the copy would use memory that is only valid now. Functions of
// the host cannot be replayed either.
void require_only_device(cudaGraph_t graph) {
  size_t count = 0;
  DNNOPS_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  DNNOPS_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    DNNOPS_CHECK(cudaGraphNodeGetType(node, &type));
    if (type == cudaGraphNodeTypeHost) fail(DNNOPS_NOT_SUPPORTED, "it calls a function of the host");
    if (type != cudaGraphNodeTypeMemcpy) continue;
    cudaMemcpy3DParms copy;
    DNNOPS_CHECK(cudaGraphMemcpyNodeGetParams(node, &copy));
    for (const void *pointer : {copy.srcPtr.ptr, copy.dstPtr.ptr}) {
      if (!pointer) continue;
      cudaPointerAttributes attributes;
      DNNOPS_CHECK(cudaPointerGetAttributes(&attributes, pointer));
      if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged)
        fail(DNNOPS_NOT_SUPPORTED, "it copies between the host and the device");
    }
  }
}

struct Graph {
  cudaGraph_t graph = nullptr;
  ~Graph() {
    if (graph) cudaGraphDestroy(graph);
  }
};

}  // namespace

bool is_capturing(void *stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  DNNOPS_CHECK(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace dnnops

DNNOPS_EXPORT int dnnops_cudnn_capture_begin(void *stream) {
  return dnnops::guarded("CUDA graph", nullptr, 0, [&] {
    // Memory may be allocated during the capture.
    DNNOPS_CHECK(cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeRelaxed));
  });
}

DNNOPS_EXPORT int dnnops_cudnn_capture_end(void *stream, void **executable, int64_t *nodes, int64_t *fills) {
  return dnnops::guarded("CUDA graph", nullptr, 0, [&] {
    dnnops::Graph captured;
    const cudaError_t status = cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &captured.graph);
    if (status != cudaSuccess) cudaGetLastError();  // otherwise the next launch check would report it
    DNNOPS_CHECK(status);
    if (!executable) return;  // the capture is discarded
    dnnops::require_only_device(captured.graph);
    int device = 0;
    DNNOPS_CHECK(cudaGetDevice(&device));
    *fills = dnnops::replace_fills(captured.graph, dnnops::handle_for(device, stream));
    size_t count = 0;
    DNNOPS_CHECK(cudaGraphGetNodes(captured.graph, nullptr, &count));
    *nodes = static_cast<int64_t>(count);
    cudaGraphExec_t made = nullptr;
    DNNOPS_CHECK(cudaGraphInstantiateWithFlags(&made, captured.graph, cudaGraphInstantiateFlagUseNodePriority));
    *executable = made;
  });
}

DNNOPS_EXPORT int dnnops_cudnn_graph_replay(void *executable, const dnnops_copy *copies, int64_t before, int64_t after,
                                            void *uploaded, void *stream) {
  return dnnops::guarded("CUDA graph", nullptr, 0, [&] {
    const cudaStream_t on = static_cast<cudaStream_t>(stream);
    const auto run = [&](const dnnops_copy &copy) {
      if (copy.bytes && copy.to != copy.from)
        DNNOPS_CHECK(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDefault, on));
    };
    std::for_each(copies, copies + before, run);
    if (uploaded) DNNOPS_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(uploaded), on));
    DNNOPS_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable), on));
    std::for_each(copies + before, copies + before + after, run);
  });
}

// If the graph is still running, it is destroyed when it is done.
DNNOPS_EXPORT void dnnops_cudnn_graph_destroy(void *executable) {
  if (executable && !dnnops::process_is_ending) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable));
}
