// Runs CUDA kernels on the host. Blocks run in sequence, or several at once, each in a thread of the host. A block's
// threads are coroutines that take turns, in an order drawn anew each time, up to the next barrier of the block or
// warp. A deadlock ends the process.
#pragma once
#undef _FORTIFY_SOURCE  // with it, longjmp() refuses to change the stack
#include <sched.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
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
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __uint_as_float(unsigned bits) { return bits_as<float>(bits); }
inline unsigned __float_as_uint(float value) { return bits_as<unsigned>(value); }
inline double __hiloint2double(int high, int low) {
  return bits_as<double>((uint64_t)(uint32_t)high << 32 | (uint32_t)low);
}
inline int __double2loint(double value) { return (int)(uint32_t)bits_as<uint64_t>(value); }
inline int __double2hiint(double value) { return (int)(bits_as<uint64_t>(value) >> 32); }

// A load from a misaligned address fails on a GPU.
template <class T>
T __ldg(const T *from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(T)) std::abort();
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Kernels run with subnormal numbers flushed to zero, as CuPy has them compiled; these do not.
#if defined(__SSE__)
constexpr unsigned FLUSHES = 0x8040;  // operands and results
class Flushing {
 public:
  explicit Flushing(bool flushes) : before_(__builtin_ia32_stmxcsr()) {
    __builtin_ia32_ldmxcsr(flushes ? before_ | FLUSHES : before_ & ~FLUSHES);
  }
  ~Flushing() { __builtin_ia32_ldmxcsr(before_); }

 private:
  unsigned before_;
};
#else
struct Flushing {
  explicit Flushing(bool) {}
};
#endif
// Volatile, so that the compiler moves nothing out of the scope of the mode.
inline float multiply_add(float x, float y, float z) {
  const Flushing none(false);
  volatile float a = x, b = y, c = z;
  volatile float sum = std::fma(a, b, c);
  return sum;
}
inline float plus(float x, float y) { return multiply_add(x, 1.f, y); }
inline float product(float x, float y) { return multiply_add(x, y, -0.f); }
inline double widened(float value) {
  const Flushing none(false);
  volatile float narrow = value;
  volatile double wide = narrow;
  return wide;
}
inline float narrowed(double value) {
  const Flushing none(false);
  volatile double wide = value;
  volatile float nearest = (float)wide;
  return nearest;
}
inline double plus(double x, double y) { return x + y; }
inline double product(double x, double y) { return x * y; }
inline double widened(double value) { return value; }
inline double multiply_add(double x, double y, double z) { return std::fma(x, y, z); }

inline float half_value(unsigned short bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float sign = bits >> 15 ? -1.f : 1.f;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024.f + fraction, exponent - 25) : std::ldexp((float)fraction, -24));
}

// Rounds to nearest, ties to even.
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

// Asynchronous copies are made only when the thread waits for them.
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
inline void copy_16_bytes_or_zeros(void *to, const void *from, bool exists) {
  static const uint4 zeros = {};
  copy_bytes<16>(to, exists ? from : &zeros);
}
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

// Counts bulk copies or threads that have arrived, like an mbarrier.
struct Arrivals {
  int met, awaited_bytes;  // how many expectations have been met
  bool expects;
  int count, arrived;  // threads
};

// Those that haven't arrived yet.
struct BulkCopy {
  void *to;
  const void *from;
  int bytes;
  Arrivals *of;
};
inline thread_local std::vector<BulkCopy> bulk_copies;

inline void meet(Arrivals &of) {
  if (!of.expects || of.awaited_bytes) return;
  of.expects = false;
  ++of.met;
}
inline void begin_arrivals(Arrivals &of, int count = 1) {
  of = {};
  of.count = count;
}
inline void arrive(Arrivals &of) {
  if (++of.arrived < of.count) return;
  of.arrived = 0;
  ++of.met;
}
inline void expect_bytes(Arrivals &of, int bytes) {
  if (of.expects) std::abort();
  of.expects = true;
  of.awaited_bytes += bytes;
  meet(of);
}
inline void copy_in_bulk(void *to, const void *from, int bytes, Arrivals &of) {
  if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes <= 0 || bytes % 16)
    std::abort();
  bulk_copies.push_back({to, from, bytes, &of});
}

