// The runtime library's GPU functions on the host: memory is the host's, and host_cuda.hpp runs the kernels. Tests link
// this with the sources whose launches they test.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/base/deferred.hpp"
#include "gpu/kernels/kernel_loader.hpp"

extern "C" {
cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t) { return "none"; }
const char *cudaGetErrorString(cudaError_t) { return "none"; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind, cudaStream_t) {
  return std::memcpy(to, from, size), cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t) {
  for (size_t row = 0; row < height; ++row)
    std::memcpy(static_cast<char *>(to) + row * to_pitch, static_cast<const char *>(from) + row * from_pitch, width);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t) {
  return std::memset(to, value, size), cudaSuccess;
}
}

namespace dnnops {

namespace {

constexpr int64_t GUARD = 4096;
constexpr unsigned MOST_THREADS = 1024, MOST_SHARED = 227 * 1024;
void *kernels = nullptr;
// What kernels have reported, and the messages of the numbers that they write.
int reported = 0;
std::vector<std::string> messages;

}  // namespace

bool process_is_ending = false;

ErrorFlag error_flag(const std::string &message) {
  size_t number = 0;
  while (number < messages.size() && messages[number] != message) ++number;
  if (number == messages.size()) messages.push_back(message);
  ErrorFlag flag;
  flag.address = &reported, flag.number = number + 1;
  return flag;
}

bool is_capturing(void *) { return false; }

// Starts as NaN; memory behind it must not change.
Block Arena::take(int64_t size) {
  Block block;
  block.size = size;
  block.pointer = std::aligned_alloc(256, (size + GUARD + 255) / 256 * 256);
  std::memset(block.pointer, 0xff, size + GUARD);
  return block;
}

void Arena::put_back(Block block) {
  const unsigned char *const end = static_cast<unsigned char *>(block.pointer) + block.size;
  for (int64_t i = 0; i < GUARD; ++i)
    if (end[i] != 0xff) std::abort();
  std::free(block.pointer);
}

void Arena::free_idle() {}

Handle &handle_for(int64_t, void *) {
  static Arena arena(0, nullptr);
  static Handle handle;
  handle.arena = &arena;
  return handle;
}

Kernel load_kernel(const Handle &, const char *, const char *name, const std::string &options) {
  const std::string symbol = std::string(name) + "_" + options.back();  // -DDTYPE=...
  void *const function = dlsym(kernels, symbol.c_str());
  if (!function) fail(DNNOPS_NOT_SUPPORTED, "no kernel %s", symbol.c_str());
  return {function, false};
}

void launch_kernel(const Kernel &kernel, unsigned blocks, unsigned threads, unsigned shared, void *, void **arguments) {
  if (!blocks || !threads || threads > MOST_THREADS || shared > MOST_SHARED)
    fail(DNNOPS_VALUE_ERROR, "%u blocks of %u threads with %u bytes cannot be launched", blocks, threads, shared);
  using Run = int (*)(const void *, unsigned, unsigned, unsigned, unsigned);
  if (reinterpret_cast<Run>(kernel.function)(arguments[0], blocks, threads, shared, blocks))
    fail(DNNOPS_VALUE_ERROR, "a kernel wrote beyond its shared memory");
}

}  // namespace dnnops

extern "C" int use_kernels(const char *path) {
  dnnops::kernels = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return dnnops::kernels ? 0 : 1;
}

// The message of the error that a kernel has reported since the last call, or null.
extern "C" const char *take_report() {
  const int number = dnnops::reported;
  dnnops::reported = 0;
  return number ? dnnops::messages[number - 1].c_str() : nullptr;
}
