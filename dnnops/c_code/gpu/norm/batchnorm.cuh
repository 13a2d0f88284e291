// Batch normalization in training, its gradient, and batch normalization with given statistics.
//
// The first two compute sums, and then results from them. There are seven ways to do both parts in one launch, so that
// memory is read about once:
//   ALONE: a block has a group of channels to itself, and keeps it in shared memory.
//   KEPT: several blocks share a group. Each keeps what it has read in shared memory until all have read. All blocks
//     of a launch run at once (it is a cooperative launch) and process one share after the other.
//   BY_WARPS: likewise, but each warp of a block has its own shares, of channels whose elements are contiguous. While
//     some warps read, others wait or write. Shares are loaded by bulk copies.
//   HELD: several blocks share a channel whose elements are contiguous. Each warp holds its share in registers until
//     all have read, while the next share is copied to shared memory.
//   SHORT: a warp, or some of its threads, has a channel to itself, whose elements are contiguous, and holds it in
//     registers.
//   SWEPT: all blocks go over the rows in memory order and sum all channels. Then they go over the rows in the
//     opposite order: what was read last is still in shared memory, and some more is in the level 2 cache.
//   STREAMED: several blocks share a group that is too large to keep. Each part has its own blocks. Those of the
//     second part start some time after those that they wait for: late enough not to wait, early enough that what the
//     first ones have read is still in the level 2 cache.
//
// With relu, the gradient computes the normalized data again, to see which elements relu has set to zero. That takes
// no more memory traffic, since it reads x anyway, but the numbers must have the same bits as in training. So training
// uses the rounded statistics that it returns. What rounding the mean has changed goes into the bias: the results are
// offsets, which the gradient gets in place of the bias.
//
// After a sum with another array, the gradient sees from the result of relu which elements relu has set to zero. The
// first part also writes the masked gradient, which is the gradient with respect to the other array. The second part
// reads it again, and needs neither the result nor the gradient that was given.
//
// Numbers may be as large or as small as their dtype allows. Elements are multiplied by the power of 2 in the reciprocal
// of the deviation before anything is subtracted from them, so that differences are near 1, and only then by the rest
// of the reciprocal and the scale. This takes no more instructions, since a difference is a fused operation either way.
// Sums in training, of differences whose size is still unknown, are checked, and repeated in float64 if need be.
//
// Macros set by c_code/gpu/norm/batchnorm_work.cpp: DTYPE; KIND, a BatchNormKind; FUSED, bits of BatchNormFused; HOW, a
// BatchNormWay; ROWS, whether channels are adjacent and a row has all of them (otherwise a channel's elements are
// adjacent); V, the number of elements moved at once; LANES, the number of threads side by side along a row (SWEPT gets
// it as a parameter) or, if short, of threads that share a channel; THREADS per block; BLOCKS, the minimum number per
// multiprocessor; BUNDLED, by warps: whether sums are awaited in bundles; HOLDS, if held or short: the number of vectors
// of an array that a thread holds; EVEN, if held: whether each warp has a share and all shares have the same number of
// vectors, and if short: whether all threads of a channel hold the same number; LINED, whether the vectors of a share
// are adjacent.

using Parameter = Acc;
constexpr int WARPS = THREADS / 32;
constexpr int COLUMNS = ROWS ? LANES * V : 1;  // channels per group
constexpr int SUMS = ROWS ? V : 1;             // channels per thread

constexpr bool RELU = FUSED & BATCHNORM_RELU, ADDEND = FUSED & BATCHNORM_ADDEND;
// Whether training returns offsets, and whether the gradient uses them.
constexpr bool HAS_OFFSETS = KIND == BATCHNORM_TRAIN && RELU && !ADDEND, MASKED = KIND == BATCHNORM_GRADIENT && RELU && !ADDEND;
// Whether the gradient gets the result of relu.
constexpr bool HAS_RESULT = KIND == BATCHNORM_GRADIENT && ADDEND;

constexpr int ARRAYS = KIND == BATCHNORM_GRADIENT || ADDEND ? 2 : 1;  // arrays that results are computed from
// Arrays that the first part reads to compute sums.
constexpr int SUMMED = HAS_RESULT ? 3 : KIND == BATCHNORM_GRADIENT ? 2 : 1;
constexpr int MOST_ARRAYS = SUMMED > ARRAYS ? SUMMED : ARRAYS;

// Whether each warp has its own shares.
constexpr bool BY_WARPS = HOW == BATCHNORM_BY_WARPS || HOW == BATCHNORM_HELD;
constexpr bool KEEPS = HOW == BATCHNORM_ALONE || HOW == BATCHNORM_KEPT || BY_WARPS;
// The number of loads from memory in flight together. More would need more registers than there are.
constexpr bool IS_WIDE = MASKED && sizeof(Bits) == 8;
constexpr int DEPTH = HAS_RESULT                 ? 2
                      : HOW != BATCHNORM_SWEPT   ? (ROWS || IS_WIDE ? 4 : 8) / ARRAYS
                      : ARRAYS > 1 && SUMS > 4 ? 2
                                               : 4;