// Counts what all blocks do: if it does not change, they are in a deadlock.
inline std::atomic<uint64_t> steps{0};

class Block {
 public:
  static inline thread_local std::vector<uint4> dynamic;  // shared memory
  static inline thread_local Block *running = nullptr;

  Block(unsigned threads, std::function<void()> kernel, unsigned seed)
      : kernel_(std::move(kernel)), places_(threads), started_(threads), states_(threads, READY), order_(threads), random_(seed) {
    static thread_local std::unique_ptr<char[]> stacks;
    static thread_local size_t size = 0;
    if (size < threads * STACK) stacks.reset(new char[size = threads * STACK]);
    stacks_ = stacks.get();
    std::iota(order_.begin(), order_.end(), 0u);
    getcontext(&first_);
  }

  void run() {
    running = this;
    uint64_t seen = ~uint64_t(0);
    auto since = std::chrono::steady_clock::now();
    while (std::any_of(states_.begin(), states_.end(), [](State state) { return state != ENDED; })) {
      uint64_t made = deliver();
      std::shuffle(order_.begin(), order_.end(), random_);
      for (unsigned i : order_) {
        if (states_[i] != READY || random_() % 4 == 0) continue;  // some fall behind
        current_ = i;
        threadIdx.x = i;
        resume(i);
        made += states_[i] != PAUSED;
      }
      std::replace(states_.begin(), states_.end(), PAUSED, READY);
      release();
      if (made) {
        steps += made;
        continue;
      }
      // This block could only wait.
      sched_yield();
      const auto now = std::chrono::steady_clock::now();
      if (seen != steps) {
        seen = steps;
        since = now;
      }
      if (now - since > std::chrono::seconds(30)) std::abort();
    }
  }

  void block_barrier() { leave(AT_BLOCK); }
  void warp_barrier() { leave(AT_WARP); }
  // Lets other threads run first, also of this block.
  void pause() { leave(PAUSED); }

 private:
  enum State : char { READY, PAUSED, AT_WARP, AT_BLOCK, ENDED };
  struct Place {
    jmp_buf buffer;
  };
  static constexpr size_t STACK = 1 << 17;

  static void enter() {
    running->kernel_();
    running->states_[running->current_] = ENDED;
    _longjmp(running->main_, 1);
  }
  // Only the start of a thread is a system call, which swapcontext() would be each time.
  [[gnu::noinline]] void resume(unsigned i) {
    if (_setjmp(main_)) return;
    if (started_[i]) _longjmp(places_[i].buffer, 1);
    started_[i] = true;
    first_.uc_stack.ss_sp = stacks_ + i * STACK;
    first_.uc_stack.ss_size = STACK;
    makecontext(&first_, &Block::enter, 0);
    setcontext(&first_);
  }
  [[gnu::noinline]] void leave(State state) {
    const unsigned me = current_;
    states_[me] = state;
    if (!_setjmp(places_[me].buffer)) _longjmp(main_, 1);
  }

  // Makes some of the copies.
  unsigned deliver() {
    std::vector<BulkCopy> late;
    for (const BulkCopy &copy : bulk_copies) {
      if (random_() % 8) {
        late.push_back(copy);
        continue;
      }
      std::memcpy(copy.to, copy.from, copy.bytes);
      copy.of->awaited_bytes -= copy.bytes;
      meet(*copy.of);
    }
    const size_t count = bulk_copies.size() - late.size();
    bulk_copies.swap(late);
    return (unsigned)count;
  }

  // Releases the threads at a barrier that all threads have reached that have not ended.
  void release() {
    const size_t size = states_.size();
    const auto pass = [&](size_t begin, size_t end, State at) {
      bool some = false;
      for (size_t i = begin; i < end; ++i) {
        if (states_[i] != at && states_[i] != ENDED) return false;
        some = some || states_[i] == at;
      }
      if (some) std::replace(states_.begin() + begin, states_.begin() + end, at, READY);
      return some;
    };
    bool some = pass(0, size, AT_BLOCK);
    for (size_t begin = 0; begin < size; begin += 32) some = pass(begin, std::min(begin + 32, size), AT_WARP) || some;
    const auto can_go_on = [](State state) { return state == READY; };
    if (some || std::any_of(states_.begin(), states_.end(), can_go_on)) return;
    // Barriers that other threads do not reach.
    if (std::any_of(states_.begin(), states_.end(), [](State state) { return state != ENDED; })) std::abort();
  }

