// Scratch memory for one call at a time, kept per device and stream.
#ifndef DNNOPS_CUDNN_WORKSPACE_HPP
#define DNNOPS_CUDNN_WORKSPACE_HPP

#include <mutex>
#include <vector>

#include "check.hpp"

namespace dnnops {

struct Block {
  void *pointer = nullptr;
  int64_t size = 0;
};

// A block is taken out while a call launches its kernels and put back right after: kernels of one stream run
// in order, so the next call may use it at once. A second thread on the same stream gets another block. No
// lock is held while memory is allocated or freed, since that may have to wait for the GIL.
class Arena {
 public:
  Arena(int device, void *stream) : device_(device), stream_(stream) {}
  Block take(int64_t size);
  void put_back(Block block);
  void free_idle();
  int64_t idle_bytes();

 private:
  int device_;
  void *stream_;
  std::mutex mutex_;
  std::vector<Block> idle_;
};

// The arena of a stream, which lives as long as the process.
Arena &arena_of(int device, void *stream);

// Frees the workspaces that no call is using.
void free_idle_workspaces();
int64_t idle_workspace_bytes(int device);

class Workspace {
 public:
  Workspace(Arena &arena, int64_t size) : arena_(arena) {
    if (size > 0) block_ = arena.take(size);
  }
  ~Workspace() {
    if (block_.pointer) arena_.put_back(block_);
  }
  Workspace(const Workspace &) = delete;
  Workspace &operator=(const Workspace &) = delete;
  void *pointer() const { return block_.pointer; }

 private:
  Arena &arena_;
  Block block_;
};

}  // namespace dnnops
#endif
