// Dropout and its gradient, with Philox4x32-10 random numbers as described in dnnops/nnet/regularization/dropout.py.
//
// Macro: DTYPE, as in numbers.cuh.

// In each round, each thread of a block draws four words and processes four adjacent elements. The loads of
// all rounds are in flight together.
constexpr int THREADS = 256, DRAWN = 4 * THREADS, ROUNDS = 2;
// As in dropout_problem.hpp.
constexpr int GROUP = 64, GROUP_BLOCKS = 16;

constexpr int QUAD_BYTES = 4 * sizeof(Bits);
struct alignas(QUAD_BYTES < 16 ? QUAD_BYTES : 16) Quad {
  Bits of[4];
};

struct dropout_launch {
  const void *from;
  void *to;
  unsigned char *reserve;
  unsigned long long seed, offset;
  long long count, threshold;
  double scale;
  // If there is a p, it and the state (seed and offset) are read in device memory, so that a captured launch draws
  // other numbers in each replay.
  const double *p;
  const unsigned long long *state;
  unsigned long long *next_state;  // null for the gradient
  int *flag;                       // where a p out of bounds is reported
  long long error;                 // what is written there
};

// A launch with what it reads in device memory.
DEVICE dropout_launch read_launch(const dropout_launch &given) {
  dropout_launch launch = given;
  if (!launch.p) return launch;
  const double p = *launch.p;
  const bool is_first = blockIdx.x == 0 && threadIdx.x == 0, is_right = p >= 0 && p <= 1;
  launch.threshold = p < 1 ? (long long)(p * 4294967296.0) : 0xffffffffll;
  launch.scale = !is_right ? NAN : p < 1 ? 1 / (1 - p) : 0;
  if (is_first && !is_right) *static_cast<volatile int *>(launch.flag) = (int)launch.error;
  if (!launch.next_state) return launch;
  launch.seed = launch.state[0];
  launch.offset = launch.state[1];
  if (is_first) {
    launch.next_state[0] = launch.seed;
    launch.next_state[1] = launch.offset + (unsigned long long)(launch.count + GROUP - 1) / GROUP * GROUP_BLOCKS;
  }
  return launch;
}

struct Words {
  unsigned word[4];
};

DEVICE Words philox(unsigned long long seed, unsigned long long counter) {
  unsigned a = (unsigned)counter, b = (unsigned)(counter >> 32), c = 0, d = 0;
  unsigned first = (unsigned)seed, second = (unsigned)(seed >> 32);
  UNROLL
  for (int round = 0; round < 10; ++round) {
    const unsigned long long low = wide_product(a, 0xD2511F53u), high = wide_product(c, 0xCD9E8D57u);
    a = (unsigned)(high >> 32) ^ b ^ first;
    b = (unsigned)high;
    c = (unsigned)(low >> 32) ^ d ^ second;
    d = (unsigned)low;
    first += 0x9E3779B9u;
    second += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

// A part of an array: four adjacent elements for each thread of a block and each round. If all of them exist
// and are aligned, four are moved at once.
template <bool AT_ONCE>
struct Portion {
  const dropout_launch &launch;
  const long long first = ((long long)blockIdx.x * ROUNDS * THREADS + threadIdx.x) * 4;

  DEVICE explicit Portion(const dropout_launch &launch) : launch(launch) {}
  DEVICE long long begin(int round) const { return first + round * DRAWN; }
  // The number of the four elements that exist.
  DEVICE int size(int round) const {
    const long long left = launch.count - begin(round);
    return AT_ONCE || left >= 4 ? 4 : left > 0 ? (int)left : 0;
  }
  DEVICE Quad load(int round) const {
    const Bits *const from = static_cast<const Bits *>(launch.from) + begin(round);
    if constexpr (AT_ONCE) return *reinterpret_cast<const Quad *>(from);
    Quad quad = {};
    UNROLL
    for (int i = 0; i < 4; ++i)
      if (i < size(round)) quad.of[i] = from[i];
    return quad;
  }
  // Stores the elements whose bit is set; the others become zero.
  DEVICE void store(int round, Quad quad, unsigned kept) const {
    Bits *const to = static_cast<Bits *>(launch.to) + begin(round);
    UNROLL
    for (int i = 0; i < 4; ++i) {
      const Acc scaled = to_acc(quad.of[i]) * (Acc)launch.scale;
      quad.of[i] = from_acc(kept >> i & 1 ? scaled : 0);
    }
    if constexpr (AT_ONCE) {
      *reinterpret_cast<Quad *>(to) = quad;
    } else {
      UNROLL
      for (int i = 0; i < 4; ++i)
        if (i < size(round)) to[i] = quad.of[i];
    }
  }
};

// Calls f(portion) with a portion that moves four elements at once, if possible.
template <class F>
DEVICE void for_portion(const dropout_launch &launch, F f) {
  const bool is_aligned = ((unsigned long long)launch.from | (unsigned long long)launch.to) % alignof(Quad) == 0;
  if (is_aligned && (blockIdx.x + 1ll) * ROUNDS * DRAWN <= launch.count)
    f(Portion<true>(launch));
  else
    f(Portion<false>(launch));
}

// The first words of 16 threads belong to 16 adjacent elements, their second words to the next 16, and so on.
DEVICE unsigned kept_of_four(const dropout_launch &launch, const Words &words) {
  const int lane = threadIdx.x % 32, group = lane / 16, own = lane % 16 / 4;
  unsigned kept = 0;
  UNROLL
  for (int i = 0; i < 4; ++i) {
    const unsigned all = __ballot_sync(~0u, words.word[i] >= (unsigned)launch.threshold);
    if (i == own) kept = all;
  }
  return kept >> (16 * group + 4 * (lane % 4)) & 15;
}

KERNEL void __launch_bounds__(THREADS) dropout(const GRID_CONSTANT dropout_launch given) {
  wait_for_stream();
  const dropout_launch launch = read_launch(given);
  for_portion(launch, [&](const auto &portion) {
    Quad quads[ROUNDS];
    UNROLL
    for (int i = 0; i < ROUNDS; ++i) quads[i] = portion.load(i);
    UNROLL
    for (int i = 0; i < ROUNDS; ++i) {
      const int size = portion.size(i);
      const Words words = philox(launch.seed, launch.offset + (unsigned long long)portion.begin(i) / 4);
      const unsigned kept = kept_of_four(launch, words) & ((1u << size) - 1);
      portion.store(i, quads[i], kept);
      const unsigned next = __shfl_xor_sync(~0u, kept, 1);
      if (threadIdx.x % 2 == 0 && size) launch.reserve[portion.begin(i) / 8] = (unsigned char)(kept | next << 4);
    }
  });
}

KERNEL void __launch_bounds__(THREADS) dropout_grad(const GRID_CONSTANT dropout_launch given) {
  wait_for_stream();
  const dropout_launch launch = read_launch(given);
  for_portion(launch, [&](const auto &portion) {
    Quad quads[ROUNDS];
    unsigned kept[ROUNDS];
    UNROLL
    for (int i = 0; i < ROUNDS; ++i) {
      quads[i] = portion.load(i);
      kept[i] = portion.size(i) ? launch.reserve[portion.begin(i) / 8] >> portion.begin(i) % 8 : 0;
    }
    UNROLL
    for (int i = 0; i < ROUNDS; ++i) portion.store(i, quads[i], kept[i]);
  });
}
