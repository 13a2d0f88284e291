#include "handle.hpp"

#include <memory>

namespace dnnops {

namespace {

// Handles of threads that have ended, for reuse by other threads. They are never destroyed, because the
// driver may be gone before this library when the process exits.
struct IdleHandles {
  std::mutex mutex;
  std::vector<std::unique_ptr<Handle>> handles;
  int64_t made = 0;
};

IdleHandles &idle_handles() {
  static IdleHandles *idle = new IdleHandles;
  return *idle;
}

struct ThreadHandles {
  std::vector<std::unique_ptr<Handle>> of_device;
  ~ThreadHandles() {
    std::lock_guard<std::mutex> lock(idle_handles().mutex);
    for (auto &handle : of_device)
      if (handle) idle_handles().handles.push_back(std::move(handle));
  }
};

thread_local ThreadHandles thread_handles;

std::unique_ptr<Handle> make_handle(int device) {
  IdleHandles &idle = idle_handles();
  std::unique_ptr<Handle> handle;
  {
    std::lock_guard<std::mutex> lock(idle.mutex);
    for (auto &candidate : idle.handles) {
      if (candidate->device != device) continue;
      handle = std::move(candidate);
      candidate = std::move(idle.handles.back());
      idle.handles.pop_back();
      return handle;
    }
    handle.reset(new Handle);
    handle->number = ++idle.made;
  }
  handle->device = device;
  DNNOPS_CHECK(cudnnCreate(&handle->cudnn));
  return handle;
}

}  // namespace

// The device must be current.
Handle &handle_for(int64_t device, void *stream) {
  auto &handles = thread_handles.of_device;
  if (__builtin_expect(handles.size() <= static_cast<size_t>(device), 0)) handles.resize(device + 1);
  auto &handle = handles[device];
  if (__builtin_expect(!handle, 0)) handle = make_handle(static_cast<int>(device));
  if (__builtin_expect(handle->stream != stream || !handle->arena, 0)) {
    DNNOPS_CHECK(cudnnSetStream(handle->cudnn, static_cast<cudaStream_t>(stream)));
    handle->stream = stream;
    handle->arena = &arena_of(handle->device, stream);
  }
  return *handle;
}

}  // namespace dnnops
