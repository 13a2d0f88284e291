// Batch normalization in training, its gradient, and by given statistics.
//
// The first two are sums, and then what goes by them.  There are four ways to do both parts by one launch, so that
// memory is read about once:
//   ALONE: a block has a group of channels for itself, and keeps it in shared memory.
//   KEPT: several blocks share a group, and each keeps what it has read in shared memory, until all have read.  All
//     blocks of a launch run at once (it is a cooperative one), and take one share after the other.  While a share waits
//     for its group, and is written, the next ones are on their way.
//   SWEPT: all blocks go over rows in the order of memory, and add up all channels.  When all have, they go over them in
//     the opposite order: what was read last is still in shared memory, and some more in the level 2 cache.
//   STREAMED: several blocks share a group, and it is too large to keep.  Each part has blocks of its own.  Those of the
//     second part come some time after those that they wait for: late enough not to wait, early enough that what the
//     first ones have read is still in the level 2 cache.
//
// Macros that c_code/runtime/cudnn/batchnorm_work.cpp sets: DTYPE; KIND, a BatchNormKind; HOW, a BatchNormWay; ROWS:
// whether channels lie side by side, and a row has all of them, or else a channel's elements do; V, how many elements
// move at once; LANES, how many threads are side by side along a row (SWEPT is told by its parameters); THREADS of a
// block; BLOCKS, how many run on a multiprocessor at least; STAGES, shares that a block has room for; AHEAD, how many
// shares it adds up before it waits for the sums of one.

using Parameter = Acc;
constexpr int WARPS = THREADS / 32;
constexpr int COLUMNS = ROWS ? LANES * V : 1;  // channels of a group
constexpr int SUMS = ROWS ? V : 1;             // channels of a thread

constexpr int ARRAYS = KIND == BATCHNORM_GRADIENT ? 2 : 1;  // that are read

constexpr bool KEEPS = HOW == BATCHNORM_ALONE || HOW == BATCHNORM_KEPT;
// Loads from memory that are under way together.
constexpr int DEPTH = (ROWS && HOW != BATCHNORM_SWEPT ? 4 : 8) / ARRAYS;

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

// A vector of each array.
struct Packs {
  Pack of[ARRAYS];
};

DEVICE const Bits *array_of(const BatchNormParams &p, int number) {
  return static_cast<const Bits *>(number ? p.gradient : p.x);
}

// What is read `once` isn't to drive other things out of the cache.
template <bool ONCE = false>
DEVICE Packs load(const BatchNormParams &p, long long offset) {
  Packs packs;
  UNROLL
  for (int i = 0; i < ARRAYS; ++i) {
    const Pack *const from = reinterpret_cast<const Pack *>(array_of(p, i) + offset);
    if constexpr (ONCE && sizeof(Pack) == 16) {
      const uint4 loaded = __ldcs(reinterpret_cast<const uint4 *>(from));
      packs.of[i] = reinterpret_cast<const Pack &>(loaded);
    } else {
      packs.of[i] = *from;
    }
  }
  return packs;
}

// What is written isn't to drive out of the cache what is about to be read again.
DEVICE void store(const BatchNormParams &p, long long offset, const Pack &out) {
  Pack *const to = reinterpret_cast<Pack *>(static_cast<Bits *>(p.out) + offset);
  if constexpr ((HOW == BATCHNORM_STREAMED || HOW == BATCHNORM_SWEPT) && sizeof(Pack) == 16)
    __stcs(reinterpret_cast<uint4 *>(to), reinterpret_cast<const uint4 &>(out));
  else
    *to = out;
}

DEVICE Acc parameter(const void *array, int channel) { return static_cast<const Parameter *>(array)[channel]; }
DEVICE void store_parameter(void *array, int channel, double value) {
  if (array) static_cast<Parameter *>(array)[channel] = (Parameter)value;
}

// Where a block keeps a share: of x, and then of the gradient.
DEVICE Pack *kept(const BatchNormParams &p, int stage, int array) {
  extern __shared__ uint4 shared[];
  return reinterpret_cast<Pack *>(shared) + (stage * ARRAYS + array) * p.slots;
}
DEVICE Packs recall(const BatchNormParams &p, int stage, int slot) {
  Packs packs;
  UNROLL
  for (int i = 0; i < ARRAYS; ++i) packs.of[i] = kept(p, stage, i)[slot];
  return packs;
}

