// Record what a stream runs as a CUDA graph, and run the graph.
#include <algorithm>
#include <cstring>
#include <memory>

#include "../base/descriptor.hpp"
#include "../base/handle.hpp"
#include "graph_copies.hpp"
#include "graph_edges.hpp"
#include "graph_fills.hpp"

namespace dnnops {

namespace {

// Fails if the graph copies from or to the host: the copy would use memory that is only valid now. Functions of
// the host cannot be replayed either.
void require_only_device(cudaGraph_t graph) {
  for (cudaGraphNode_t node : nodes_of(graph)) {
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

// This thread's handle for the device that is current.
const Handle &current_handle(void *stream) {
  int device = 0;
  DNNOPS_CHECK(cudaGetDevice(&device));
  return handle_for(device, stream);
}

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

DNNOPS_EXPORT int dnnops_cudnn_capture_end(void *stream, void **graph, int64_t *nodes, int64_t *fills) {
  return dnnops::guarded("CUDA graph", nullptr, 0, [&] {
    cudaGraph_t captured = nullptr;
    const cudaError_t status = cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &captured);
    if (status != cudaSuccess) cudaGetLastError();  // otherwise the next launch check would report it
    std::unique_ptr<CUgraph_st, decltype(&cudaGraphDestroy)> owner(captured, &cudaGraphDestroy);
    DNNOPS_CHECK(status);
    if (!graph) return;  // the capture is discarded
    dnnops::require_only_device(captured);
    *fills = dnnops::replace_fills(captured, dnnops::current_handle(stream));
    *nodes = static_cast<int64_t>(dnnops::nodes_of(captured).size());
    *graph = owner.release();
  });
}

DNNOPS_EXPORT int dnnops_cudnn_graph_instantiate(void *graph, const dnnops_launch_table *table, void *stream,
                                                 void **executable) {
  return dnnops::guarded("CUDA graph", nullptr, 0, [&] {
    const cudaGraph_t captured = static_cast<cudaGraph_t>(graph);
    if (table) dnnops::add_copies(captured, dnnops::current_handle(stream), *table);
    cudaGraphExec_t made = nullptr;
    DNNOPS_CHECK(cudaGraphInstantiateWithFlags(&made, captured, cudaGraphInstantiateFlagUseNodePriority));
    *executable = made;
  });
}

DNNOPS_EXPORT int dnnops_cudnn_graph_replay(const dnnops_replay *replay, void *slot, void *uploaded, void *stream) {
  return dnnops::guarded("CUDA graph", nullptr, 0, [&] {
    const cudaStream_t on = static_cast<cudaStream_t>(stream);
    // The host counts launches, and those of a graph that contains this one would not be counted.
    if (slot && dnnops::is_capturing(stream))
      dnnops::fail(DNNOPS_NOT_SUPPORTED, "a captured function cannot run while its stream is being captured");
    std::for_each(replay->uploads, replay->uploads + replay->upload_count, [&](const dnnops_copy &copy) {
      DNNOPS_CHECK(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDefault, on));
    });
    if (uploaded) DNNOPS_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(uploaded), on));
    if (slot) std::memcpy(slot, replay->copies, replay->copy_count * sizeof(dnnops_copy));
    DNNOPS_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(replay->executable), on));
    // Here, because Python may be interrupted before it would count the launch.
    if (!slot) return;
    int &launched = static_cast<dnnops_table_header *>(replay->table)->launched;
    launched = static_cast<int>(static_cast<unsigned>(launched) + 1);
  });
}

DNNOPS_EXPORT void dnnops_cudnn_graph_destroy(void *graph, void *executable) {
  if (dnnops::process_is_ending) return;
  if (graph) cudaGraphDestroy(static_cast<cudaGraph_t>(graph));
  // If it is still running, it is destroyed when it is done.
  if (executable) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable));
}