struct alignas(V * sizeof(Bits)) Pack {
  Bits of[V];
};

DEVICE int lane() { return threadIdx.x % 32; }
DEVICE int warp() { return threadIdx.x / 32; }

// The threads that share a unit of work, and a thread's index among them.
constexpr int TEAM = HOW == BATCHNORM_SHORT ? LANES : BY_WARPS ? 32 : THREADS;
DEVICE int member() { return (int)(TEAM < THREADS ? threadIdx.x % TEAM : threadIdx.x); }

struct Place {
  int first_channel;  // of the thread
  bool has_channels;
};

DEVICE Place place_of(const BatchNormParams &p, int group) {
  const int channel = ROWS ? group * COLUMNS + threadIdx.x % LANES * V : group;
  return {channel, channel < p.channels};
}

// The share of a split: a range of vectors of a channel, or of rows.
struct Share {
  long long begin;
  int size;
  DEVICE Share(const BatchNormParams &p, int split) {
    if (BY_WARPS && p.pieces > 1) {  // pieces of an image
      const int across = (int)(p.inner / V), image = split / p.pieces, at = (split - image * p.pieces) * p.share;
      begin = (long long)image * across + at;
      size = min(p.share, across - at);
    } else {
      begin = (long long)split * p.share;
      size = (int)min((long long)p.share, p.batch * (ROWS ? p.inner : p.inner / V) - begin);
    }
  }
};

// The vectors in a split's share that belong to this thread, one after the other.
struct Walk {
  long long offset = 0, step = 0, wrap = 0;
  int left = 0, at = 0, across = 0, step_at = 0;  // contiguous channels: vectors within an image

  DEVICE Walk(const BatchNormParams &p, const Place &place, int split) {
    constexpr int WIDTH = ROWS ? LANES : 1;  // threads side by side take one unit
    const Share share(p, split);
    const int mine = member() / WIDTH;
    across = ROWS ? 1 : (int)(p.inner / V);
    if (!place.has_channels || mine >= share.size) return;
    left = (share.size - mine + TEAM / WIDTH - 1) / (TEAM / WIDTH);
    const long long first = share.begin + mine;
    if constexpr (ROWS) {
      offset = first * p.channels + place.first_channel;
      step = TEAM / LANES * p.channels;
    } else {
      // A channel that fits in shared memory has less than 2^32 vectors.
      const long long image = BY_WARPS ? (unsigned)first / (unsigned)across : first / across;
      at = (int)(first - image * across);
      offset = (image * p.channels + place.first_channel) * p.inner + (long long)at * V;
      step_at = TEAM % across;
      step = TEAM / across * (p.channels * p.inner) + step_at * V;
      wrap = (p.channels - 1) * p.inner;
    }
  }
  DEVICE void advance() {
    offset += step;
    if constexpr (!ROWS) {
      at += step_at;
      if (at >= across) {
        at -= across;
        offset += wrap;
      }
    }
  }
};

// A vector of each array: x, the other one, and the result of relu.
struct Packs {
  Pack of[MOST_ARRAYS];
};

// The same as loaded and held: 16-bit elements would take a register each.
template <int BYTES>
struct WordsOf {
  using Type = Pack;
};
template <>
struct WordsOf<16> {
  using Type = uint4;
};
struct Words {
  using Type = WordsOf<sizeof(Pack)>::Type;
  Type of[MOST_ARRAYS];
  DEVICE operator Packs() const {
    Packs packs;
    UNROLL
    for (int i = 0; i < MOST_ARRAYS; ++i) packs.of[i] = reinterpret_cast<const Pack &>(of[i]);
    return packs;
  }
};

DEVICE const Bits *array_of(const BatchNormParams &p, int number) {
  return static_cast<const Bits *>(number == 0 ? p.x : number == 1 ? p.other : p.result);
}

// Reads what the first part computes sums from, or what the `second` part needs. Data that is read only `once` should
// not evict other data from the cache.
template <bool ONCE = false, bool SECOND = false>
DEVICE Words load(const BatchNormParams &p, long long offset) {
  Words words;
  UNROLL
  for (int i = 0; i < (SECOND ? ARRAYS : SUMMED); ++i) {
    const Bits *const array = HAS_RESULT && SECOND && i == 1 ? static_cast<const Bits *>(p.masked) : array_of(p, i);
    const auto *const from = reinterpret_cast<const Words::Type *>(array + offset);
    if constexpr (ONCE && sizeof(Pack) == 16)
      reinterpret_cast<uint4 &>(words.of[i]) = __ldcs(reinterpret_cast<const uint4 *>(from));
    else
      words.of[i] = *from;
  }
  return words;
}

// Written data should not evict data from the cache that is about to be read again.
DEVICE void store(Bits *to, const Pack &out) {
  if constexpr ((HOW == BATCHNORM_STREAMED || HOW == BATCHNORM_SWEPT) && sizeof(Pack) == 16)
    __stcs(reinterpret_cast<uint4 *>(to), reinterpret_cast<const uint4 &>(out));
  else if constexpr (sizeof(Pack) == 16)
    store_16_bytes(to, reinterpret_cast<const uint4 &>(out));
  else
    *reinterpret_cast<Pack *>(to) = out;
}

