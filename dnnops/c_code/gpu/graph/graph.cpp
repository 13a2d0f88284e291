// Executes plans of graphs that are declared with dnnops.graph, for its own calls and as an Op.
#include "../../common/op.hpp"

#include "../base/descriptor.hpp"
#include "../base/handle.hpp"
#include "../base/tensor.hpp"

namespace dnnops {

namespace {

// What the graphs declare for all of their arrays.
constexpr int64_t ALIGNMENT = 16;

cudnnBackendDescriptor_t plan_at(int64_t address) { return reinterpret_cast<cudnnBackendDescriptor_t>(address); }

void execute_plan(cudnnHandle_t handle, int64_t plan, int64_t count, const int64_t *uids, const void *pointers,
                  void *workspace) {
  BackendDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finalize("cudnnBackendFinalize(variant pack)");
  DNNOPS_CHECK(cudnnBackendExecute(handle, plan_at(plan), pack.get()));
}

// After these words come, for each operand and then for each result: its uid, its rank and its sizes; and for
// each number that belongs to the graph: its uid and its address in host memory.
struct GraphParams {
  int64_t plan, workspace, inputs, outputs, numbers;
  const char *op() const { return "GpuDeclaredGraph"; }
  int input_count() const { return static_cast<int>(inputs); }
  const int64_t *described() const { return reinterpret_cast<const int64_t *>(this + 1); }
};

void shape(const OpCall<GraphParams> &call) {
  const int64_t *at = call.params.described();
  for (int64_t i = 0; i < call.params.inputs; ++i) {
    const dnnops_tensor &given = call.inputs[i];
    const int64_t ndim = at[1], *sizes = at + 2;
    if (given.ndim != ndim || !std::equal(sizes, sizes + ndim, given.shape))
      fail(DNNOPS_VALUE_ERROR, "operand %lld has the shape %s; the graph was declared for %s", (long long)i,
           list_of(given.shape, given.ndim).c_str(), list_of(sizes, ndim).c_str());
    at += 2 + ndim;
  }
  for (int64_t i = 0; i < call.params.outputs; ++i) {
    dnnops_tensor &result = call.outputs[i];
    result.ndim = at[1];
    std::copy(at + 2, at + 2 + at[1], result.shape);
    at += 2 + at[1];
  }
}

void run(const OpCall<GraphParams> &call) {
  const GraphParams &params = call.params;
  if (!params.plan) fail(DNNOPS_NOT_SUPPORTED, "there is no plan, because the function was compiled without a GPU");
  std::vector<int64_t> uids;
  std::vector<const void *> pointers;
  const int64_t *at = params.described();
  const auto bind = [&](const void *data) {
    uids.push_back(at[0]);
    pointers.push_back(data);
  };
  for (int64_t i = 0; i < params.inputs; ++i, at += 2 + at[1]) {
    // A rank of 0 is that of numbers, which are on the host.
    if (at[1] && alignment_of(call.inputs[i].data) < ALIGNMENT)
      fail(DNNOPS_NOT_SUPPORTED, "operand %lld is not aligned to %lld bytes; copy it", (long long)i,
           (long long)ALIGNMENT);
    bind(call.inputs[i].data);
  }
  for (int64_t i = 0; i < params.outputs; ++i, at += 2 + at[1]) bind(call.outputs[i].data);
  for (int64_t i = 0; i < params.numbers; ++i, at += 2) bind(reinterpret_cast<const void *>(at[1]));
  const DeviceGuard device(call.context.device);
  const Handle &handle = handle_for(call.context.device, call.context.stream);
  const Workspace scratch(*handle.arena, params.workspace);
  execute_plan(handle.cudnn, params.plan, static_cast<int64_t>(uids.size()), uids.data(), pointers.data(),
               scratch.pointer());
}

}  // namespace

DNNOPS_OP(cudnn_declared_graph, GraphParams, shape, run)

// Executes a plan with memory by uid. Without a workspace, this takes `size` bytes of the stream's own.
DNNOPS_EXPORT int dnnops_cudnn_graph_execute(cudnnHandle_t handle, int64_t plan, int64_t count, const int64_t *uids,
                                             const void *pointers, void *workspace, int64_t size) {
  return guarded("graph", nullptr, 0, [&] {
    if (workspace || !size) return execute_plan(handle, plan, count, uids, pointers, workspace);
    cudaStream_t stream = nullptr;
    int device = 0;
    DNNOPS_CHECK(cudnnGetStream(handle, &stream));
    DNNOPS_CHECK(cudaGetDevice(&device));
    const Workspace scratch(arena_of(device, stream), size);
    execute_plan(handle, plan, count, uids, pointers, scratch.pointer());
  });
}

}  // namespace dnnops
