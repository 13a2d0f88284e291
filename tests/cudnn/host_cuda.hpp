// Runs CUDA kernels on the host, one block after the other: a block's threads are coroutines, which
// take turns, in an order drawn anew, whenever all that haven't ended are at a barrier.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#define DEVICE inline
#define KERNEL static
#define UNROLL
#define UNROLL_4
#define NO_UNROLL
#define GRID_CONSTANT
inline void wait_for_stream() {}
#define __launch_bounds__(...)
#define __shared__ static

struct Dim3 {
  unsigned x = 0, y = 0, z = 0;
};
inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

using std::max;
using std::min;

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline float __uint_as_float(unsigned bits) { return bits_as<float>(bits); }
inline unsigned __float_as_uint(float value) { return bits_as<unsigned>(value); }
inline double __hiloint2double(int high, int low) {
  return bits_as<double>((uint64_t)(uint32_t)high << 32 | (uint32_t)low);
}
inline int __double2loint(double value) { return (int)(uint32_t)bits_as<uint64_t>(value); }
inline int __double2hiint(double value) { return (int)(bits_as<uint64_t>(value) >> 32); }

// A load whose address is no multiple of its size fails on a GPU.
template <class T>
T __ldg(const T *from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(T)) std::abort();
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline float half_value(unsigned short bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float sign = bits >> 15 ? -1.f : 1.f;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024.f + fraction, exponent - 25) : std::ldexp((float)fraction, -24));
}

// To the nearest, of two the even one.
inline unsigned short to_half(float value) {
  const unsigned short sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7fff;
  const double magnitude = std::fabs((double)value);
  if (magnitude >= 65520) return sign | 0x7c00;
  int exponent;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 11, -24);  // the place of the last bit
  const double steps = std::nearbyint(std::ldexp(magnitude, -unit));
  if (steps == 0) return sign;
  const int above = unit + 24;  // 0: subnormal numbers and the first binade
  return sign | (unsigned short)((above << 10) + (int)steps);
}

inline unsigned short to_bfloat(float value) {
  if (std::isnan(value)) return 0x7fff;
  const uint32_t bits = bits_as<uint32_t>(value);
  return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline void copy_16_bytes(char *to, const char *from) {
  if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16) std::abort();
  std::memcpy(to, from, 16);
}
inline void end_copies() {}
template <int>
void wait_for_copies() {}

class Block {
 public:
  static inline std::vector<uint4> dynamic;  // shared memory
  static inline Block *running = nullptr;

  Block(unsigned threads, std::function<void()> kernel, unsigned seed)
      : kernel_(std::move(kernel)), contexts_(threads), ended_(threads), order_(threads), random_(seed) {
    constexpr size_t STACK = 1 << 17;
    static std::vector<char> stacks;
    if (stacks.size() < threads * STACK) stacks.resize(threads * STACK);
    for (unsigned i = 0; i < threads; ++i) {
      order_[i] = i;
      getcontext(&contexts_[i]);
      contexts_[i].uc_stack.ss_sp = &stacks[i * STACK];
      contexts_[i].uc_stack.ss_size = STACK;
      contexts_[i].uc_link = &main_;
      makecontext(&contexts_[i], &Block::enter, 0);
    }
  }

  void run() {
    running = this;
    for (size_t left = contexts_.size(); left;) {
      std::shuffle(order_.begin(), order_.end(), random_);
      for (unsigned i : order_) {
        if (ended_[i]) continue;
        current_ = i;
        threadIdx.x = i;
        swapcontext(&main_, &contexts_[i]);
        left -= ended_[i];
      }
    }
  }

  void barrier() { swapcontext(&contexts_[current_], &main_); }

 private:
  static void enter() {
    running->kernel_();
    running->ended_[running->current_] = 1;
  }

  std::function<void()> kernel_;
  std::vector<ucontext_t> contexts_;
  std::vector<char> ended_;
  std::vector<unsigned> order_;
  std::mt19937 random_;
  ucontext_t main_;
  unsigned current_ = 0;
};

inline void __syncthreads() { Block::running->barrier(); }
// All of a block wait, not only the warp: it must be what each thread comes to.
inline void __syncwarp() { Block::running->barrier(); }

// Shared memory begins as NaNs, and is as long as asked for; what follows it must stay as it is.
template <class Kernel, class Params>
int run_grid(Kernel kernel, const Params &params, unsigned blocks, unsigned threads, unsigned shared, unsigned seed) {
  constexpr size_t GUARD = 64;
  const size_t units = (shared + 15) / 16;
  blockDim.x = threads;
  gridDim.x = blocks;
  for (unsigned block = 0; block < blocks; ++block) {
    Block::dynamic.assign(units + GUARD, uint4{~0u, ~0u, ~0u, ~0u});
    blockIdx.x = block;
    Block(threads, [&] { kernel(params); }, seed + block).run();
    for (size_t i = units; i < units + GUARD; ++i) {
      const uint4 q = Block::dynamic[i];
      if ((q.x & q.y & q.z & q.w) != ~0u) return 1;
    }
  }
  return 0;
}