DEVICE Acc parameter(const void *array, int channel) { return static_cast<const Parameter *>(array)[channel]; }
DEVICE Acc rounded(double value) {
  if constexpr (sizeof(Acc) == sizeof(float)) return narrowed(value);
  return value;
}
DEVICE void store_parameter(void *array, int channel, double value) {
  if (array) static_cast<Parameter *>(array)[channel] = rounded(value);
}

// Whether differences need another scale: a float16 element cannot be so large or small.
constexpr bool IS_SCALED = DTYPE != 2;
// With a power for each channel, kernels would have more spills for bfloat16. A constant one leaves a scale of 1e-6 the
// digits of its product with the smallest reciprocal.
DEVICE Power<Acc> power_of(Acc invstd) {
  if constexpr (DTYPE == 3) return {0x1p-24f, 0x1p24f};
  if constexpr (!IS_SCALED) return {1, 1};
  return power_in(invstd);
}
// Whether subnormal elements count. Those of bfloat16 have few digits.
constexpr bool HAS_SUBNORMAL = DTYPE == 0;
DEVICE Acc multiplied(Acc value, Acc power) { return IS_SCALED ? product(value, power) : value; }
// The difference of an element and a number that has been multiplied by the same power.
DEVICE Acc difference_of(Bits element, Acc power, Acc from) {
  if constexpr (!IS_SCALED) return to_acc(element) - from;
  return HAS_SUBNORMAL ? multiply_add(to_acc(element), power, -from) : to_acc(element) * power - from;
}

// Where a share is kept: first x, then the other array.
DEVICE Pack *kept(const BatchNormParams &p, int array) {
  // Bulk copies to less aligned places are slower: a gradient of 64x256x56x56 took 176 us with an alignment
  // of 16 bytes instead of 163.
  extern __shared__ __align__(128) uint4 shared[];
  return reinterpret_cast<Pack *>(shared) + ((BY_WARPS ? warp() : 0) * ARRAYS + array) * p.slots;
}
DEVICE Packs recall(const BatchNormParams &p, int slot) {
  Packs packs;
  UNROLL
  for (int i = 0; i < ARRAYS; ++i) packs.of[i] = kept(p, i)[slot];
  return packs;
}

// Whether relu has the slope 1 rather than 0 at a number.
DEVICE bool has_slope(Acc value) {
  constexpr bool AT_ZERO = FUSED & BATCHNORM_SLOPE_AT_ZERO, AT_NAN = FUSED & BATCHNORM_SLOPE_AT_NAN;
  if constexpr (AT_NAN) return !(AT_ZERO ? value < 0 : value <= 0);
  return AT_ZERO ? value >= 0 : value > 0;
}

// Reads the result of relu for a vector that is kept without it.
DEVICE Words result_of(const BatchNormParams &p, long long offset) {
  Words words = {};
  if constexpr (HAS_RESULT) words.of[2] = *reinterpret_cast<const Words::Type *>(array_of(p, 2) + offset);
  return words;
}
DEVICE Packs joined(Packs packs, const Words &with) {
  if constexpr (HAS_RESULT) packs.of[2] = ((Packs)with).of[2];
  return packs;
}

// Sets the gradient to zero where relu, whose result is given, has the slope 0, and writes it for the second part.
// `slot` is the place of kept vectors, or negative.
template <bool ONCE = false>
DEVICE Packs settled(const BatchNormParams &p, Packs packs, long long offset, int slot) {
  if constexpr (HAS_RESULT) {
    UNROLL
    for (int i = 0; i < V; ++i)
      if (!has_slope(to_acc(packs.of[2].of[i]))) packs.of[1].of[i] = 0;
    Bits *const to = static_cast<Bits *>(p.masked) + offset;
    if constexpr (ONCE)
      store(to, packs.of[1]);
    else
      *reinterpret_cast<Pack *>(to) = packs.of[1];
    if (slot >= 0) kept(p, 1)[slot] = packs.of[1];
  }
  return packs;
}

// Copies vectors to shared memory, several at a time if they have to pass through registers. `next` advances
// to the next vector and returns its place.
constexpr int BATCH = sizeof(Pack) == 2 ? 4 : 1;
template <class Next>
DEVICE void copy_vectors(const BatchNormParams &p, int count, Next next) {
  int slot = threadIdx.x;
  UNROLL_BY(2)
  for (int left = count; left > 0; left -= BATCH) {
    Packs batch[BATCH];
    UNROLL
    for (int k = 0; k < BATCH; ++k) {
      if (k >= left) break;
      const long long offset = next();
      if constexpr (sizeof(Pack) == 2) {
        batch[k] = load<false, !HAS_RESULT>(p, offset);
      } else {
        UNROLL
        for (int i = 0; i < ARRAYS; ++i) {
          char *const to = reinterpret_cast<char *>(kept(p, i) + slot);
          const char *const from = reinterpret_cast<const char *>(array_of(p, i) + offset);
          if constexpr (sizeof(Pack) == 16)
            copy_16_bytes(to, from);
          else
            copy_bytes<sizeof(Pack)>(to, from);
        }
        slot += THREADS;
      }
    }
    if constexpr (sizeof(Pack) == 2) {
      UNROLL
      for (int k = 0; k < BATCH; ++k) {
        if (k >= left) break;
        UNROLL
        for (int i = 0; i < ARRAYS; ++i) kept(p, i)[slot] = batch[k].of[i];
        slot += THREADS;
      }
    }
  }
  end_copies();
}

