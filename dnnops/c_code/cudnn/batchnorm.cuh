// Batch normalization in training, its gradient, and by given statistics.
//
// The first two are sums, and then what goes by them.  There are six ways to do both parts by one launch, so that
// memory is read about once:
//   ALONE: a block has a group of channels for itself, and keeps it in shared memory.
//   KEPT: several blocks share a group, and each keeps what it has read in shared memory, until all have read.  All
//     blocks of a launch run at once (it is a cooperative one), and take one share after the other.
//   BY_WARPS: likewise, but each warp of a block has shares for itself, of a channel whose elements lie together.  While
//     some read, others wait or write.  Shares come by bulk copies.
//   HELD: several blocks share a channel, whose elements lie together, and each warp holds its share in registers until
//     all have read, while the next one comes to shared memory.
//   SWEPT: all blocks go over rows in the order of memory, and add up all channels.  When all have, they go over them in
//     the opposite order: what was read last is still in shared memory, and some more in the level 2 cache.
//   STREAMED: several blocks share a group, and it is too large to keep.  Each part has blocks of its own.  Those of the
//     second part come some time after those that they wait for: late enough not to wait, early enough that what the
//     first ones have read is still in the level 2 cache.
//
// Macros that c_code/runtime/cudnn/batchnorm_work.cpp sets: DTYPE; KIND, a BatchNormKind; HOW, a BatchNormWay; ROWS:
// whether channels lie side by side, and a row has all of them, or else a channel's elements do; V, how many elements
// move at once; LANES, how many threads are side by side along a row (SWEPT is told by its parameters); THREADS of a
// block; BLOCKS, how many run on a multiprocessor at least; BUNDLED, by warps: whether sums are looked for in bundles;
// HOLDS, if held: how many vectors of an array a thread holds; EVEN, whether each warp has a share, and all have
// as many; LINED, whether a share's vectors lie side by side.

using Parameter = Acc;
constexpr int WARPS = THREADS / 32;
constexpr int COLUMNS = ROWS ? LANES * V : 1;  // channels of a group
constexpr int SUMS = ROWS ? V : 1;             // channels of a thread

constexpr int ARRAYS = KIND == BATCHNORM_GRADIENT ? 2 : 1;  // that are read

// Whether each warp has shares for itself.
constexpr bool BY_WARPS = HOW == BATCHNORM_BY_WARPS || HOW == BATCHNORM_HELD;
constexpr bool KEEPS = HOW == BATCHNORM_ALONE || HOW == BATCHNORM_KEPT || BY_WARPS;
// Loads from memory that are under way together.  More of them would take more registers than there are.
constexpr int DEPTH = HOW != BATCHNORM_SWEPT ? (ROWS ? 4 : 8) / ARRAYS : ARRAYS > 1 && SUMS > 4 ? 2 : 4;

struct alignas(V * sizeof(Bits)) Pack {
  Bits of[V];
};

DEVICE int lane() { return threadIdx.x % 32; }
DEVICE int warp() { return threadIdx.x / 32; }

// Threads that have shares for themselves, and a thread's number among them.
constexpr int TEAM = BY_WARPS ? 32 : THREADS;
DEVICE int member() { return BY_WARPS ? lane() : (int)threadIdx.x; }

struct Place {
  int first_channel;  // of the thread
  bool has_channels;
};

DEVICE Place place_of(const BatchNormParams &p, int group) {
  const int channel = ROWS ? group * COLUMNS + threadIdx.x % LANES * V : group;
  return {channel, channel < p.channels};
}

// The share of a split: so many vectors of a channel, or rows, from one on.
struct Share {
  long long begin;
  int size;
  DEVICE Share(const BatchNormParams &p, int split) {
    if (BY_WARPS && p.pieces > 1) {  // of an image
      const int across = (int)(p.inner / V), image = split / p.pieces, at = (split - image * p.pieces) * p.share;
      begin = (long long)image * across + at;
      size = min(p.share, across - at);
    } else {
      begin = (long long)split * p.share;
      size = (int)min((long long)p.share, p.batch * (ROWS ? p.inner : p.inner / V) - begin);
    }
  }
};

// Where the vectors of a split's share are that belong to this thread: one after the other.
struct Walk {
  long long offset = 0, step = 0, wrap = 0;
  int left = 0, at = 0, across = 0, step_at = 0;  // of a channel's elements: the place within an image, in vectors

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

// A vector of each array.
struct Packs {
  Pack of[ARRAYS];
};

// The same as it is loaded and held: single elements of 16 bits would take a register each.
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
  Type of[ARRAYS];
  DEVICE operator Packs() const {
    Packs packs;
    UNROLL
    for (int i = 0; i < ARRAYS; ++i) packs.of[i] = reinterpret_cast<const Pack &>(of[i]);
    return packs;
  }
};

