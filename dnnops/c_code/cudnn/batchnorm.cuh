// Batch normalization in training, its gradient, and by given statistics.
//
// The first two are sums, and then what goes by them.  There are three ways to do both parts by one launch, so that
// memory is read about once:
//   ALONE: a block has a group of channels for itself, and keeps it in shared memory.
//   KEPT: several blocks share a group, and each keeps what it has read in shared memory, until all have read.  All
//     blocks of a launch run at once (it is a cooperative one), and take one share after the other.
//   STREAMED: several blocks share a group, and it is too large to keep.  Each part has blocks of its own.  Those of the
//     second part come some time after those that they wait for: late enough not to wait, early enough that what the
//     first ones have read is still in the level 2 cache.
//
// Macros that c_code/runtime/cudnn/batchnorm_work.cpp sets: DTYPE; KIND, a BatchNormKind; HOW, a BatchNormWay; ROWS:
// whether channels lie side by side, and a row has all of them, or else a channel's elements do; V, how many elements
// move at once; LANES, how many threads are side by side along a row.

using Parameter = Acc;
constexpr int THREADS = BATCHNORM_THREADS, WARPS = THREADS / 32;
constexpr int COLUMNS = ROWS ? LANES * V : 1;  // channels of a group
constexpr int SUMS = ROWS ? V : 1;             // channels of a thread

constexpr bool KEEPS = HOW == BATCHNORM_ALONE || HOW == BATCHNORM_KEPT;

struct alignas(V * sizeof(Bits)) Pack {
  Bits of[V];
};

DEVICE int lane() { return threadIdx.x % 32; }
DEVICE int warp() { return threadIdx.x / 32; }

struct Place {
  int first_channel;  // of the thread
  bool has_channels;
};

DEVICE Place place_of(const BatchNormParams &p, int group) {
  const int channel = ROWS ? group * COLUMNS + threadIdx.x % LANES * V : group;
  return {channel, channel < p.channels};
}

// Where the vectors of a split's share are that belong to this thread: one after the other.
struct Walk {
  long long offset = 0, step = 0, wrap = 0;
  int left = 0, at = 0, across = 0, step_at = 0;  // of a channel's elements: the place within an image, in vectors

