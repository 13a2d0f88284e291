// Executes plans of graphs that are declared with dnnops.graph, for its own calls and as an Op.
#include <algorithm>
#include <mutex>

#include "../../common/op.hpp"
#include "../base/descriptor.hpp"
#include "../base/handle.hpp"
#include "../kernels/replay.hpp"

namespace dnnops {

namespace {

void execute_plan(cudnnHandle_t handle, int64_t plan, int64_t count, const int64_t *uids, const void *pointers,
                  void *workspace) {
  BackendDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finalize("cudnnBackendFinalize(variant pack)");
  DNNOPS_CHECK(cudnnBackendExecute(handle, reinterpret_cast<cudnnBackendDescriptor_t>(plan), pack.get()));
}

// How a graph declares an operand or a result. Its sizes follow.
struct Declared {
  int64_t uid, dtype, ndim;
  const int64_t *sizes() const { return reinterpret_cast<const int64_t *>(this + 1); }
  const Declared &next() const { return *reinterpret_cast<const Declared *>(sizes() + ndim); }
};

// A number that belongs to the graph, in memory of the host.
struct Number {
  int64_t uid;
  const void *address;
};

// After these words come the operands, the results and the numbers. Plans may leave parts of results unwritten, which
// are zero if the results are cleared first.
struct GraphParams {
  int64_t plan, workspace, operands, results, numbers, clears;
  const char *op() const { return "GpuDeclaredGraph"; }
  int input_count() const { return static_cast<int>(operands); }
  const Declared &first() const { return *reinterpret_cast<const Declared *>(this + 1); }
};

void shape(const OpCall<GraphParams> &call) {
  const Declared *declared = &call.params.first();
  for (int64_t i = 0; i < call.params.operands; ++i, declared = &declared->next()) {
    const dnnops_tensor &given = call.inputs[i];
    const int64_t ndim = declared->ndim, *sizes = declared->sizes();
    if (given.ndim != ndim || !std::equal(sizes, sizes + ndim, given.shape))
      fail(DNNOPS_VALUE_ERROR, "operand %lld has the shape %s; the graph was declared for %s", (long long)i,
           list_of(given.shape, given.ndim).c_str(), list_of(sizes, ndim).c_str());
    if (given.dtype != declared->dtype)
      fail(DNNOPS_TYPE_ERROR, "operand %lld has dtype %s; the graph was declared for %s", (long long)i,
           dtype_name(given.dtype), dtype_name(declared->dtype));
  }
  for (int64_t i = 0; i < call.params.results; ++i, declared = &declared->next()) {
    dnnops_tensor &result = call.outputs[i];
    result.dtype = declared->dtype;
    result.ndim = declared->ndim;
    std::copy(declared->sizes(), declared->sizes() + declared->ndim, result.shape);
  }
}

void run(const OpCall<GraphParams> &call) {
  const GraphParams &params = call.params;
  if (!params.plan) fail(DNNOPS_NOT_SUPPORTED, "there is no plan, because the function was compiled without a GPU");
  std::vector<int64_t> uids;
  std::vector<const void *> pointers;
  const auto bind = [&](int64_t uid, const void *data) {
    uids.push_back(uid);
    pointers.push_back(data);
  };
  const Declared *declared = &params.first();
  for (int64_t i = 0; i < params.operands; ++i, declared = &declared->next())
    bind(declared->uid, call.inputs[i].data);
  const DeviceGuard device(call.context.device);
  for (int64_t i = 0; i < params.results; ++i, declared = &declared->next()) {
    const dnnops_tensor &result = call.outputs[i];
    bind(declared->uid, result.data);
    const int64_t bytes = element_count(result.shape, result.ndim) * item_size(result.dtype);
    if (params.clears)
      DNNOPS_CHECK(cudaMemsetAsync(result.data, 0, bytes, static_cast<cudaStream_t>(call.context.stream)));
  }
  const Number *numbers = reinterpret_cast<const Number *>(declared);
  for (int64_t i = 0; i < params.numbers; ++i) bind(numbers[i].uid, numbers[i].address);
  // Not the handle with which the plan was made: a thread has its own, and a plan of the graph API belongs to
  // the device.
  const Handle &handle = handle_for(call.context.device, call.context.stream);
  const Workspace scratch(*handle.arena, params.workspace);
  execute_plan(handle.cudnn, params.plan, static_cast<int64_t>(uids.size()), uids.data(), pointers.data(),
               scratch.pointer());
}

}  // namespace

DNNOPS_OP(cudnn_declared_graph, GraphParams, shape, run)

// The recordings of a plan that `dnnops.graph` executes.
struct PlanReplays {
  std::mutex mutex;
  Replays replays{true, PassLength::SHORT};
  // The kernels may not outlive the plan.
  ~PlanReplays() { replays.forget(); }
};

// A call of `dnnops.graph`. After these words come `words` more: uids and pointers, in turns. Without `replays`, the
// plan is not recorded.
struct ExecuteWords {
  cudnnHandle_t handle;
  int64_t plan;
  void *workspace;
  int64_t size, device;
  PlanReplays *replays;
  int64_t words;
  const int64_t *bound() const { return reinterpret_cast<const int64_t *>(this + 1); }
};

void launch_plan(const ExecuteWords &call, void *workspace, cudnnHandle_t handle) {
  std::vector<int64_t> uids;
  std::vector<const void *> pointers;
  for (const int64_t *word = call.bound(), *end = word + call.words; word < end; word += 2) {
    uids.push_back(word[0]);
    pointers.push_back(reinterpret_cast<const void *>(word[1]));
  }
  execute_plan(handle, call.plan, static_cast<int64_t>(uids.size()), uids.data(), pointers.data(), workspace);
}

// The stream is that of the handle; a call without `replays` need not know it.
void execute(const ExecuteWords &call, void *workspace, cudaStream_t stream) {
  // A kernel has no other parameters that differ from call to call; see ExecutableGraph in dnnops/graph/execution.py.
  Addresses addresses{reinterpret_cast<int64_t>(workspace)};
  const size_t count = call.words / 2;
  if (!call.replays || count >= addresses.size()) return launch_plan(call, workspace, call.handle);
  for (size_t i = 0; i < count; ++i) addresses[i + 1] = call.bound()[2 * i + 1];
  const std::unique_lock<std::mutex> lock(call.replays->mutex, std::try_to_lock);
  if (!lock) return launch_plan(call, workspace, call.handle);
  Handle handle;
  handle.cudnn = call.handle;
  handle.device = static_cast<int>(call.device);
  handle.stream = stream;
  call.replays->replays.run(handle, addresses,
                            [&](const Handle &on) { launch_plan(call, workspace, on.cudnn); });
}

}  // namespace dnnops

