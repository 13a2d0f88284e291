#include "kernel_loader.hpp"

#include <dlfcn.h>

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>

namespace dnnops {

namespace {

std::atomic<dnnops_get_kernel> get_kernel{nullptr};

// CUlaunchConfig. The runtime's attributes have the same layout as the driver's.
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  cudaLaunchAttribute *attributes;
  unsigned attribute_count;
};

// CUDA_KERNEL_NODE_PARAMS_v2.
struct KernelNode {
  void *function;
  unsigned grid[3], block[3], shared_bytes;
  void **arguments, **extra;
  void *kernel, *context;
};

// The few functions needed from the driver's library, which is not linked because machines that compile this
// may not have it.
struct Driver {
  int (*launch)(const LaunchConfig *, void *, void **, void **) = nullptr;
  int (*get_attribute)(int *, int, void *) = nullptr;
  int (*set_attribute)(void *, int, int) = nullptr;
  int (*error_name)(int, const char **) = nullptr;
  int (*occupancy)(int *, void *, int, size_t) = nullptr;
  int (*add_node)(cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, size_t, const KernelNode *) = nullptr;

  Driver() {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    const auto find = [&](auto &function, const char *name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    };
    find(launch, "cuLaunchKernelEx");
    find(get_attribute, "cuFuncGetAttribute");
    find(set_attribute, "cuFuncSetAttribute");
    find(error_name, "cuGetErrorName");
    find(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    find(add_node, "cuGraphAddKernelNode_v2");
  }
};

constexpr int DRIVER_SHARED_BYTES = 1, DRIVER_MAX_DYNAMIC_SHARED_BYTES = 8;  // values of CUfunction_attribute
constexpr int DRIVER_INVALID_CONTEXT = 201;

const Driver &driver() {
  static const Driver found;
  if (!found.launch || !found.get_attribute || !found.set_attribute || !found.error_name || !found.occupancy ||
      !found.add_node)
    fail(DNNOPS_NOT_SUPPORTED, "the driver's library libcuda.so.1 was not found, or lacks functions");
  return found;
}

void check_driver(int status, const char *call) {
  if (!status) return;
  const char *name = nullptr;
  driver().error_name(status, &name);
  fail(DNNOPS_LIBRARY_ERROR, "%s returned %s", call, name ? name : std::to_string(status).c_str());
}

using KernelKey = std::tuple<int, std::string, std::string, std::string>;

struct Kernels {
  std::mutex mutex;
  std::map<KernelKey, Kernel> loaded;
};

// Never destroyed, because threads may outlive static objects.
Kernels &kernels() {
  static Kernels *all = new Kernels;
  return *all;
}

// Programmatic dependent launch needs compute capability 9.0; CUDA graphs support it from CUDA 12.3 on.
bool can_wait(int device) {
  int major = 0, version = 0;
  DNNOPS_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  DNNOPS_CHECK(cudaDriverGetVersion(&version));
  return major >= 9 && version >= 12030;
}

// By default, a block can only use 48 KB.
void allow_all_shared_memory(void *function, int device) {
  int all = 0, used = 0;
  DNNOPS_CHECK(cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  check_driver(driver().get_attribute(&used, DRIVER_SHARED_BYTES, function), "cuFuncGetAttribute");
  check_driver(driver().set_attribute(function, DRIVER_MAX_DYNAMIC_SHARED_BYTES, all - used), "cuFuncSetAttribute");
}

}  // namespace

Kernel load_kernel(const Handle &handle, const char *program, const char *name, const std::string &options) {
  const KernelKey key(handle.device, program, name, options);
  {
    std::lock_guard<std::mutex> lock(kernels().mutex);
    const auto found = kernels().loaded.find(key);
    if (found != kernels().loaded.end()) return found->second;
  }
  driver();
  if (!get_kernel) fail(DNNOPS_NOT_SUPPORTED, "no kernel compiler is registered");
  if (is_capturing(handle.stream))
    fail(DNNOPS_NOT_SUPPORTED, "its kernel is not loaded, and cannot be while a CUDA graph is captured");
  // No lock is held, because this has to wait for the GIL.
  char reason[4096] = "";
  void *const function = get_kernel.load()(program, name, options.c_str(), handle.device, reason, sizeof reason);
  if (!function) throw Error(DNNOPS_NOT_SUPPORTED, std::string("its kernel cannot be compiled: ") + reason);
  allow_all_shared_memory(function, handle.device);
  const Kernel kernel = {function, can_wait(handle.device)};
  std::lock_guard<std::mutex> lock(kernels().mutex);
  return kernels().loaded[key] = kernel;
}

namespace {

// Calls a driver function, which needs a current context.
template <class Call>
void call_driver(const char *name, Call call) {
  int status = call();
  if (__builtin_expect(status == DRIVER_INVALID_CONTEXT, 0)) {
    // This thread has not used the device yet. This call makes the runtime's context current.
    DNNOPS_CHECK(cudaFree(nullptr));
    status = call();
  }
  check_driver(status, name);
}

void launch(const Kernel &kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, void *stream,
            void **arguments, cudaLaunchAttribute *attribute) {
  const LaunchConfig config = {{blocks, 1, 1}, {threads, 1, 1}, shared_bytes, stream, attribute, attribute ? 1u : 0u};
  call_driver("cuLaunchKernelEx", [&] { return driver().launch(&config, kernel.function, arguments, nullptr); });
}

}  // namespace

void launch_kernel(const Kernel &kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, void *stream,
                   void **arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  launch(kernel, blocks, threads, shared_bytes, stream, arguments, kernel.waits ? &attribute : nullptr);
}

int blocks_at_once(const Kernel &kernel, unsigned threads, unsigned shared_bytes) {
  int blocks = 0;
  call_driver("cuOccupancyMaxActiveBlocksPerMultiprocessor", [&] {
    return driver().occupancy(&blocks, kernel.function, static_cast<int>(threads), shared_bytes);
  });
  return blocks;
}

void launch_cooperative(const Kernel &kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, void *stream,
                        void **arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  launch(kernel, blocks, threads, shared_bytes, stream, arguments, &attribute);
}

cudaGraphNode_t add_kernel_node(cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after, const Kernel &kernel,
                                unsigned blocks, unsigned threads, void **arguments) {
  KernelNode params = {};  // of the current context
  params.function = kernel.function;
  params.grid[0] = blocks;
  params.block[0] = threads;
  for (int i : {1, 2}) params.grid[i] = params.block[i] = 1;
  params.arguments = arguments;
  cudaGraphNode_t node = nullptr;
  call_driver("cuGraphAddKernelNode",
              [&] { return driver().add_node(&node, graph, after.data(), after.size(), &params); });
  return node;
}

}  // namespace dnnops

DNNOPS_EXPORT void dnnops_cudnn_set_kernel_compiler(dnnops_get_kernel function) { dnnops::get_kernel = function; }
