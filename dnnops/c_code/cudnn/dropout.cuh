// Dropout and its gradient: random numbers by Philox4x32-10, as dnnops/nnet/dropout.py describes them.
//
// Macro: DTYPE, of numbers.cuh.

// At a round each of a block's threads draws four words, and has four elements side by side.  Rounds have their loads under
// way together.
constexpr int THREADS = 256, DRAWN = 4 * THREADS, ROUNDS = 4;

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
};

struct Words {
  unsigned word[4];
};

DEVICE Words philox(unsigned long long seed, unsigned long long counter) {
  unsigned a = (unsigned)counter, b = (unsigned)(counter >> 32), c = 0, d = 0;
  unsigned first = (unsigned)seed, second = (unsigned)(seed >> 32);
  UNROLL
  for (int round = 0; round < 10; ++round) {
    const unsigned long long low = 0xD2511F53ull * a, high = 0xCD9E8D57ull * c;
    a = (unsigned)(high >> 32) ^ b ^ first;
    b = (unsigned)high;
    c = (unsigned)(low >> 32) ^ d ^ second;
    d = (unsigned)low;
    first += 0x9E3779B9u;
    second += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

// Where four elements are, of which those before `count` are there.
struct Place {
  long long begin;
  int size;       // of the four, those that are there
  bool is_whole;  // whether they are moved at once
  DEVICE Place(const dropout_launch &launch, long long begin) : begin(begin) {
    const long long left = launch.count - begin;
    size = left >= 4 ? 4 : left > 0 ? (int)left : 0;
    is_whole = size == 4 && ((unsigned long long)launch.from | (unsigned long long)launch.to) % alignof(Quad) == 0;
  }
  DEVICE Quad load(const dropout_launch &launch) const {
    const Bits *const from = static_cast<const Bits *>(launch.from) + begin;
    if (is_whole) return *reinterpret_cast<const Quad *>(from);
    Quad quad = {};
    UNROLL
    for (int i = 0; i < 4; ++i)
      if (i < size) quad.of[i] = from[i];
    return quad;
  }
  // Of elements whose bit is set; others become zero.
  DEVICE void store(const dropout_launch &launch, Quad quad, unsigned kept) const {
    Bits *const to = static_cast<Bits *>(launch.to) + begin;
    UNROLL
    for (int i = 0; i < 4; ++i) quad.of[i] = from_acc(kept >> i & 1 ? to_acc(quad.of[i]) * (Acc)launch.scale : 0);
    if (is_whole) {
      *reinterpret_cast<Quad *>(to) = quad;
      return;
    }
    UNROLL
    for (int i = 0; i < 4; ++i)
      if (i < size) to[i] = quad.of[i];
  }
};

// The first words of 16 threads are those of 16 elements side by side, the second ones of the next 16, and so on.
DEVICE unsigned kept_of_four(const dropout_launch &launch, const Words &words) {
  const int lane = threadIdx.x % 32, group = lane / 16, own = lane % 16 / 4;
  unsigned kept = 0;
  UNROLL
  for (int i = 0; i < 4; ++i) {
    const unsigned all = __ballot_sync(~0u, words.word[i] >= (unsigned)launch.threshold);
    if (i == own) kept = all >> (16 * group + 4 * (lane % 4)) & 15;
  }
  return kept;
}

KERNEL void __launch_bounds__(THREADS) dropout(const GRID_CONSTANT dropout_launch launch) {
  wait_for_stream();
  const long long first = (long long)blockIdx.x * ROUNDS * THREADS + threadIdx.x;
  const auto place = [&](int round) { return Place(launch, 4 * (first + round * THREADS)); };
  Quad quads[ROUNDS];
  UNROLL
  for (int i = 0; i < ROUNDS; ++i) quads[i] = place(i).load(launch);
  UNROLL
  for (int i = 0; i < ROUNDS; ++i) {
    const Place at = place(i);
    const Words words = philox(launch.seed, launch.offset + (unsigned long long)(first + i * THREADS));
    const unsigned kept = kept_of_four(launch, words) & ((1u << at.size) - 1);
    at.store(launch, quads[i], kept);
    const unsigned next = __shfl_xor_sync(~0u, kept, 1);
    if (threadIdx.x % 2 == 0 && at.size) launch.reserve[at.begin / 8] = (unsigned char)(kept | next << 4);
  }
}

KERNEL void __launch_bounds__(THREADS) dropout_grad(const GRID_CONSTANT dropout_launch launch) {
  wait_for_stream();
  const long long first = (long long)blockIdx.x * ROUNDS * THREADS + threadIdx.x;
  const auto place = [&](int round) { return Place(launch, 4 * (first + round * THREADS)); };
  Quad quads[ROUNDS];
  unsigned kept[ROUNDS];
  UNROLL
  for (int i = 0; i < ROUNDS; ++i) {
    const Place at = place(i);
    quads[i] = at.load(launch);
    kept[i] = at.size ? launch.reserve[at.begin / 8] >> at.begin % 8 : 0;
  }
  UNROLL
  for (int i = 0; i < ROUNDS; ++i) place(i).store(launch, quads[i], kept[i]);
}