// Reads the share of a split if it is to be kept. Each thread reads and waits for the data that it will use itself.
DEVICE void keep(const BatchNormParams &p, const Place &place, int split) {
  if constexpr (KEEPS) {
    Walk walk(p, place, split);
    copy_vectors(p, walk.left, [&] {
      const long long offset = walk.offset;
      walk.advance();
      return offset;
    });
    wait_for_copies<0>();
  }
}

// Calls f(packs, offset, slot) for each vector of a share that belongs to this thread, in the first or the `second` part.
// The slot is negative if vectors are not kept.
template <bool SECOND, class F>
DEVICE void for_each(const BatchNormParams &p, Walk walk, F f) {
  if constexpr (KEEPS) {
    int slot = member();
    if constexpr (HAS_RESULT && !SECOND) {
      for (int left = walk.left; left > 0; left -= DEPTH) {
        Words results[DEPTH];
        long long offsets[DEPTH];
        UNROLL
        for (int i = 0; i < DEPTH; ++i)
          if (i < left) {
            results[i] = result_of(p, offsets[i] = walk.offset);
            walk.advance();
          }
        UNROLL
        for (int i = 0; i < DEPTH; ++i)
          if (i < left) {
            f(joined(recall(p, slot), results[i]), offsets[i], slot);
            slot += TEAM;
          }
      }
    } else {
      UNROLL_BY(BY_WARPS ? 4 : 2)
      for (int left = walk.left; left > 0; --left) {
        f(recall(p, slot), walk.offset, slot);
        walk.advance();
        slot += TEAM;
      }
    }
  } else {
    for (int left = walk.left; left > 0; left -= DEPTH) {
      Words words[DEPTH];
      long long offsets[DEPTH];
      UNROLL
      for (int i = 0; i < DEPTH; ++i)
        if (i < left) {
          words[i] = load<false, SECOND>(p, offsets[i] = walk.offset);
          walk.advance();
        }
      UNROLL
      for (int i = 0; i < DEPTH; ++i)
        if (i < left) f(words[i], offsets[i], -1);
    }
  }
}

// An element of the channel, used as the common origin for the sums of all its blocks.
DEVICE Acc origin(const BatchNormParams &p, int channel) {
  return to_acc(static_cast<const Bits *>(p.x)[ROWS ? channel : channel * p.inner]);
}

// The sums of a channel. In training: of the differences of elements from origin(), and of their squares. For
// the gradient: of the output's gradient, of its products with the differences of x from the mean, and of
// these differences, which give the rounding error of the mean.
constexpr int COUNT = KIND == BATCHNORM_GRADIENT ? 3 : 2;
struct Sums {
  double of[COUNT];
};

// The two numbers per channel that its elements are computed with.
struct Ready {
  double first, second;
};

// A block's shared memory for adding up sums.
constexpr int TABLE = HOW == BATCHNORM_ALONE || WARPS * COLUMNS > THREADS ? WARPS * COLUMNS : THREADS;
using Table = Sums[TABLE];

// Whether sums may be too large for Acc: those of squares in float32 and bfloat16, beyond 1e19. They are computed once
// more, in float64. Those of a gradient are of its products with numbers near 1, which overflow beyond 1e35.
constexpr bool MAY_OVERFLOW = KIND == BATCHNORM_TRAIN && (DTYPE == 0 || DTYPE == 3);
// The largest sum of squares that a thread may have, so that those of a warp can be added up.
constexpr float MOST_SQUARES = 1e36f;
// Squares of a smaller sum may have lost digits. With an epsilon beyond the second number, these do not matter.
constexpr float LEAST_SQUARES = 1e-28f;
constexpr double LEAST_EPSILON = 1e-20;

