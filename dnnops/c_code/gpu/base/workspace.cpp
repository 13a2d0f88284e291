#include "workspace.hpp"

#include <atomic>
#include <map>
#include <memory>

#include "descriptor.hpp"

namespace dnnops {

bool process_is_ending = false;

namespace {

struct Allocator {
  dnnops_allocate allocate;
  dnnops_free free;
};

void *plain_allocate(int64_t size, int64_t, void *) {
  void *pointer = nullptr;
  if (cudaMalloc(&pointer, size) == cudaSuccess) return pointer;
  cudaGetLastError();
  return nullptr;
}

void plain_free(void *pointer) { cudaFree(pointer); }

// Always set as a whole and never freed, because another thread may be reading it.
std::atomic<const Allocator *> allocator{new Allocator{plain_allocate, plain_free}};

struct Arenas {
  std::mutex mutex;
  std::map<std::pair<int, void *>, std::unique_ptr<Arena>> of_stream;
};

// Never destroyed: threads may outlive static objects, and the driver may already be gone.
Arenas &arenas() {
  static Arenas *all = new Arenas;
  return *all;
}

template <class Visit>
void for_each_arena(Visit visit) {
  std::vector<std::pair<int, Arena *>> all;
  {
    std::lock_guard<std::mutex> lock(arenas().mutex);
    for (auto &entry : arenas().of_stream) all.emplace_back(entry.first.first, entry.second.get());
  }
  for (auto &entry : all) visit(entry.first, *entry.second);
}

void free_block(Block block) {
  if (block.pointer && !process_is_ending) allocator.load()->free(block.pointer);
}

}  // namespace

Block Arena::take(int64_t size) {
  Block block;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      block = idle_.back();
      idle_.pop_back();
    }
  }
  if (block.size >= size) return block;
  free_block(block);
  // cuDNN's sizes vary a little from shape to shape; rounding up avoids a reallocation for each.
  const int64_t step = int64_t(1) << 20;
  block.size = (size + step - 1) / step * step;
  block.pointer = allocator.load()->allocate(block.size, device_, stream_);
  if (!block.pointer) {
    free_idle_workspaces();
    block.size = size;
    block.pointer = allocator.load()->allocate(block.size, device_, stream_);
  }
  if (!block.pointer)
    fail(DNNOPS_OUT_OF_MEMORY, "no device memory for a workspace of %lld bytes", (long long)size);
  return block;
}

void Arena::put_back(Block block) {
  std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(block);
}

void Arena::free_idle() {
  std::vector<Block> blocks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks.swap(idle_);
  }
  for (Block block : blocks) free_block(block);
}

int64_t Arena::idle_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const Block &block : idle_) bytes += block.size;
  return bytes;
}

Arena &arena_of(int device, void *stream) {
  std::lock_guard<std::mutex> lock(arenas().mutex);
  auto &arena = arenas().of_stream[{device, stream}];
  if (!arena) arena.reset(new Arena(device, stream));
  return *arena;
}

void free_idle_workspaces() {
  for_each_arena([](int, Arena &arena) { arena.free_idle(); });
}

int64_t idle_workspace_bytes(int device) {
  int64_t bytes = 0;
  for_each_arena([&](int of, Arena &arena) {
    if (of == device) bytes += arena.idle_bytes();
  });
  return bytes;
}

}  // namespace dnnops

DNNOPS_EXPORT void dnnops_cudnn_set_allocator(dnnops_allocate allocate, dnnops_free free) {
  dnnops::free_idle_workspaces();
  dnnops::allocator.store(allocate && free ? new dnnops::Allocator{allocate, free}
                                           : new dnnops::Allocator{dnnops::plain_allocate, dnnops::plain_free});
}

DNNOPS_EXPORT void dnnops_cudnn_free_workspaces(void) { dnnops::free_idle_workspaces(); }

DNNOPS_EXPORT int64_t dnnops_cudnn_workspace_bytes(int64_t device) {
  return dnnops::idle_workspace_bytes(static_cast<int>(device));
}

DNNOPS_EXPORT void dnnops_cudnn_shutdown(void) { dnnops::process_is_ending = true; }