DEVICE const Bits *array_of(const BatchNormParams &p, int number) {
  return static_cast<const Bits *>(number ? p.gradient : p.x);
}

// What is read `once` isn't to drive other things out of the cache.
template <bool ONCE = false>
DEVICE Words load(const BatchNormParams &p, long long offset) {
  Words words;
  UNROLL
  for (int i = 0; i < ARRAYS; ++i) {
    const auto *const from = reinterpret_cast<const Words::Type *>(array_of(p, i) + offset);
    if constexpr (ONCE && sizeof(Pack) == 16)
      reinterpret_cast<uint4 &>(words.of[i]) = __ldcs(reinterpret_cast<const uint4 *>(from));
    else
      words.of[i] = *from;
  }
  return words;
}

// What is written isn't to drive out of the cache what is about to be read again.
DEVICE void store(Bits *to, const Pack &out) {
  if constexpr ((HOW == BATCHNORM_STREAMED || HOW == BATCHNORM_SWEPT) && sizeof(Pack) == 16)
    __stcs(reinterpret_cast<uint4 *>(to), reinterpret_cast<const uint4 &>(out));
  else if constexpr (sizeof(Pack) == 16)
    store_16_bytes(to, reinterpret_cast<const uint4 &>(out));
  else
    *reinterpret_cast<Pack *>(to) = out;
}

DEVICE Acc parameter(const void *array, int channel) { return static_cast<const Parameter *>(array)[channel]; }
DEVICE void store_parameter(void *array, int channel, double value) {
  if (array) static_cast<Parameter *>(array)[channel] = (Parameter)value;
}

// Where a share is kept: of x, and then of the gradient.
DEVICE Pack *kept(const BatchNormParams &p, int array) {
  // Bulk copies take longer to other places: a gradient of 64x256x56x56 took 176 us at a multiple of 16 bytes, not 163.
  extern __shared__ __align__(128) uint4 shared[];
  return reinterpret_cast<Pack *>(shared) + ((BY_WARPS ? warp() : 0) * ARRAYS + array) * p.slots;
}
DEVICE Packs recall(const BatchNormParams &p, int slot) {
  Packs packs;
  UNROLL
  for (int i = 0; i < ARRAYS; ++i) packs.of[i] = kept(p, i)[slot];
  return packs;
}

// Copies vectors to shared memory, some at a time if they have to go by way of registers.  `next` goes on to another
// one, which it gives the place of.
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
        batch[k] = load(p, offset);
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

// Reads the share of a split, if it is to be kept.  Each thread reads and waits for what it is going to use itself.
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

// Calls f(packs, offset) for each vector of a share that belongs to this thread.
template <class F>
DEVICE void for_each(const BatchNormParams &p, Walk walk, F f) {
  if constexpr (KEEPS) {
    int slot = member();
    UNROLL_BY(BY_WARPS ? 4 : 2)
    for (int left = walk.left; left > 0; --left) {
      f(recall(p, slot), walk.offset);
      walk.advance();
      slot += TEAM;
    }
  } else {
    for (int left = walk.left; left > 0; left -= DEPTH) {
      Words words[DEPTH];
      long long offsets[DEPTH];
      UNROLL
      for (int i = 0; i < DEPTH; ++i)
        if (i < left) {
          words[i] = load(p, offsets[i] = walk.offset);
          walk.advance();
        }
      UNROLL
      for (int i = 0; i < DEPTH; ++i)
        if (i < left) f(words[i], offsets[i]);
    }
  }
}

// An element of the channel, which sums of all its blocks are brought to.
DEVICE Acc origin(const BatchNormParams &p, int channel) {
  return to_acc(static_cast<const Bits *>(p.x)[ROWS ? channel : channel * p.inner]);
}

// The sums of a channel.  In training, of what elements differ from origin(), and of its squares.  For the gradient, of
// the output's gradient, of its products with what x differs from the mean, and of that: the mean is a rounded one, and
// what it lacks shows.
constexpr int COUNT = KIND == BATCHNORM_GRADIENT ? 3 : 2;
struct Sums {
  double of[COUNT];
};

// What a channel's elements go by.
struct Ready {
  double first, second;
};

// Shared memory of a block to add up in.
constexpr int TABLE = HOW == BATCHNORM_ALONE || WARPS * COLUMNS > THREADS ? WARPS * COLUMNS : THREADS;
using Table = Sums[TABLE];

