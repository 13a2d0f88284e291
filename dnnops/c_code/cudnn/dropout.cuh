// Dropout and its gradient: random numbers by Philox4x32-10, as dnnops/nnet/dropout.py describes them.
//
// Macro: DTYPE, of numbers.cuh.

// Each of a block's threads draws four words; 16 threads draw those of 64 elements.
constexpr int THREADS = 256, DRAWN = 4 * THREADS, GROUP = 64, LANES = 16;

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

DEVICE Bits scaled(Bits bits, double scale, bool kept) {
  return from_acc(kept ? to_acc(bits) * (Acc)scale : 0);
}

KERNEL void __launch_bounds__(256) dropout(const GRID_CONSTANT dropout_launch launch) {
  wait_for_stream();
  __shared__ unsigned char kept[DRAWN];
  const int thread = threadIdx.x;
  const long long begin = (long long)blockIdx.x * DRAWN;
  const auto *from = static_cast<const Bits *>(launch.from);
  auto *to = static_cast<Bits *>(launch.to);
  const Words words = philox(launch.seed, launch.offset + (unsigned long long)blockIdx.x * THREADS + thread);
  UNROLL
  for (int i = 0; i < 4; ++i) {
    const int place = thread / LANES * GROUP + i * LANES + thread % LANES;
    const bool is_kept = begin + place < launch.count && words.word[i] >= (unsigned)launch.threshold;
    if (begin + place < launch.count) to[begin + place] = scaled(from[begin + place], launch.scale, is_kept);
    kept[place] = is_kept;
  }
  __syncthreads();
  if (thread >= DRAWN / 8 || begin + 8 * thread >= launch.count) return;
  unsigned bits = 0;
  UNROLL
  for (int i = 0; i < 8; ++i) bits |= (unsigned)kept[8 * thread + i] << i;
  launch.reserve[begin / 8 + thread] = (unsigned char)bits;
}

KERNEL void __launch_bounds__(256) dropout_grad(const GRID_CONSTANT dropout_launch launch) {
  wait_for_stream();
  const auto *from = static_cast<const Bits *>(launch.from);
  auto *to = static_cast<Bits *>(launch.to);
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < launch.count;
       i += (long long)gridDim.x * blockDim.x)
    to[i] = scaled(from[i], launch.scale, launch.reserve[i / 8] >> i % 8 & 1);
}
