// Runs CUDA kernels on the host, one block after the other, or some at once, each of which has a thread of the host: a
// block's threads are coroutines, which take turns, in an order drawn anew, whenever all that haven't ended are at a
// barrier.
#pragma once
#include <sched.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#define DEVICE inline
#define KERNEL static
#define UNROLL
#define UNROLL_4
#define UNROLL_BY(count)
#define NO_UNROLL
#define GRID_CONSTANT
inline void wait_for_stream() {}
#define __launch_bounds__(...)
#define __shared__ static thread_local

struct Dim3 {
  unsigned x = 0, y = 0, z = 0;
};
inline thread_local Dim3 threadIdx, blockIdx, blockDim, gridDim;

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

// Blocks and their threads take turns.
template <class T>
void atomicAdd(T *to, T value) {
  *to += value;
}

// Copies that a thread has begun are made when it waits for them, not earlier.
struct Copies {
  struct Copy {
    void *to;
    const void *from;
    int bytes;
  };
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> begun;
};
inline thread_local std::vector<Copies> copies(1024);

template <int BYTES>
void copy_bytes(void *to, const void *from) {
  if (reinterpret_cast<uintptr_t>(to) % BYTES || reinterpret_cast<uintptr_t>(from) % BYTES) std::abort();
  copies[threadIdx.x].begun.push_back({to, from, BYTES});
}
inline void copy_16_bytes(char *to, const char *from) { copy_bytes<16>(to, from); }
inline void end_copies() {
  Copies &own = copies[threadIdx.x];
  own.groups.push_back(std::move(own.begun));
  own.begun.clear();
}
template <int PENDING>
void wait_for_copies() {
  for (auto &groups = copies[threadIdx.x].groups; groups.size() > PENDING; groups.pop_front())
    for (const Copies::Copy &copy : groups.front()) std::memcpy(copy.to, copy.from, copy.bytes);
}

class Block {
 public:
  static inline thread_local std::vector<uint4> dynamic;  // shared memory
  static inline thread_local Block *running = nullptr;

  Block(unsigned threads, std::function<void()> kernel, unsigned seed)
      : kernel_(std::move(kernel)), contexts_(threads), ended_(threads), order_(threads), random_(seed) {
    constexpr size_t STACK = 1 << 17;
    static thread_local std::unique_ptr<char[]> stacks;
    static thread_local size_t size = 0;
    if (size < threads * STACK) stacks.reset(new char[size = threads * STACK]);
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
      std::vector<unsigned> turn = order_, again;
      while (!turn.empty()) {
        for (unsigned i : turn) {
          if (ended_[i]) continue;
          current_ = i;
          threadIdx.x = i;
          paused_ = false;
          swapcontext(&main_, &contexts_[i]);
          left -= ended_[i];
          if (paused_) again.push_back(i);
        }
        turn.swap(again);
        again.clear();
      }
    }
  }

  void barrier() { swapcontext(&contexts_[current_], &main_); }
  // Lets others come first, of this block too.
  void pause() {
    paused_ = true;
    barrier();
  }

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
  bool paused_ = false;
};

inline void __syncthreads() { Block::running->barrier(); }
// All of a block wait, not only the warp: it must be what each thread comes to.
inline void __syncwarp() { Block::running->barrier(); }

// All threads of the block take part, which is more than a GPU asks for.
template <class T>
T __shfl_xor_sync(unsigned, T value, int apart) {
  static thread_local T values[1024];
  values[threadIdx.x] = value;
  __syncthreads();
  const T other = values[threadIdx.x ^ (unsigned)apart];
  __syncthreads();
  return other;
}

// If blocks run one after the other, what one waits for has to be there.
inline bool runs_some_at_once = false;
inline void pause() {
  if (!runs_some_at_once) std::abort();
  sched_yield();
  Block::running->pause();
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline unsigned atomicAdd(unsigned *to, unsigned value) { return __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
inline unsigned atomicExch(unsigned *to, unsigned value) { return __atomic_exchange_n(to, value, __ATOMIC_RELAXED); }
inline void add_release(unsigned *to, unsigned value) { __atomic_fetch_add(to, value, __ATOMIC_RELEASE); }
inline unsigned read_acquire(const unsigned *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
inline void write_relaxed(double *to, double value) {
  __atomic_store_n(reinterpret_cast<uint64_t *>(to), bits_as<uint64_t>(value), __ATOMIC_RELAXED);
}
inline double read_relaxed(const double *from) {
  return bits_as<double>(__atomic_load_n(reinterpret_cast<const uint64_t *>(from), __ATOMIC_RELAXED));
}
inline double read_from_cache(const double *from) { return *from; }
inline uint4 __ldcs(const uint4 *from) { return __ldg(from); }
inline void __stcs(uint4 *to, uint4 value) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(uint4)) std::abort();
  *to = value;
}

// Shared memory begins as NaNs, and is as long as asked for; what follows it must stay as it is.
template <class Kernel, class Params>
int run_block(Kernel kernel, const Params &params, Dim3 block, Dim3 grid, unsigned threads, unsigned shared,
              unsigned seed) {
  constexpr size_t GUARD = 64;
  const size_t units = (shared + 15) / 16;
  blockIdx = block;
  gridDim = grid;
  blockDim.x = threads;
  Block::dynamic.assign(units + GUARD, uint4{~0u, ~0u, ~0u, ~0u});
  copies.assign(threads, {});
  Block(threads, [&] { kernel(params); }, seed).run();
  for (size_t i = units; i < units + GUARD; ++i) {
    const uint4 q = Block::dynamic[i];
    if ((q.x & q.y & q.z & q.w) != ~0u) return 1;
  }
  return 0;
}

template <class Kernel, class Params>
int run_grid(Kernel kernel, const Params &params, unsigned blocks, unsigned threads, unsigned shared, unsigned seed) {
  int failed = 0;
  for (unsigned block = 0; block < blocks && !failed; ++block)
    failed = run_block(kernel, params, {block}, {blocks}, threads, shared, seed + block);
  return failed;
}

// As of a cooperative launch.
template <class Kernel, class Params>
int run_grid_at_once(Kernel kernel, const Params &params, unsigned blocks, unsigned threads, unsigned shared,
                     unsigned seed) {
  runs_some_at_once = true;
  std::vector<int> failed(blocks);
  std::vector<std::thread> running;
  for (unsigned block = 0; block < blocks; ++block)
    running.emplace_back([&, block] {
      failed[block] = run_block(kernel, params, {block}, {blocks}, threads, shared, seed + block);
    });
  for (std::thread &thread : running) thread.join();
  runs_some_at_once = false;
  return *std::max_element(failed.begin(), failed.end());
}