// Copies vectors to shared memory, some at a time if they have to go by way of registers.  `next` goes on to another
// one, which it gives the place of.
constexpr int BATCH = sizeof(Pack) == 2 ? 4 : 1;
template <class Next>
DEVICE void copy_vectors(const BatchNormParams &p, int stage, int count, Next next) {
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
          char *const to = reinterpret_cast<char *>(kept(p, stage, i) + slot);
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
        for (int i = 0; i < ARRAYS; ++i) kept(p, stage, i)[slot] = batch[k].of[i];
        slot += THREADS;
      }
    }
  }
  end_copies();
}

// Begins to read the share of a split.  Each thread reads and waits for what it is going to use itself.
DEVICE void keep(const BatchNormParams &p, const Place &place, int split, int stage = 0) {
  Walk walk(p, place, split);
  copy_vectors(p, stage, walk.left, [&] {
    const long long offset = walk.offset;
    walk.advance();
    return offset;
  });
}

// Calls f(packs, offset) for each vector of the share of a split that belongs to this thread.
template <class F>
DEVICE void for_each(const BatchNormParams &p, const Place &place, int split, int stage, F f) {
  Walk walk(p, place, split);
  if constexpr (KEEPS) {
    int slot = threadIdx.x;
    UNROLL_BY(2)
    for (int left = walk.left; left > 0; --left) {
      f(recall(p, stage, slot), walk.offset);
      walk.advance();
      slot += THREADS;
    }
  } else {
    for (int left = walk.left; left > 0; left -= DEPTH) {
      Packs packs[DEPTH];
      long long offsets[DEPTH];
      UNROLL
      for (int i = 0; i < DEPTH; ++i)
        if (i < left) {
          packs[i] = load(p, offsets[i] = walk.offset);
          walk.advance();
        }
      UNROLL
      for (int i = 0; i < DEPTH; ++i)
        if (i < left) f(packs[i], offsets[i]);
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
constexpr bool IS_LEAN = HOW == BATCHNORM_ALONE || (HOW == BATCHNORM_KEPT && !ROWS);
constexpr int TABLE = IS_LEAN || WARPS * COLUMNS > THREADS ? WARPS * COLUMNS : THREADS;
using Table = Sums[TABLE];

// Adds a thread's value to those of the others of its warp that have the same channels.
DEVICE Acc sum_of_warp(Acc value) {
  UNROLL
  for (int apart = 16; apart >= (ROWS ? LANES : 1); apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
  return value;
}

// This thread's first element of each of its channels; `first` stays if it has none.
DEVICE void first_of(const BatchNormParams &p, const Place &place, int split, int stage, Acc (&first)[SUMS]) {
  const Walk walk(p, place, split);
  if (!walk.left) return;
  const Pack x = (KEEPS ? recall(p, stage, threadIdx.x) : load(p, walk.offset)).of[0];
  UNROLL
  for (int v = 0; v < SUMS; ++v) first[v] = to_acc(x.of[v]);
}

// Adds the elements of a vector to sums.
DEVICE void add(const Packs &packs, const Acc (&from)[SUMS], Acc (&sums)[COUNT][SUMS]) {
  UNROLL
  for (int i = 0; i < V; ++i) {
    const int v = i % SUMS;
    const Acc difference = to_acc(packs.of[0].of[i]) - from[v];
    if constexpr (KIND == BATCHNORM_GRADIENT) {
      const Acc g = to_acc(packs.of[ARRAYS - 1].of[i]);
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

// The sums of a split, of each of its channels, for the first COLUMNS threads.
DEVICE Sums sum_up(const BatchNormParams &p, int group, int split, Table &table, int stage = 0) {
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
  if constexpr (KIND == BATCHNORM_TRAIN) {
    // A warp's sums are of what elements differ from the mean of its threads' first ones: near the channel's mean, even
    // if some element is far off, such as one in a corner of a padded image.
    Acc start[SUMS];
    UNROLL
    for (int v = 0; v < SUMS; ++v) start[v] = from[v];
    first_of(p, place, split, stage, start);
    UNROLL
    for (int v = 0; v < SUMS; ++v) start[v] = sum_of_warp(start[v]) * ((Acc)FROM / 32);
    for_each(p, place, split, stage, [&](const Packs &packs, long long) { add(packs, start, sums); });
    const double count = sum_of_warp((Acc)(Walk(p, place, split).left * (V / SUMS)));
    UNROLL
    for (int v = 0; v < SUMS; ++v) {
      const double first = sum_of_warp(sums[0][v]), second = sum_of_warp(sums[1][v]);
      const double away = (double)start[v] - from[v];
      if (lane() < FROM)
        table[warp() * COLUMNS + lane() * SUMS + v] = moved(count, first, second, away);
    }
  } else {
    for_each(p, place, split, stage, [&](const Packs &packs, long long) { add(packs, from, sums); });
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

// The second part: `ready` has what finish() gave for the thread's channels.
DEVICE void normalize(const BatchNormParams &p, int group, int split, const Given &given, const Ready *ready,
                      int stage = 0) {
  const Formula formula(p, given, ready);
  for_each(p, place_of(p, group), split, stage,
           [&](const Packs &packs, long long offset) { store(p, offset, formula.apply(packs)); });
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
    space.ready[channel] = finish(p, channel, total, origin(p, channel), true);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicExch(space.flags + group, 1u);
}

// Reads a share for a block that has one at a time.
DEVICE void keep_now(const BatchNormParams &p, int group, int split) {
  if constexpr (KEEPS) {
    keep(p, place_of(p, group), split);
    wait_for_copies<0>();
  }
}

DEVICE void add_to_group(const BatchNormParams &p, const Shared &space, int group, int split, Table &table) {
  __shared__ bool is_last;
  keep_now(p, group, split);
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
  normalize(p, group, split, given, own(ready));
}

// A share of a channel, on its way through a block.
struct Piece {
  int channel, split, stage;
  Acc from;  // which its channel's sums are of differences to
  DEVICE Piece(const BatchNormParams &p, int turn)
      : channel((int)((blockIdx.x + turn * gridDim.x) / (unsigned)p.splits)),
        split((int)((blockIdx.x + turn * gridDim.x) % (unsigned)p.splits)),
        stage(turn % STAGES),
        from(0) {}
};

// Sums that other blocks look for.  They are there as soon as they aren't what the workspace is filled with before, a NaN
// which sums never are: no counts are needed, and no fence, which would wait for what the thread has written before.
DEVICE double read_when_there(const double *from) {
  for (;;) {
    const double value = read_relaxed(from);
    if (__double2hiint(value) != -1) return value;
    pause();
  }
}
DEVICE void publish(double *to, double value) {
  write_relaxed(to, value == value ? value : __hiloint2double(0x7ff80000, 0));
}

// The first part, of a piece that has come.  Others may write to x as soon as this block has added its part, which
// depends on what it has read.
DEVICE void add_piece(const BatchNormParams &p, Sums *partial, Piece &piece, Table &table) {
  piece.from = origin(p, piece.channel);
  const Sums own = sum_up(p, piece.channel, piece.split, table, piece.stage);
  if (threadIdx.x == 0)
    UNROLL
    for (int k = 0; k < COUNT; ++k) publish(partial[(long long)piece.channel * p.splits + piece.split].of + k, own.of[k]);
}

// The second part.  There is little to add up, and each block does it for itself, which takes less time than to wait for
// another one.
DEVICE void normalize_piece(const BatchNormParams &p, const Sums *partial, const Piece &piece, Ready &ready) {
  const Given given(p, place_of(p, piece.channel));
  partial += (long long)piece.channel * p.splits;
  Sums sums = {};
  if (warp() == 0)
    for (int i = lane(); i < p.splits; i += 32)
      UNROLL
      for (int k = 0; k < COUNT; ++k) sums.of[k] += read_when_there(partial[i].of + k);
  UNROLL
  for (int apart = 16; apart > 0; apart /= 2)
    UNROLL
    for (int k = 0; k < COUNT; ++k) sums.of[k] += __shfl_xor_sync(~0u, sums.of[k], apart);
  if (threadIdx.x == 0) ready = finish(p, piece.channel, sums, piece.from, piece.split == 0);
  __syncthreads();
  normalize(p, piece.channel, piece.split, given, &ready, piece.stage);
}

// Shares of channels, numbered channel by channel: a block has those of its own number, of this plus the number of
// blocks, and so on.  It adds up its share `turn` when it has normalized those before `turn - AHEAD`.
//
// No block waits for ever.  All run at once.  Suppose that all shares of earlier channels get added up, and look at one
// with the number n.  Its block comes to it, unless it waits for a channel of one of its own earlier shares, whose
// numbers are at most n - gridDim.x, and less than those of n's channel since a channel has no more shares than there
// are blocks.  So this one gets added up as well, and so do all, one channel after the other.
//
// A stage is read into again by the threads that have used it, each what it has used: nobody else has to be asked.  A
// table is written to again when everybody has come by the barrier of the other one, and so has thread 0, which reads
// it; likewise what thread 0 has made ready for all.
DEVICE void normalize_channels(const BatchNormParams &p, Table (&tables)[2], Ready (&ready)[2]) {
  constexpr int FLYING = STAGES - 1 - AHEAD;  // shares on their way while one is added up
  static_assert(AHEAD >= 0 && AHEAD < 2 && FLYING >= 0);
  Sums *const partial = static_cast<Sums *>(p.workspace);
  const int total = p.groups * p.splits;
  const int turns = (int)blockIdx.x < total ? (total - 1 - (int)blockIdx.x) / (int)gridDim.x + 1 : 0;
  const auto fetch = [&](int turn) {
    if (turn < turns) {
      const Piece piece(p, turn);
      keep(p, place_of(p, piece.channel), piece.split, piece.stage);
    } else {
      end_copies();  // of none: they are counted
    }
  };
  for (int turn = 0; turn < FLYING; ++turn) fetch(turn);
  Acc earlier = 0;  // AHEAD ones' `from`
  for (int turn = 0; turn < turns + AHEAD; ++turn) {
    fetch(turn + FLYING);
    wait_for_copies<FLYING>();
    Acc from = 0;
    if (turn < turns) {
      Piece piece(p, turn);
      add_piece(p, partial, piece, tables[turn % 2]);
      from = piece.from;
    }
    if (turn >= AHEAD) {
      Piece piece(p, turn - AHEAD);
      piece.from = AHEAD ? earlier : from;
      normalize_piece(p, partial, piece, ready[turn % 2]);
    }
    earlier = from;
  }
}

// The vectors of a thread in the order of memory, if blocks go over rows.
struct Sweep {
  long long offset = 0, step = 0;
  int count = 0, first_channel, mine, kept_from;

  DEVICE Sweep(const BatchNormParams &p, int group, int split) {
    const int across = p.lanes, at_once = THREADS / across;
    mine = (int)threadIdx.x / across;
    first_channel = (group * across + (int)threadIdx.x % across) * V;
    const long long begin = (long long)split * p.share, row = begin + mine, end = min(p.batch, begin + p.reach);
    step = p.stride * p.channels;
    offset = row * p.channels + first_channel;
    if (has_channels(p) && mine < at_once && row < end) count = (int)((end - row + p.stride - 1) / p.stride);
    kept_from = max(0, count - p.kept);
  }
  DEVICE bool has_channels(const BatchNormParams &p) const { return first_channel < p.channels; }
  DEVICE long long at(int number) const { return offset + number * step; }
  // Calls f(packs, offset) for vectors from `begin` up to `end`, or backwards.
  template <bool ONCE, bool BACKWARDS, class F>
  DEVICE void go(const BatchNormParams &p, int begin, int end, F f) const {
    for (int done = 0, count = end - begin; done < count; done += DEPTH) {
      Packs packs[DEPTH];
      const auto number = [&](int i) { return BACKWARDS ? end - 1 - done - i : begin + done + i; };
      UNROLL
      for (int i = 0; i < DEPTH; ++i)
        if (done + i < count) packs[i] = load<ONCE>(p, at(number(i)));
      UNROLL
      for (int i = 0; i < DEPTH; ++i)
        if (done + i < count) f(packs[i], at(number(i)));
    }
  }
};

// The mean of two of a thread's first four elements, without the largest and the smallest one: near the channel's mean,
// even if one of them is far off.
DEVICE void typical(const BatchNormParams &p, const Sweep &sweep, Acc (&start)[SUMS]) {
  Packs some[4];
  UNROLL
  for (int i = 0; i < 4; ++i) some[i] = load(p, sweep.at(min(i, sweep.count - 1)));
  UNROLL
  for (int v = 0; v < SUMS; ++v) {
    const Acc a = to_acc(some[0].of[0].of[v]), b = to_acc(some[1].of[0].of[v]);
    const Acc c = to_acc(some[2].of[0].of[v]), d = to_acc(some[3].of[0].of[v]);
    start[v] = (max(min(a, b), min(c, d)) + min(max(a, b), max(c, d))) / 2;
  }
}

// The workspace of blocks that all have all channels.
struct Swept {
  double *partial;
  Ready *ready;
  unsigned *blocks, *tiles;
  DEVICE explicit Swept(const BatchNormParams &p) {
    partial = static_cast<double *>(p.workspace);
    ready = reinterpret_cast<Ready *>(partial + (long long)COUNT * p.splits * p.channels);
    blocks = reinterpret_cast<unsigned *>(ready + p.channels);
    tiles = blocks + 1;
  }
  DEVICE double *sum(const BatchNormParams &p, int which, int split, int channel) const {
    return partial + ((long long)which * p.splits + split) * p.channels + channel;
  }
};

// Channels of a thread whose sums are added up at a time.
constexpr int PORTION = SUMS < 4 ? SUMS : 4;
union SweptTable {
  double portion[THREADS * PORTION];
  double sums[COUNT][THREADS];
};

// The sums of a block's rows.
DEVICE void add_rows(const BatchNormParams &p, const Swept &space, const Sweep &sweep, int group, int split,
                     double (&table)[THREADS * PORTION]) {
  copy_vectors(p, 0, sweep.count - sweep.kept_from, [&, number = sweep.kept_from]() mutable { return sweep.at(number++); });
  Acc from[SUMS], sums[COUNT][SUMS];
  UNROLL
  for (int v = 0; v < SUMS; ++v) {
    from[v] = 0;
    if (KIND == BATCHNORM_GRADIENT && sweep.has_channels(p)) from[v] = parameter(p.mean, sweep.first_channel + v);
    UNROLL
    for (int k = 0; k < COUNT; ++k) sums[k][v] = 0;
  }
  if (KIND == BATCHNORM_TRAIN && sweep.count) typical(p, sweep, from);
  const auto each = [&](const Packs &packs, long long) { add(packs, from, sums); };
  const int cached_from = max(0, sweep.kept_from - p.cached);
  sweep.go<true, false>(p, 0, cached_from, each);
  sweep.go<false, false>(p, cached_from, sweep.kept_from, each);
  wait_for_copies<0>();
  for (int i = 0; i < sweep.count - sweep.kept_from; ++i) add(recall(p, 0, i * THREADS + (int)threadIdx.x), from, sums);

  const int across = p.lanes, at_once = THREADS / across, width = across * PORTION;
  UNROLL
  for (int v = 0; v < SUMS; v += PORTION)
    UNROLL
    for (int k = 0; k < COUNT; ++k) {
      __syncthreads();
      if (sweep.mine < at_once)
        UNROLL
        for (int i = 0; i < PORTION; ++i) {
          double sum = sums[k][v + i];
          if (KIND == BATCHNORM_TRAIN && sweep.count) {
            const double away = (double)from[v + i] - origin(p, sweep.first_channel + v + i);
            sum = moved(sweep.count, sums[0][v + i], sums[1][v + i], away).of[k];
          }
          table[sweep.mine * width + (int)threadIdx.x % across * PORTION + i] = sum;
        }
      __syncthreads();
      for (int i = threadIdx.x; i < width; i += THREADS) {
        const int channel = (group * across + i / PORTION) * V + v + i % PORTION;
        double total = 0;
        for (int row = 0; row < at_once; ++row) total += table[row * width + i];
        if (channel < p.channels) *space.sum(p, k, split, channel) = total;
      }
    }
}

// Tells others that what the block's threads have written is there.
DEVICE void announce(unsigned *count) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) add_release(count, 1u);
}
DEVICE void wait_until(const unsigned *count, unsigned wanted) {
  if (threadIdx.x == 0)
    while (read_acquire(count) != wanted) pause();
  __syncthreads();
}

// All blocks run at once.  They wait two times: until all have added up their rows, and until those that share the
// channels out among them have added that up.
DEVICE void sweep_rows(const BatchNormParams &p, SweptTable &table) {
  constexpr int TILE = BATCHNORM_TILE, PARTS = THREADS / TILE;
  const Swept space(p);
  // Those with neighboring numbers have one row's groups.
  const int group = blockIdx.x % p.groups, split = blockIdx.x / p.groups;
  const Sweep sweep(p, group, split);
  add_rows(p, space, sweep, group, split, table.portion);
  announce(space.blocks);
  const int tiles = (int)((p.channels + TILE - 1) / TILE);
  if ((int)blockIdx.x < tiles) wait_until(space.blocks, gridDim.x);
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int column = threadIdx.x % TILE, part = threadIdx.x / TILE, channel = tile * TILE + column;
    Sums sums = {};
    if (channel < p.channels) {
      UNROLL_4
      for (int i = part; i < p.splits; i += PARTS)
        UNROLL
        for (int k = 0; k < COUNT; ++k) sums.of[k] += read_from_cache(space.sum(p, k, i, channel));
    }
    UNROLL
    for (int k = 0; k < COUNT; ++k) table.sums[k][threadIdx.x] = sums.of[k];
    __syncthreads();
    if (part == 0 && channel < p.channels) {
      Sums total = {};
      for (int i = 0; i < PARTS; ++i)
        UNROLL
        for (int k = 0; k < COUNT; ++k) total.of[k] += table.sums[k][i * TILE + column];
      const Acc from = KIND == BATCHNORM_TRAIN ? origin(p, channel) : 0;
      space.ready[channel] = finish(p, channel, total, from, true);
    }
    announce(space.tiles);
  }
  const Given given(p, {sweep.first_channel, sweep.has_channels(p)});
  wait_until(space.tiles, tiles);
  Ready ready[SUMS] = {};
  if (sweep.has_channels(p))
    UNROLL
    for (int v = 0; v < SUMS; ++v) {
      const double *const found = &space.ready[sweep.first_channel + v].first;
      ready[v] = {read_from_cache(found), read_from_cache(found + 1)};
    }
  const Formula formula(p, given, ready);
  const auto each = [&](const Packs &packs, long long offset) { store(p, offset, formula.apply(packs)); };
  sweep.go<true, true>(p, 0, sweep.kept_from, each);
  for (int i = sweep.count - sweep.kept_from - 1; i >= 0; --i)
    each(recall(p, 0, i * THREADS + (int)threadIdx.x), sweep.at(sweep.kept_from + i));
}

// The number of what comes next, of all blocks.
DEVICE int next_number(const Shared &space) {
  __shared__ int number;
  __syncthreads();  // the last one has been read, and what else is shared
  if (threadIdx.x == 0) number = (int)atomicAdd(space.blocks, 1u);
  __syncthreads();
  return number;
}

KERNEL void __launch_bounds__(THREADS, BLOCKS) batchnorm(const BatchNormParams p) {
  wait_for_stream();
  if constexpr (HOW == BATCHNORM_BY_GIVEN) {
    const int group = blockIdx.x / p.splits;
    normalize(p, group, blockIdx.x % p.splits, Given(p, place_of(p, group)), nullptr);
  } else if constexpr (HOW == BATCHNORM_SWEPT) {
    __shared__ SweptTable table;
    sweep_rows(p, table);
  } else if constexpr (HOW == BATCHNORM_KEPT && !ROWS) {
    __shared__ Table tables[2];
    __shared__ Ready ready[2];
    normalize_channels(p, tables, ready);
  } else {
    __shared__ Table table;
    __shared__ Ready ready[COLUMNS];
    if constexpr (HOW == BATCHNORM_ALONE) {
      const int group = blockIdx.x, channel = group * COLUMNS + (int)threadIdx.x;
      keep_now(p, group, 0);
      const Sums sums = sum_up(p, group, 0, table);
      if (threadIdx.x < COLUMNS && channel < p.channels) ready[threadIdx.x] = finish(p, channel, sums, origin(p, channel), true);
      const Given given(p, place_of(p, group));
      __syncthreads();
      normalize(p, group, 0, given, own(ready));
    } else if constexpr (HOW == BATCHNORM_KEPT) {
      // Whoever has a number works on it, so a group's blocks wait for each other only.
      const Shared space(p);
      const int total = p.groups * p.splits;
      for (int work = next_number(space); work < total; work = next_number(space)) {
        const int group = work / p.splits, split = work % p.splits;
        add_to_group(p, space, group, split, table);
        normalize_when_ready(p, space, group, split, ready);
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