// Adds a thread's value to those of the others of its warp that have the same channels.
DEVICE Acc sum_of_warp(Acc value) {
  UNROLL
  for (int apart = 16; apart >= (ROWS ? LANES : 1); apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
  return value;
}

// Adds the elements of a vector to sums, if they count.
DEVICE void add(const Packs &packs, const Acc (&from)[SUMS], Acc (&sums)[COUNT][SUMS], bool counts = true) {
  UNROLL
  for (int i = 0; i < V; ++i) {
    const int v = i % SUMS;
    const Acc difference = counts ? to_acc(packs.of[0].of[i]) - from[v] : 0;
    if constexpr (KIND == BATCHNORM_GRADIENT) {
      const Acc g = counts ? to_acc(packs.of[ARRAYS - 1].of[i]) : 0;
      sums[0][v] += g;
      sums[1][v] += g * difference;
      sums[2][v] += difference;
    } else {
      sums[0][v] += difference;
      sums[1][v] += difference * difference;
    }
  }
}

// The sums of differences to another origin: `away` from there.
DEVICE Sums moved(double count, double first, double second, double away) {
  Sums sums = {};
  sums.of[0] = first + count * away;
  sums.of[1] = second + away * (2 * first + count * away);
  return sums;
}

// What the sums of a thread's channels are of differences to.
struct Origins {
  Acc of[SUMS];
  Origins() = default;
  DEVICE Origins(const BatchNormParams &p, const Place &place) {
    UNROLL
    for (int v = 0; v < SUMS; ++v) {
      const int channel = place.first_channel + v;
      of[v] = !place.has_channels ? 0 : KIND == BATCHNORM_GRADIENT ? parameter(p.mean, channel) : origin(p, channel);
    }
  }
};

// Calls found(v, sums) with the sums of what a warp has, of each of the thread's channels.  `start` has the thread's first
// element of each, or the origin if it has none; `each(f)` calls f(packs, counts) for vectors, of which `count` do.
template <class Each, class Found>
DEVICE void sum_of_warp(Acc (&start)[SUMS], int count, const Origins &from, Each each, Found found) {
  Acc sums[COUNT][SUMS];
  UNROLL
  for (int k = 0; k < COUNT; ++k)
    UNROLL
    for (int v = 0; v < SUMS; ++v) sums[k][v] = 0;
  if constexpr (KIND == BATCHNORM_TRAIN) {
    // A warp's sums are of what elements differ from the mean of its threads' first ones: near the channel's mean, even
    // if some element is far off, such as one in a corner of a padded image.
    constexpr int FROM = ROWS ? LANES : 1;
    UNROLL
    for (int v = 0; v < SUMS; ++v) start[v] = sum_of_warp(start[v]) * ((Acc)FROM / 32);
    each([&](const Packs &packs, bool counts) { add(packs, start, sums, counts); });
    const double all = sum_of_warp((Acc)(count * (V / SUMS)));
    UNROLL
    for (int v = 0; v < SUMS; ++v) {
      const double first = sum_of_warp(sums[0][v]), second = sum_of_warp(sums[1][v]);
      found(v, moved(all, first, second, (double)start[v] - from.of[v]));
    }
  } else {
    each([&](const Packs &packs, bool counts) { add(packs, from.of, sums, counts); });
    UNROLL
    for (int v = 0; v < SUMS; ++v) {
      Sums all;
      UNROLL
      for (int k = 0; k < COUNT; ++k) all.of[k] = sum_of_warp(sums[k][v]);
      found(v, all);
    }
  }
}

// The same of a share.
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
  const auto each = [&](auto f) { for_each(p, walk, [&](const Packs &packs, long long) { f(packs, true); }); };
  sum_of_warp(start, walk.left, from, each, found);
}

// The sums of a split, of each of its channels, for the first COLUMNS threads.
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

// What finish() has to know of a channel: the origin, or for the gradient the reciprocal of the deviation.
DEVICE Acc known(const BatchNormParams &p, int channel) {
  return KIND == BATCHNORM_GRADIENT ? parameter(p.spread, channel) : origin(p, channel);
}

// The mean and the variance of a channel, which running averages go by.
struct Moments {
  double mean, variance;
};

DEVICE void update_averages(const BatchNormParams &p, int channel, const Moments &of) {
  const double count = (double)(p.batch * p.inner);
  const double unbiased = count > 1 ? of.variance * (count / (count - 1)) : of.variance;
  store_parameter(p.new_running[0], channel, parameter(p.running[0], channel) * (1 - p.factor) + of.mean * p.factor);
  store_parameter(p.new_running[1], channel, parameter(p.running[1], channel) * (1 - p.factor) + unbiased * p.factor);
}