  std::function<void()> kernel_;
  std::vector<Place> places_;
  std::vector<char> started_;
  std::vector<State> states_;
  std::vector<unsigned> order_;
  std::mt19937 random_;
  char *stacks_;
  ucontext_t first_;
  jmp_buf main_;
  unsigned current_ = 0;
};

inline void __syncthreads() { Block::running->block_barrier(); }
inline void __syncwarp() { Block::running->warp_barrier(); }

// All threads of the warp take part.
template <class T>
T __shfl_xor_sync(unsigned, T value, int apart) {
  static thread_local T values[1024];
  values[threadIdx.x] = value;
  __syncwarp();
  const T other = values[threadIdx.x ^ (unsigned)apart];
  __syncwarp();
  return other;
}

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  static thread_local T values[1024];
  values[threadIdx.x] = value;
  __syncwarp();
  const T other = values[threadIdx.x / 32 * 32 + (unsigned)lane % 32];
  __syncwarp();
  return other;
}

// As in c_code/gpu/kernels/tensor_cores.cuh.
inline unsigned to_tf32(float value) {
  const unsigned word = bits_as<unsigned>(value);
  // Infinities stay what they are, and NaN must not become one.
  if ((word & 0x7f800000u) == 0x7f800000u) return value == value ? word : 0x7fffe000u;
  return (word + 0x1000u) & 0xffffe000u;
}
inline float power_of_2(float exponent) {
  const float power = std::exp2(exponent);
  return power < 0x1p-126f ? 0 : power;  // also keeps NaN
}

// The nearest number that is not larger in magnitude.
inline float truncated(double value) {
  const float nearest = (float)value;
  return std::fabs((double)nearest) > std::fabs(value) ? std::nextafter(nearest, 0.0f) : nearest;
}

// As in c_code/gpu/kernels/tensor_cores.cuh: the threads of a warp provide their numbers in turn, and all read them.
// Tensor cores truncate sums.
inline void add_product(float *sums, const unsigned *a, const unsigned *b) {
  static thread_local unsigned left[1024][4], right[1024][2];
  const unsigned thread = threadIdx.x, first = thread / 32 * 32, lane = thread % 32;
  std::copy(a, a + 4, left[thread]);
  std::copy(b, b + 2, right[thread]);
  __syncwarp();
  const auto number = [](unsigned bits) { return (double)bits_as<float>(bits & 0xffffe000u); };
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned column = lane % 4 * 2 + i % 2;
    double sum = sums[i];
    for (unsigned k = 0; k < 8; ++k)
      sum += number(left[first + lane / 4 * 4 + k % 4][i / 2 + k / 4 * 2]) * number(right[first + column * 4 + k % 4][k / 4]);
    sums[i] = truncated(sum);
  }
  __syncwarp();
}

inline unsigned __ballot_sync(unsigned, bool is) {
  unsigned all = (unsigned)is << threadIdx.x % 32;
  for (int apart = 1; apart < 32; apart *= 2) all |= __shfl_xor_sync(~0u, all, apart);
  return all;
}

inline void wait_for_arrivals(Arrivals &of, unsigned number) {
  while (((unsigned)of.met & 1) == (number & 1)) Block::running->pause();
}

inline unsigned long long wide_product(unsigned a, unsigned b) { return (unsigned long long)a * b; }

// If blocks run in sequence, a block may wait only for results of earlier ones.
inline bool runs_some_at_once = false;
inline void pause() {
  if (!runs_some_at_once) std::abort();
  Block::running->pause();
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __threadfence(); }
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
template <class T>
void forget_uses(T &) {}
inline void store_16_bytes(void *to, uint4 value) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(uint4)) std::abort();
  std::memcpy(to, &value, sizeof value);
}
inline void __stcs(uint4 *to, uint4 value) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(uint4)) std::abort();
  *to = value;
}

// Shared memory starts as NaN and has the requested size; memory behind it must not change.
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
  bulk_copies.clear();
  {
    const Flushing subnormal_numbers(true);
    Block(threads, [&] { kernel(params); }, seed).run();
  }
  if (!bulk_copies.empty()) return 1;  // no thread has waited for them
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

// As for a cooperative launch.
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