DNNOPS_EXPORT void *dnnops_cudnn_graph_replays_new(void) { return new dnnops::PlanReplays; }
DNNOPS_EXPORT void dnnops_cudnn_graph_replays_delete(void *replays) {
  delete static_cast<dnnops::PlanReplays *>(replays);
}

// Executes a plan. Without a workspace, this takes `size` bytes of the stream's own.
DNNOPS_EXPORT int dnnops_cudnn_graph_execute(const dnnops::ExecuteWords *call) {
  using namespace dnnops;
  return guarded("graph", nullptr, 0, [&] {
    const bool has_workspace = call->workspace || !call->size;
    if (has_workspace && !call->replays) return execute(*call, call->workspace, nullptr);
    const DeviceGuard guard(call->device);
    cudaStream_t stream = nullptr;
    DNNOPS_CHECK(cudnnGetStream(call->handle, &stream));
    if (has_workspace) return execute(*call, call->workspace, stream);
    // The address would stay in the CUDA graph after other calls have got the memory.
    if (is_capturing(stream))
      fail(DNNOPS_VALUE_ERROR, "give a workspace of %lld bytes while a stream is captured", (long long)call->size);
    const Workspace scratch(arena_of(static_cast<int>(call->device), stream), call->size);
    execute(*call, scratch.pointer(), stream);
  });
}