// From the sums of a channel, what its elements go by; one that `writes` also writes what the Op gives of the channel, and
// calls average(moments) if there are running averages.
template <class Average>
DEVICE Ready finish(const BatchNormParams &p, int channel, const Sums &sums, Acc known, bool writes, Average average) {
  const double count = (double)(p.batch * p.inner);
  if constexpr (KIND == BATCHNORM_GRADIENT) {
    const double invstd = known, part = 1 / count, lack = sums.of[2] * part;
    const double by_scale = (sums.of[1] - lack * sums.of[0]) * invstd, slope = by_scale * part * invstd;
    if (writes) {
      store_parameter(p.results[0], channel, by_scale);
      store_parameter(p.results[1], channel, sums.of[0]);
    }
    return {sums.of[0] * part - lack * slope, slope};
  } else {
    const double shift = sums.of[0] / count, difference = (sums.of[1] - sums.of[0] * shift) / count;
    const double variance = difference < 0 ? 0 : difference;  // or NaN
    const double invstd = 1 / sqrt(variance + p.epsilon), mean = (double)known + shift;
    if (writes) {
      store_parameter(p.results[0], channel, mean);
      store_parameter(p.results[1], channel, invstd);
      if (p.running[0]) average(Moments{mean, variance});
    }
    return {mean, invstd};
  }
}

DEVICE Ready finish(const BatchNormParams &p, int channel, const Sums &sums, Acc known, bool writes) {
  return finish(p, channel, sums, known, writes, [&](const Moments &of) { update_averages(p, channel, of); });
}

// The parameters that a thread's elements go by, read before it waits for others.
struct Given {
  Acc mean[SUMS], spread[SUMS], scale[SUMS], bias[SUMS];
  DEVICE Given(const BatchNormParams &p, const Place &place) {
    UNROLL
    for (int v = 0; v < SUMS; ++v) {
      const int channel = place.first_channel + v;
      mean[v] = spread[v] = scale[v] = bias[v] = 0;
      if (!place.has_channels) continue;
      scale[v] = parameter(p.scale, channel);
      if constexpr (KIND != BATCHNORM_GRADIENT) bias[v] = parameter(p.bias, channel);
      if constexpr (KIND != BATCHNORM_TRAIN) {
        mean[v] = parameter(p.mean, channel);
        spread[v] = parameter(p.spread, channel);
      }
    }
  }
};

// What makes an element of the result from those of x, and of the gradient.
struct Formula {
  Acc from[SUMS], shift[SUMS], factor[SUMS], add[SUMS];
  // `ready` has what finish() gave for the thread's channels.
  DEVICE Formula(const BatchNormParams &p, const Given &given, const Ready *ready) {
    UNROLL
    for (int v = 0; v < SUMS; ++v) {
      from[v] = given.mean[v];
      shift[v] = 0;
      add[v] = given.bias[v];
      if constexpr (KIND == BATCHNORM_INFERENCE) {
        factor[v] = (Acc)(given.scale[v] / sqrt((double)given.spread[v] + p.epsilon));
      } else if constexpr (KIND == BATCHNORM_GRADIENT) {
        shift[v] = (Acc)ready[v].first;
        add[v] = (Acc)ready[v].second;
        factor[v] = given.scale[v] * given.spread[v];
      } else {
        // With all digits of the mean, which may be many times the deviation.
        from[v] = (Acc)ready[v].first;
        shift[v] = (Acc)(ready[v].first - from[v]);
        factor[v] = (Acc)(given.scale[v] * ready[v].second);
      }
    }
  }
  DEVICE Pack apply(const Packs &packs) const {
    // An element of 16 bits has fewer digits than the mean has.
    constexpr bool IS_SHIFTED = KIND == BATCHNORM_TRAIN && DTYPE < 2;
    Pack out;
    UNROLL
    for (int i = 0; i < V; ++i) {
      const int v = i % SUMS;
      Acc difference = to_acc(packs.of[0].of[i]) - from[v];
      if constexpr (IS_SHIFTED) difference -= shift[v];
      if constexpr (KIND == BATCHNORM_GRADIENT)
        out.of[i] = from_acc((to_acc(packs.of[ARRAYS - 1].of[i]) - shift[v] - difference * add[v]) * factor[v]);
      else
        out.of[i] = from_acc(difference * factor[v] + add[v]);
    }
    return out;
  }
};

// The second part.
DEVICE void normalize(const BatchNormParams &p, const Walk &walk, const Formula &formula) {
  Bits *const out = static_cast<Bits *>(p.out);
  for_each(p, walk, [&](const Packs &packs, long long offset) { store(out + offset, formula.apply(packs)); });
}

// Of a group's channels, those of this thread.
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

// Adds up what the blocks of a group have found: the last of them does it.
DEVICE void finish_group(const BatchNormParams &p, const Shared &space, int group, Table &table) {
  constexpr int PARTS = THREADS / COLUMNS;  // of the splits, each of which a thread adds up for a channel
  const int column = threadIdx.x % COLUMNS, part = threadIdx.x / COLUMNS;
  Sums sums = {};
  const double *const all = space.partial[(long long)group * p.splits * COLUMNS].of;
  UNROLL_4
  for (int split = part; split < p.splits; split += PARTS)
    UNROLL
    for (int k = 0; k < COUNT; ++k)
      // Past the level 1 cache, which other blocks do not write to.
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