// Adds up the values of a warp's threads that have the same channels.
template <class T>
DEVICE T sum_of_warp(T value) {
  UNROLL
  for (int apart = 16; apart >= (ROWS ? LANES : 1); apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
  return value;
}

// Sets the gradient to zero where relu has the slope 0. Rounding of the result must be the same as in training.
DEVICE Packs masked(Packs packs, const Acc (&power)[SUMS], const Acc (&from)[SUMS], const Acc (&factor)[SUMS],
                    const Acc (&offset)[SUMS]) {
  UNROLL
  for (int i = 0; i < V; ++i) {
    const int v = i % SUMS;
    const Acc value = multiply_add(difference_of(packs.of[0].of[i], power[v], from[v]), factor[v], offset[v]);
    if (!has_slope(to_acc(from_acc(value)))) packs.of[ARRAYS - 1].of[i] = 0;
  }
  return packs;
}

// What a scaled difference is multiplied by: the scale, and what the power leaves of the reciprocal of the deviation.
DEVICE Acc factor_of(Acc scale, Acc invstd) { return scale * product(invstd, power_of(invstd).inverse); }

// What a thread needs to mask the gradients of its channels; nothing without relu.
template <bool>
struct Mask {
  DEVICE void read(const BatchNormParams &, const Place &) {}
  DEVICE const Packs &apply(const Packs &packs, const Acc (&)[SUMS], const Acc (&)[SUMS]) const { return packs; }
};
template <>
struct Mask<true> {
  Acc factor[SUMS], offset[SUMS];
  DEVICE void read(const BatchNormParams &p, const Place &place) {
    UNROLL
    for (int v = 0; v < SUMS; ++v) {
      const int channel = place.first_channel + v;
      factor[v] = place.has_channels ? factor_of(parameter(p.scale, channel), parameter(p.spread, channel)) : 0;
      offset[v] = place.has_channels ? parameter(p.bias, channel) : 0;
    }
  }
  DEVICE Packs apply(const Packs &packs, const Acc (&power)[SUMS], const Acc (&from)[SUMS]) const {
    return masked(packs, power, from, factor, offset);
  }
};

// A number for sums that may be wider.
template <class Sum>
DEVICE Sum as(Acc value) {
  if constexpr (sizeof(Sum) > sizeof(Acc))
    return widened(value);
  else
    return value;
}

// Adds the elements of a vector to the sums, if they are valid.
template <class Sum>
DEVICE void add(const Packs &packs, const Acc (&power)[SUMS], const Acc (&from)[SUMS], Sum (&sums)[COUNT][SUMS],
                bool counts = true) {
  UNROLL
  for (int i = 0; i < V; ++i) {
    const int v = i % SUMS;
    const Bits x = packs.of[0].of[i];
    if constexpr (KIND == BATCHNORM_GRADIENT) {
      const Sum difference = counts ? as<Sum>(difference_of(x, power[v], from[v])) : 0;
      const Sum g = counts ? as<Sum>(to_acc(packs.of[ARRAYS - 1].of[i])) : 0;
      sums[0][v] = HAS_SUBNORMAL ? plus(sums[0][v], g) : sums[0][v] + g;
      sums[1][v] += g * difference;
      sums[2][v] += difference;
    } else {
      const Sum value = as<Sum>(to_acc(x)), start = as<Sum>(from[v]);
      const Sum difference = !counts ? 0 : HAS_SUBNORMAL ? plus(value, -start) : value - start;
      sums[0][v] = HAS_SUBNORMAL ? plus(sums[0][v], difference) : sums[0][v] + difference;
      sums[1][v] += difference * difference;
    }
  }
}

// Converts sums to another origin; `away` is the distance from it.
DEVICE Sums moved(double count, double first, double second, double away) {
  Sums sums = {};
  sums.of[0] = first + count * away;
  sums.of[1] = second + away * (2 * first + count * away);
  return sums;
}

// The origins of the differences that a thread sums for its channels. For the gradient, they have been multiplied by a
// power of 2, as elements are.
struct Origins {
  Acc of[SUMS], power[SUMS];
  Mask<MASKED> mask;
  Origins() = default;
  DEVICE Origins(const BatchNormParams &p, const Place &place) {
    mask.read(p, place);
    UNROLL
    for (int v = 0; v < SUMS; ++v) {
      const int channel = place.first_channel + v;
      if constexpr (KIND == BATCHNORM_GRADIENT) {
        power[v] = place.has_channels ? power_of(parameter(p.spread, channel)).of : 0;
        of[v] = place.has_channels ? multiplied(parameter(p.mean, channel), power[v]) : 0;
      } else {
        power[v] = 1;
        of[v] = place.has_channels ? origin(p, channel) : 0;
      }
    }
  }
  DEVICE Packs masked(const Packs &packs) const { return mask.apply(packs, power, of); }
};

// Whether a thread's sums of squares can be added to those of the warp's other threads, with all digits.
DEVICE bool fits(const BatchNormParams &p, const Acc (&squares)[SUMS]) {
  bool fit = true;  // not for NaN
  UNROLL
  for (int v = 0; v < SUMS; ++v) fit = fit && squares[v] < MOST_SQUARES;
  if (p.epsilon < LEAST_EPSILON)
    UNROLL
    for (int v = 0; v < SUMS; ++v) fit = sum_of_warp(squares[v]) >= LEAST_SQUARES && fit;
  return fit;
}

// Calls found(v, sums) with the sums of a warp, for each of the thread's channels. `start` holds the thread's
// first element of each channel, or the origin if it has none. `each(f, again)` calls f(packs, counts) for all
// vectors, of which `count` are valid; `again` says whether it has done so before.
template <class Each, class Found>
DEVICE void sum_of_warp(const BatchNormParams &p, Acc (&start)[SUMS], int count, const Origins &from, Each each,
                        Found found) {
  Acc sums[COUNT][SUMS];
  UNROLL
  for (int k = 0; k < COUNT; ++k)
    UNROLL
    for (int v = 0; v < SUMS; ++v) sums[k][v] = 0;
  if constexpr (KIND == BATCHNORM_TRAIN) {
    // A warp sums differences from the mean of its threads' first elements. That is near the channel's mean
    // even if some element is far off, such as one in a corner of a padded image.
    constexpr int FROM = ROWS ? LANES : 1;
    UNROLL
    for (int v = 0; v < SUMS; ++v) start[v] = sum_of_warp(start[v] * ((Acc)FROM / 32));
    each([&](const Packs &packs, bool counts) { add(packs, from.power, start, sums, counts); });
  } else {
    each([&](const Packs &packs, bool counts) { add(from.masked(packs), from.power, from.of, sums, counts); });
  }
  if constexpr (MAY_OVERFLOW)
    if (const bool fit = fits(p, sums[1]); __ballot_sync(~0u, !fit)) {
      double wide[COUNT][SUMS] = {};
      each([&](const Packs &packs, bool counts) { add(from.masked(packs), from.power, from.of, wide, counts); }, true);
      UNROLL
      for (int v = 0; v < SUMS; ++v) {
        Sums all;
        UNROLL
        for (int k = 0; k < COUNT; ++k) all.of[k] = sum_of_warp(wide[k][v]);
        found(v, all);
      }
      return;
    }
  const double number = sum_of_warp((Acc)(count * (V / SUMS)));
  UNROLL
  for (int v = 0; v < SUMS; ++v) {
    Sums all;
    UNROLL
    for (int k = 0; k < COUNT; ++k) all.of[k] = as<double>(sum_of_warp(sums[k][v]));
    if (KIND == BATCHNORM_TRAIN) all = moved(number, all.of[0], all.of[1], as<double>(start[v]) - as<double>(from.of[v]));
    found(v, all);
  }
}

// Calls found(v, sums) with the sums of a warp's part of a share.
template <class Found>
DEVICE void sum_of_share(const BatchNormParams &p, const Walk &walk, const Origins &from, Found found) {
  Acc start[SUMS];
  UNROLL
  for (int v = 0; v < SUMS; ++v) start[v] = from.of[v];
  if (KIND == BATCHNORM_TRAIN && walk.left) {
    const Pack x = (KEEPS ? recall(p, member()) : (Packs)load(p, walk.offset)).of[0];
    UNROLL
    for (int v = 0; v < SUMS; ++v) start[v] = to_acc(x.of[v]);
  }
  const auto each = [&](auto f, bool = false) {
    for_each<false>(p, walk, [&](const Packs &packs, long long offset, int slot) {
      f(settled(p, packs, offset, slot), true);
    });
  };
  sum_of_warp(p, start, walk.left, from, each, found);
}

// The sums of a split for each of its channels, in the first COLUMNS threads.
DEVICE Sums sum_up(const BatchNormParams &p, int group, int split, Table &table) {
  const Place place = place_of(p, group);
  const Origins from(p, place);
  sum_of_share(p, Walk(p, place, split), from, [&](int v, const Sums &sums) {
    if (lane() < (ROWS ? LANES : 1)) table[warp() * COLUMNS + lane() * SUMS + v] = sums;
  });
  __syncthreads();
  Sums total = {};
  if (threadIdx.x < COLUMNS)
    UNROLL
    for (int w = 0; w < WARPS; ++w)
      UNROLL
      for (int k = 0; k < COUNT; ++k) total.of[k] += table[w * COLUMNS + threadIdx.x].of[k];
  return total;
}

// The number that finish() needs for a channel: the origin or, for the gradient, the reciprocal of the deviation.
DEVICE Acc known(const BatchNormParams &p, int channel) {
  return KIND == BATCHNORM_GRADIENT ? parameter(p.spread, channel) : origin(p, channel);
}

// The mean and variance of a channel, for the running averages.
struct Moments {
  double mean, variance;
};

DEVICE void update_averages(const BatchNormParams &p, int channel, const Moments &of) {
  const double count = (double)(p.batch * p.inner);
  const double unbiased = count > 1 ? of.variance * (count / (count - 1)) : of.variance;
  store_parameter(p.new_running[0], channel, parameter(p.running[0], channel) * (1 - p.factor) + of.mean * p.factor);
  store_parameter(p.new_running[1], channel, parameter(p.running[1], channel) * (1 - p.factor) + unbiased * p.factor);
}

// The offset of a channel's elements in training with relu, computed from the rounded statistics.
DEVICE Acc offset_of(Acc power, Acc factor, Acc bias, double mean) {
  return (Acc)multiply_add((widened(rounded(mean)) - mean) * power, (double)factor, (double)bias);
}

// Computes from a channel's sums what its elements need. A thread that `writes` also writes the channel's
// results, and calls average(moments) if there are running averages.
template <class Average>
DEVICE Ready finish(const BatchNormParams &p, int channel, const Sums &sums, Acc known, bool writes, Average average) {
  const double count = (double)(p.batch * p.inner);
  if constexpr (KIND == BATCHNORM_GRADIENT) {
    // Of the scaled differences, as the sums are.
    const double invstd = as<double>(known) * power_of(known).inverse, part = 1 / count, lack = sums.of[2] * part;
    const double by_scale = (sums.of[1] - lack * sums.of[0]) * invstd, slope = by_scale * part * invstd;
    if (writes) {
      store_parameter(p.results[0], channel, by_scale);
      store_parameter(p.results[1], channel, sums.of[0]);
    }
    return {sums.of[0] * part - lack * slope, slope};
  } else {
    const double shift = sums.of[0] / count, difference = (sums.of[1] - sums.of[0] * shift) / count;
    const double variance = difference < 0 ? 0 : difference;  // or NaN
    const double invstd = 1 / sqrt(variance + p.epsilon), mean = as<double>(known) + shift;
    if (writes) {
      store_parameter(p.results[0], channel, mean);
      store_parameter(p.results[1], channel, invstd);
      if constexpr (HAS_OFFSETS && HOW != BATCHNORM_HELD) {  // here, it would take too many registers
        const Acc power = power_of(rounded(invstd)).of, factor = factor_of(parameter(p.scale, channel), rounded(invstd));
        store_parameter(p.offsets, channel, offset_of(power, factor, parameter(p.bias, channel), mean));
      }
      if (p.running[0]) average(Moments{mean, variance});
    }
    return {mean, invstd};
  }
}

DEVICE Ready finish(const BatchNormParams &p, int channel, const Sums &sums, Acc known, bool writes) {
  return finish(p, channel, sums, known, writes, [&](const Moments &of) { update_averages(p, channel, of); });
}

// The parameters of a thread's channels, read before it waits for other blocks.
struct Given {
  Acc mean[SUMS], spread[SUMS], scale[SUMS], bias[SUMS];
  DEVICE Given(const BatchNormParams &p, const Place &place) {
    UNROLL
    for (int v = 0; v < SUMS; ++v) {
      const int channel = place.first_channel + v;
      mean[v] = spread[v] = scale[v] = bias[v] = 0;
      if (!place.has_channels) continue;
      scale[v] = parameter(p.scale, channel);
      if constexpr (KIND != BATCHNORM_GRADIENT || MASKED) bias[v] = parameter(p.bias, channel);
      if constexpr (KIND != BATCHNORM_TRAIN) {
        mean[v] = parameter(p.mean, channel);
        spread[v] = parameter(p.spread, channel);
      }
    }
  }
};

// Computes an element of the result from those of x and of the other array.
struct Formula {
  Acc power[SUMS], from[SUMS], shift[SUMS], factor[SUMS], add[SUMS], offset[SUMS];
  // `ready` holds the results of finish() for the thread's channels.
  DEVICE Formula(const BatchNormParams &p, const Given &given, const Ready *ready) {
    UNROLL
    for (int v = 0; v < SUMS; ++v) {
      double mean = as<double>(given.mean[v]), invstd = as<double>(given.spread[v]);
      if constexpr (KIND == BATCHNORM_INFERENCE) invstd = 1 / sqrt(invstd + p.epsilon);
      if constexpr (KIND == BATCHNORM_TRAIN) {
        mean = ready[v].first;
        invstd = ready[v].second;
      }
      const Power<Acc> scaling = power_of(KIND == BATCHNORM_GRADIENT ? given.spread[v] : rounded(invstd));
      power[v] = scaling.of;
      from[v] = multiplied(rounded(mean), power[v]);
      shift[v] = 0;
      add[v] = given.bias[v];
      if constexpr (KIND == BATCHNORM_GRADIENT) {
        shift[v] = (Acc)ready[v].first;
        add[v] = (Acc)ready[v].second;
        factor[v] = factor_of(given.scale[v], given.spread[v]);
        offset[v] = given.bias[v];
      } else if constexpr (HAS_OFFSETS) {
        factor[v] = factor_of(given.scale[v], rounded(invstd));
        add[v] = offset_of(power[v], factor[v], given.bias[v], mean);
      } else {
        // Keep all digits of the mean, which may be much larger than the deviation.
        if constexpr (KIND == BATCHNORM_TRAIN) shift[v] = (Acc)((mean - widened(rounded(mean))) * power[v]);
        factor[v] = (Acc)(given.scale[v] * (invstd * scaling.inverse));
      }
    }
  }
  // The result of normalization, before its sum with another array.
  DEVICE Acc normalized(Acc difference, int v) const {
    if constexpr (HAS_OFFSETS) return multiply_add(difference, factor[v], add[v]);
    return difference * factor[v] + add[v];
  }
  DEVICE Pack apply(const Packs &packs) const {
    if constexpr (MASKED)
      return computed(masked(packs, power, from, factor, offset));
    else
      return computed(packs);
  }
  // The same from a gradient that has been masked if need be.
  DEVICE Pack computed(const Packs &packs) const {
    // A 16-bit element has fewer digits than the mean.
    constexpr bool IS_SHIFTED = KIND == BATCHNORM_TRAIN && DTYPE < 2 && !HAS_OFFSETS;
    Pack out;
    UNROLL
    for (int i = 0; i < V; ++i) {
      const int v = i % SUMS;
      Acc difference = difference_of(packs.of[0].of[i], power[v], from[v]);
      if constexpr (IS_SHIFTED) difference -= shift[v];
      if constexpr (KIND == BATCHNORM_GRADIENT) {
        // First the power: with a small one, and a large gradient, a product with the scale might be too large.
        const Acc centered = to_acc(packs.of[ARRAYS - 1].of[i]) - shift[v] - difference * add[v];
        if constexpr (HAS_SUBNORMAL)
          out.of[i] = from_acc(product(product(centered, power[v]), factor[v]));
        else
          out.of[i] = from_acc((IS_SCALED ? centered * power[v] : centered) * factor[v]);
      } else {
        Acc value = normalized(difference, v);
        if constexpr (ADDEND) value += to_acc(packs.of[ARRAYS - 1].of[i]);
        out.of[i] = from_acc(RELU && value <= 0 ? 0 : value);  // NaN stays
      }
    }
    return out;
  }
};

// The second part: writes the results.
DEVICE void normalize(const BatchNormParams &p, const Walk &walk, const Formula &formula) {
  Bits *const out = static_cast<Bits *>(p.out);
  for_each<true>(p, walk, [&](const Packs &packs, long long offset, int) { store(out + offset, formula.apply(packs)); });
}

// The part of a group's channels that belongs to this thread.
DEVICE const Ready *own(const Ready *ready) { return ready + (ROWS ? threadIdx.x % LANES * V : 0); }

// The workspace of blocks that share groups.
struct Shared {
  Sums *partial;
  Ready *ready;
  unsigned *counts, *flags, *blocks;
  DEVICE explicit Shared(const BatchNormParams &p) {
    partial = static_cast<Sums *>(p.workspace);
    ready = reinterpret_cast<Ready *>(partial + (long long)p.groups * p.splits * COLUMNS);
    counts = reinterpret_cast<unsigned *>(ready + (long long)p.groups * COLUMNS);
    flags = counts + p.groups;
    blocks = flags + p.groups;
  }
};

// Adds up the sums of a group's blocks. The last block of the group calls it.
DEVICE void finish_group(const BatchNormParams &p, const Shared &space, int group, Table &table) {
  constexpr int PARTS = THREADS / COLUMNS;  // parts of the splits; a thread adds up one of them for a channel
  const int column = threadIdx.x % COLUMNS, part = threadIdx.x / COLUMNS;
  Sums sums = {};
  const double *const all = space.partial[(long long)group * p.splits * COLUMNS].of;
  UNROLL_4
  for (int split = part; split < p.splits; split += PARTS)
    UNROLL
    for (int k = 0; k < COUNT; ++k)
      // Bypass the level 1 cache, which does not see writes of other blocks.
      sums.of[k] += read_from_cache(all + (long long)COUNT * (split * COLUMNS + column) + k);
  table[threadIdx.x] = sums;
  __syncthreads();
  const int channel = group * COLUMNS + (int)threadIdx.x;
  if (threadIdx.x < COLUMNS && channel < p.channels) {
    Sums total = {};
    for (int i = 0; i < PARTS && i < p.splits; ++i)
      UNROLL
      for (int k = 0; k < COUNT; ++k) total.of[k] += table[i * COLUMNS + threadIdx.x].of[k];
    space.ready[channel] = finish(p, channel, total, known(p, channel), true);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicExch(space.flags + group, 1u);
}

DEVICE void add_to_group(const BatchNormParams &p, const Shared &space, int group, int split, Table &table) {
  __shared__ bool is_last;
  keep(p, place_of(p, group), split);
  const Sums sums = sum_up(p, group, split, table);
  if (threadIdx.x < COLUMNS) space.partial[((long long)group * p.splits + split) * COLUMNS + threadIdx.x] = sums;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(space.counts + group, 1u) + 1 == (unsigned)p.splits;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  finish_group(p, space, group, table);
}

DEVICE void normalize_when_ready(const BatchNormParams &p, const Shared &space, int group, int split, Ready *ready) {
  const Place place = place_of(p, group);
  const Given given(p, place);
  if (threadIdx.x == 0) {
    while (!atomicAdd(space.flags + group, 0u)) pause();
    __threadfence();
  }
  __syncthreads();
  if (threadIdx.x < COLUMNS) {
    const double *const from = &space.ready[(long long)group * COLUMNS + threadIdx.x].first;
    ready[threadIdx.x] = {read_from_cache(from), read_from_cache(from + 1)};
  }
  __syncthreads();
  const Formula formula(p, given, own(ready));
  normalize(p, Walk(p, place, split), formula);
}