  DEVICE Walk(const BatchNormParams &p, const Place &place, int split) {
    constexpr int WIDTH = ROWS ? LANES : 1;  // threads side by side take one unit
    const long long begin = (long long)split * p.share;
    across = ROWS ? 1 : (int)(p.inner / V);
    const int size = (int)min((long long)p.share, p.batch * (ROWS ? p.inner : across) - begin);
    const int mine = (int)threadIdx.x / WIDTH;
    if (!place.has_channels || mine >= size) return;
    left = (size - mine + THREADS / WIDTH - 1) / (THREADS / WIDTH);
    if constexpr (ROWS) {
      offset = (begin + mine) * p.channels + place.first_channel;
      step = THREADS / LANES * p.channels;
    } else {
      const long long image = (begin + mine) / across;
      at = (int)(begin + mine - image * across);
      offset = (image * p.channels + place.first_channel) * p.inner + (long long)at * V;
      step_at = THREADS % across;
      step = THREADS / across * (p.channels * p.inner) + step_at * V;
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

// Calls f(offset, slot) for each vector of the share of a split that belongs to this thread; slots are those of shared
// memory.
template <class F>
DEVICE void for_each(const BatchNormParams &p, const Place &place, int split, F f) {
  Walk walk(p, place, split);
  int slot = threadIdx.x;
  // Loads from memory are to be under way together.
  UNROLL_BY(KEEPS || SUMS > 4 ? 2 : 4)
  for (int left = walk.left; left > 0; --left) {
    f(walk.offset, slot);
    walk.advance();
    slot += THREADS;
  }
}

DEVICE Pack load(const void *array, long long offset) {
  return *reinterpret_cast<const Pack *>(static_cast<const Bits *>(array) + offset);
}
DEVICE Acc parameter(const void *array, int channel) { return static_cast<const Parameter *>(array)[channel]; }
DEVICE void store_parameter(void *array, int channel, double value) {
  if (array) static_cast<Parameter *>(array)[channel] = (Parameter)value;
}

// Where a block keeps its share: of x, and then of the gradient.
DEVICE Pack *kept(const BatchNormParams &p, int array) {
  extern __shared__ uint4 shared[];
  return reinterpret_cast<Pack *>(shared) + array * p.slots;
}

DEVICE Pack fetch(const BatchNormParams &p, const void *array, int number, long long offset, int slot) {
  if constexpr (KEEPS)
    return kept(p, number)[slot];
  else
    return load(array, offset);
}

// Reads the share of a split.  Each thread reads and waits for what it is going to use itself.
DEVICE void keep(const BatchNormParams &p, const Place &place, int split) {
  for_each(p, place, split, [&](long long offset, int slot) {
    UNROLL
    for (int i = 0; i < (KIND == BATCHNORM_GRADIENT ? 2 : 1); ++i) {
      const Bits *const from = static_cast<const Bits *>(i ? p.gradient : p.x) + offset;
      if constexpr (sizeof(Pack) == 16)
        copy_16_bytes(reinterpret_cast<char *>(kept(p, i) + slot), reinterpret_cast<const char *>(from));
      else
        kept(p, i)[slot] = *reinterpret_cast<const Pack *>(from);
    }
  });
  if constexpr (sizeof(Pack) == 16) {
    end_copies();
    wait_for_copies<0>();
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
constexpr int TABLE = WARPS * COLUMNS > THREADS ? WARPS * COLUMNS : THREADS;
using Table = Sums[TABLE];

// Adds a thread's value to those of the others of its warp that have the same channels.
DEVICE Acc sum_of_warp(Acc value) {
  UNROLL
  for (int apart = 16; apart >= (ROWS ? LANES : 1); apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
  return value;
}

// This thread's first element of each of its channels; `first` stays if it has none.
DEVICE void first_of(const BatchNormParams &p, const Place &place, int split, Acc (&first)[SUMS]) {
  const Walk walk(p, place, split);
  if (!walk.left) return;
  const Pack x = fetch(p, p.x, 0, walk.offset, threadIdx.x);
  UNROLL
  for (int v = 0; v < SUMS; ++v) first[v] = to_acc(x.of[v]);
}

// The sums of a split, of each of its channels, for the first COLUMNS threads.
DEVICE Sums sum_up(const BatchNormParams &p, int group, int split, Table &table) {
  constexpr int FROM = ROWS ? LANES : 1;
  const Place place = place_of(p, group);
  Acc from[SUMS], sums[COUNT][SUMS];
  UNROLL
  for (int v = 0; v < SUMS; ++v) {
    const int channel = place.first_channel + v;
    from[v] = !place.has_channels ? 0 : KIND == BATCHNORM_GRADIENT ? parameter(p.mean, channel) : origin(p, channel);
    UNROLL
    for (int k = 0; k < COUNT; ++k) sums[k][v] = 0;
  }
  if constexpr (KEEPS) keep(p, place, split);
  if constexpr (KIND == BATCHNORM_TRAIN) {
    // A warp's sums are of what elements differ from the mean of its threads' first ones: near the channel's mean, even
    // if some element is far off, such as one in a corner of a padded image.
    Acc start[SUMS];
    UNROLL
    for (int v = 0; v < SUMS; ++v) start[v] = from[v];
    first_of(p, place, split, start);
    UNROLL
    for (int v = 0; v < SUMS; ++v) start[v] = sum_of_warp(start[v]) * ((Acc)FROM / 32);
    for_each(p, place, split, [&](long long offset, int slot) {
      const Pack x = fetch(p, p.x, 0, offset, slot);
      UNROLL
      for (int i = 0; i < V; ++i) {
        const int v = i % SUMS;
        const Acc difference = to_acc(x.of[i]) - start[v];
        sums[0][v] += difference;
        sums[1][v] += difference * difference;
      }
    });
    const double count = sum_of_warp((Acc)(Walk(p, place, split).left * (V / SUMS)));
    UNROLL
    for (int v = 0; v < SUMS; ++v) {
      const double first = sum_of_warp(sums[0][v]), second = sum_of_warp(sums[1][v]);
      const double away = (double)start[v] - from[v];
      if (lane() < FROM)
        table[warp() * COLUMNS + lane() * SUMS + v] = {first + count * away,
                                                       second + away * (2 * first + count * away)};
    }
  } else {
    for_each(p, place, split, [&](long long offset, int slot) {
      const Pack x = fetch(p, p.x, 0, offset, slot), gradient = fetch(p, p.gradient, 1, offset, slot);
      UNROLL
      for (int i = 0; i < V; ++i) {
        const int v = i % SUMS;
        const Acc g = to_acc(gradient.of[i]), centered = to_acc(x.of[i]) - from[v];
        sums[0][v] += g;
        sums[1][v] += g * centered;
        sums[2][v] += centered;
      }
    });
    UNROLL
    for (int v = 0; v < SUMS; ++v) {
      Sums all;
      UNROLL
      for (int k = 0; k < COUNT; ++k) all.of[k] = sum_of_warp(sums[k][v]);
      if (lane() < FROM) table[warp() * COLUMNS + lane() * SUMS + v] = all;
    }
  }
  __syncthreads();
  Sums total = {};
  if (threadIdx.x < COLUMNS)
    UNROLL
    for (int w = 0; w < WARPS; ++w)
      UNROLL
      for (int k = 0; k < COUNT; ++k) total.of[k] += table[w * COLUMNS + threadIdx.x].of[k];
  return total;
}

// From the sums of a channel, what its elements go by; one that `writes` also writes what the Op gives of the channel.
DEVICE Ready finish(const BatchNormParams &p, int channel, const Sums &sums, Acc from, bool writes) {
  const double count = (double)(p.batch * p.inner);
  if constexpr (KIND == BATCHNORM_GRADIENT) {
    const double invstd = parameter(p.spread, channel), lack = sums.of[2] / count;
    const double by_scale = (sums.of[1] - lack * sums.of[0]) * invstd, slope = by_scale / count * invstd;
    if (writes) {
      store_parameter(p.results[0], channel, by_scale);
      store_parameter(p.results[1], channel, sums.of[0]);
    }
    return {sums.of[0] / count - lack * slope, slope};
  } else {
    const double shift = sums.of[0] / count, difference = (sums.of[1] - sums.of[0] * shift) / count;
    const double variance = difference < 0 ? 0 : difference;  // or NaN
    const double invstd = 1 / sqrt(variance + p.epsilon), mean = (double)from + shift;
    if (writes) {
      store_parameter(p.results[0], channel, mean);
      store_parameter(p.results[1], channel, invstd);
    }
    if (writes && p.running[0]) {
      const double unbiased = count > 1 ? variance * (count / (count - 1)) : variance;
      store_parameter(p.new_running[0], channel, parameter(p.running[0], channel) * (1 - p.factor) + mean * p.factor);
      store_parameter(p.new_running[1], channel,
                      parameter(p.running[1], channel) * (1 - p.factor) + unbiased * p.factor);
    }
    return {mean, invstd};
  }
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

// The second part: `ready` has what finish() gave for the group's channels.
DEVICE void normalize(const BatchNormParams &p, int group, int split, const Given &given, const Ready *ready) {
  const Place place = place_of(p, group);
  Acc from[SUMS], shift[SUMS], factor[SUMS], add[SUMS];
  UNROLL
  for (int v = 0; v < SUMS; ++v) {
    from[v] = given.mean[v];
    shift[v] = 0;
    add[v] = given.bias[v];
    if constexpr (KIND == BATCHNORM_INFERENCE) {
      factor[v] = (Acc)(given.scale[v] / sqrt((double)given.spread[v] + p.epsilon));
    } else {
      const Ready of = ready[ROWS ? threadIdx.x % LANES * V + v : 0];
      if constexpr (KIND == BATCHNORM_GRADIENT) {
        shift[v] = (Acc)of.first;
        add[v] = (Acc)of.second;
        factor[v] = given.scale[v] * given.spread[v];
      } else {
        // With all digits of the mean, which may be many times the deviation.
        from[v] = (Acc)of.first;
        shift[v] = (Acc)(of.first - from[v]);
        factor[v] = (Acc)(given.scale[v] * of.second);
      }
    }
  }
  for_each(p, place, split, [&](long long offset, int slot) {
    const Pack x = fetch(p, p.x, 0, offset, slot);
    Pack out;
    if constexpr (KIND == BATCHNORM_GRADIENT) {
      const Pack gradient = fetch(p, p.gradient, 1, offset, slot);
      UNROLL
      for (int i = 0; i < V; ++i) {
        const int v = i % SUMS;
        const Acc centered = to_acc(x.of[i]) - from[v];
        out.of[i] = from_acc((to_acc(gradient.of[i]) - shift[v] - centered * add[v]) * factor[v]);
      }
    } else {
      UNROLL
      for (int i = 0; i < V; ++i) {
        const int v = i % SUMS;
        out.of[i] = from_acc((to_acc(x.of[i]) - from[v] - shift[v]) * factor[v] + add[v]);
      }
    }
    Pack *const to = reinterpret_cast<Pack *>(static_cast<Bits *>(p.out) + offset);
    // What is written isn't to drive out of the cache what is about to be read again.
    if constexpr (HOW == BATCHNORM_STREAMED && sizeof(Pack) == 16)
      __stcs(reinterpret_cast<uint4 *>(to), *reinterpret_cast<const uint4 *>(&out));
    else
      *to = out;
  });
}

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
    space.ready[channel] = finish(p, channel, total, origin(p, channel), true);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicExch(space.flags + group, 1u);
}

DEVICE void add_to_group(const BatchNormParams &p, const Shared &space, int group, int split, Table &table) {
  __shared__ bool is_last;
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
  const Given given(p, place_of(p, group));
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
  normalize(p, group, split, given, ready);
}

// Both parts, of a group that is one channel: there is little to add up, and each block does it for itself, which takes
// less time than to wait for another one.
DEVICE void normalize_channel(const BatchNormParams &p, const Shared &space, int channel, int split, Table &table) {
  // Others may write to x as soon as this block has added its part.
  const Acc from = origin(p, channel);
  const Sums own = sum_up(p, channel, split, table);
  const Given given(p, place_of(p, channel));
  Sums *const partial = space.partial + (long long)channel * p.splits;
  if (threadIdx.x == 0) {
    partial[split] = own;
    __threadfence();
    if (atomicAdd(space.counts + channel, 1u) + 1 != (unsigned)p.splits)
      while (atomicAdd(space.counts + channel, 0u) != (unsigned)p.splits) pause();
    __threadfence();
  }
  __syncthreads();
  Sums sums = {};
  for (int i = lane(); i < p.splits; i += 32)
    UNROLL
    for (int k = 0; k < COUNT; ++k) sums.of[k] += read_from_cache(partial[i].of + k);
  UNROLL
  for (int apart = 16; apart > 0; apart /= 2)
    UNROLL
    for (int k = 0; k < COUNT; ++k) sums.of[k] += __shfl_xor_sync(~0u, sums.of[k], apart);
  const Ready ready = finish(p, channel, sums, from, split == 0 && threadIdx.x == 0);
  normalize(p, channel, split, given, &ready);
}

// The number of what comes next, of all blocks.
DEVICE int next_number(const Shared &space) {
  __shared__ int number;
  __syncthreads();  // the last one has been read, and what else is shared
  if (threadIdx.x == 0) number = (int)atomicAdd(space.blocks, 1u);
  __syncthreads();
  return number;
}

KERNEL void __launch_bounds__(THREADS, BATCHNORM_BLOCKS) batchnorm(const BatchNormParams p) {
  wait_for_stream();
  if constexpr (HOW == BATCHNORM_BY_GIVEN) {
    const int group = blockIdx.x / p.splits;
    normalize(p, group, blockIdx.x % p.splits, Given(p, place_of(p, group)), nullptr);
  } else {
    __shared__ Table table;
    __shared__ Ready ready[COLUMNS];
    if constexpr (HOW == BATCHNORM_ALONE) {
      const int group = blockIdx.x, channel = group * COLUMNS + (int)threadIdx.x;
      const Sums sums = sum_up(p, group, 0, table);
      if (threadIdx.x < COLUMNS && channel < p.channels) ready[threadIdx.x] = finish(p, channel, sums, origin(p, channel), true);
      const Given given(p, place_of(p, group));
      __syncthreads();
      normalize(p, group, 0, given, ready);
    } else if constexpr (HOW == BATCHNORM_KEPT) {
      // Whoever has a number works on it, so a group's blocks wait for each other only.
      const Shared space(p);
      const int total = p.groups * p.splits;
      for (int work = next_number(space); work < total; work = next_number(space)) {
        const int group = work / p.splits, split = work % p.splits;
        if constexpr (ROWS) {
          add_to_group(p, space, group, split, table);
          normalize_when_ready(p, space, group, split, ready);
        } else {
          normalize_channel(p, space, group, split, table);
        }
      }
    } else {
      // Numbered as they begin: so whatever a block waits for has begun before.
      const Shared space(p);
      const int number = next_number(space), total = p.groups * p.splits, pair = number - p.lag;
      const bool adds = pair < 0 || (number < 2 * total - p.lag && pair % 2 == 0);
      if (adds) {
        const int work = pair < 0 ? number : p.lag + pair / 2;
        add_to_group(p, space, work / p.splits, work % p.splits, table);
      } else {
        const int work = number < 2 * total - p.lag ? pair / 2 : number - total;
        normalize_when_ready(p, space, work / p.splits, work % p.splits, ready);
      }
    }
  }
}
