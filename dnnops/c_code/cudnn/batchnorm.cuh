// Batch normalization in training, its gradient, and by given statistics.
//
// One launch does both parts of the first two, sums and what goes by them, with blocks of their own for each.  Those of
// the second part come some time after those that they wait for: late enough not to wait, early enough that what the
// first ones have read is still in the level 2 cache.  So memory is read about once.
//
// Macros that c_code/runtime/cudnn/batchnorm_work.cpp sets: DTYPE; KIND, a BatchNormKind; ROWS: whether channels lie
// side by side, and a row has all of them, or else a channel's elements do; V, how many elements move at once; LANES, how
// many threads are side by side along a row; ALONE: whether a block has a group for itself.

using Parameter = Acc;
constexpr int THREADS = BATCHNORM_THREADS, WARPS = THREADS / 32;
constexpr int COLUMNS = ROWS ? LANES * V : 1;  // channels of a group
constexpr int SUMS = ROWS ? V : 1;             // channels of a thread

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

// Calls f(offset) for each vector of the share of a split that belongs to this thread.
template <class F>
DEVICE void for_each(const BatchNormParams &p, const Place &place, int split, F f) {
  if (!place.has_channels) return;
  const long long begin = (long long)split * p.share;
  if constexpr (ROWS) {
    const long long rows = p.batch * p.inner, end = min(begin + p.share, rows);
    long long offset = (begin + threadIdx.x / LANES) * p.channels + place.first_channel;
    UNROLL_4
    for (long long row = begin + threadIdx.x / LANES; row < end; row += THREADS / LANES) {
      f(offset);
      offset += THREADS / LANES * p.channels;
    }
  } else {
    const int across = (int)(p.inner / V);
    const long long end = min(begin + p.share, p.batch * across);
    UNROLL_4
    for (long long unit = begin + threadIdx.x; unit < end; unit += THREADS) {
      const int image = (int)(unit / across), at = (int)(unit - (long long)image * across);
      f((image * p.channels + place.first_channel) * p.inner + (long long)at * V);
    }
  }
}

DEVICE Pack load(const void *array, long long offset) {
  return *reinterpret_cast<const Pack *>(static_cast<const Bits *>(array) + offset);
}
DEVICE Acc parameter(const void *array, int channel) { return static_cast<const Parameter *>(array)[channel]; }
DEVICE void store_parameter(void *array, int channel, double value) {
  if (array) static_cast<Parameter *>(array)[channel] = (Parameter)value;
}

// What sums are of differences to: some element of the channel, or its mean.
DEVICE Acc origin(const BatchNormParams &p, int channel) {
  if (KIND == BATCHNORM_GRADIENT) return parameter(p.mean, channel);
  return to_acc(static_cast<const Bits *>(p.x)[ROWS ? channel : channel * p.inner]);
}

// The two sums of a channel, by threads and then by blocks.
struct Sums {
  double first, second;
};

// Adds up what all threads of a block have of each channel; the result is for the first COLUMNS threads.
DEVICE Sums sum_of_block(const Acc (&first)[SUMS], const Acc (&second)[SUMS]) {
  constexpr int WIDTH = ROWS ? COLUMNS : 1, FROM = ROWS ? LANES : 1;
  __shared__ Acc table[2][WARPS][WIDTH];
  UNROLL
  for (int v = 0; v < SUMS; ++v) {
    Acc a = first[v], b = second[v];
    UNROLL
    for (int apart = 16; apart >= FROM; apart /= 2) {
      a += __shfl_xor_sync(~0u, a, apart);
      b += __shfl_xor_sync(~0u, b, apart);
    }
    if (lane() < FROM) {
      table[0][warp()][lane() * SUMS + v] = a;
      table[1][warp()][lane() * SUMS + v] = b;
    }
  }
  __syncthreads();
  Sums sums = {0, 0};
  if (threadIdx.x < WIDTH)
    UNROLL
    for (int w = 0; w < WARPS; ++w) {
      sums.first += table[0][w][threadIdx.x];
      sums.second += table[1][w][threadIdx.x];
    }
  return sums;
}

DEVICE Sums sum_up(const BatchNormParams &p, int group, int split) {
  const Place place = place_of(p, group);
  Acc from[SUMS], first[SUMS], second[SUMS];
  UNROLL
  for (int v = 0; v < SUMS; ++v) {
    from[v] = place.has_channels ? origin(p, place.first_channel + v) : 0;
    first[v] = second[v] = 0;
  }
  for_each(p, place, split, [&](long long offset) {
    const Pack x = load(p.x, offset);
    if constexpr (KIND == BATCHNORM_GRADIENT) {
      const Pack gradient = load(p.gradient, offset);
      UNROLL
      for (int i = 0; i < V; ++i) {
        const int v = i % SUMS;
        const Acc g = to_acc(gradient.of[i]);
        first[v] += g;
        second[v] += g * (to_acc(x.of[i]) - from[v]);
      }
    } else {
      UNROLL
      for (int i = 0; i < V; ++i) {
        const int v = i % SUMS;
        const Acc difference = to_acc(x.of[i]) - from[v];
        first[v] += difference;
        second[v] += difference * difference;
      }
    }
  });
  return sum_of_block(first, second);
}

// From the sums of a channel, what its elements are normalized by; also writes what the Op gives of the channel.
DEVICE Sums finish(const BatchNormParams &p, int channel, Sums sums) {
  const double count = (double)(p.batch * p.inner);
  if constexpr (KIND == BATCHNORM_GRADIENT) {
    const double invstd = parameter(p.spread, channel), scale = parameter(p.scale, channel);
    store_parameter(p.results[0], channel, sums.second * invstd);
    store_parameter(p.results[1], channel, sums.first);
    return {sums.first / count, sums.second * invstd * invstd / count};
  } else {
    const double shift = sums.first / count, difference = (sums.second - sums.first * shift) / count;
    const double variance = difference < 0 ? 0 : difference;  // or NaN
    const double invstd = 1 / sqrt(variance + p.epsilon), mean = (double)origin(p, channel) + shift;
    store_parameter(p.results[0], channel, mean);
    store_parameter(p.results[1], channel, invstd);
    if (p.running[0]) {
      const double unbiased = count > 1 ? variance * (count / (count - 1)) : variance;
      store_parameter(p.new_running[0], channel, parameter(p.running[0], channel) * (1 - p.factor) + mean * p.factor);
      store_parameter(p.new_running[1], channel,
                      parameter(p.running[1], channel) * (1 - p.factor) + unbiased * p.factor);
    }
    return {mean, invstd};
  }
}

// The second part: `ready` has what finish() gave for the group's channels.
DEVICE void normalize(const BatchNormParams &p, int group, int split, const Sums *ready) {
  const Place place = place_of(p, group);
  Acc from[SUMS], shift[SUMS], factor[SUMS], add[SUMS];
  UNROLL
  for (int v = 0; v < SUMS; ++v) {
    const int channel = place.first_channel + v;
    from[v] = shift[v] = factor[v] = add[v] = 0;
    if (!place.has_channels) continue;
    if constexpr (KIND == BATCHNORM_INFERENCE) {
      from[v] = parameter(p.mean, channel);
      factor[v] = (Acc)(parameter(p.scale, channel) / sqrt((double)parameter(p.spread, channel) + p.epsilon));
      add[v] = parameter(p.bias, channel);
    } else {
      const Sums of = ready[ROWS ? threadIdx.x % LANES * V + v : 0];
      if constexpr (KIND == BATCHNORM_GRADIENT) {
        from[v] = parameter(p.mean, channel);
        shift[v] = (Acc)of.first;
        add[v] = (Acc)of.second;
        factor[v] = parameter(p.scale, channel) * parameter(p.spread, channel);
      } else {
        // With all digits of the mean, which may be many times the deviation.
        from[v] = (Acc)of.first;
        shift[v] = (Acc)(of.first - from[v]);
        factor[v] = (Acc)(parameter(p.scale, channel) * of.second);
        add[v] = parameter(p.bias, channel);
      }
    }
  }
  for_each(p, place, split, [&](long long offset) {
    const Pack x = load(p.x, offset);
    Pack out;
    if constexpr (KIND == BATCHNORM_GRADIENT) {
      const Pack gradient = load(p.gradient, offset);
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
    *reinterpret_cast<Pack *>(static_cast<Bits *>(p.out) + offset) = out;
  });
}

// The workspace of blocks that share groups.
struct Shared {
  Sums *partial, *ready;
  unsigned *counts, *flags, *blocks;
  DEVICE explicit Shared(const BatchNormParams &p) {
    partial = static_cast<Sums *>(p.workspace);
    ready = partial + (long long)p.groups * p.splits * COLUMNS;
    counts = reinterpret_cast<unsigned *>(ready + (long long)p.groups * COLUMNS);
    flags = counts + p.groups;
    blocks = flags + p.groups;
  }
};

// Adds up what the blocks of a group have found: the last of them does it.
DEVICE void finish_group(const BatchNormParams &p, const Shared &space, int group) {
  constexpr int PARTS = THREADS / COLUMNS;  // of the splits, each of which a thread adds up for a channel
  __shared__ Sums table[THREADS];
  const int column = threadIdx.x % COLUMNS, part = threadIdx.x / COLUMNS;
  Sums sums = {0, 0};
  const double *const all = reinterpret_cast<const double *>(space.partial + (long long)group * p.splits * COLUMNS);
  UNROLL_4
  for (int split = part; split < p.splits; split += PARTS) {
    // Past the level 1 cache, which other blocks do not write to.
    sums.first += __ldcg(all + 2 * (split * COLUMNS + column));
    sums.second += __ldcg(all + 2 * (split * COLUMNS + column) + 1);
  }
  table[threadIdx.x] = sums;
  __syncthreads();
  const int channel = group * COLUMNS + (int)threadIdx.x;
  if (threadIdx.x < COLUMNS && channel < p.channels) {
    Sums total = {0, 0};
    for (int i = 0; i < PARTS && i < p.splits; ++i) {
      total.first += table[i * COLUMNS + threadIdx.x].first;
      total.second += table[i * COLUMNS + threadIdx.x].second;
    }
    space.ready[channel] = finish(p, channel, total);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicExch(space.flags + group, 1u);
}

DEVICE void add_to_group(const BatchNormParams &p, const Shared &space, int group, int split) {
  __shared__ bool is_last;
  const Sums sums = sum_up(p, group, split);
  if (threadIdx.x < COLUMNS) space.partial[((long long)group * p.splits + split) * COLUMNS + threadIdx.x] = sums;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(space.counts + group, 1u) + 1 == (unsigned)p.splits;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  finish_group(p, space, group);
}

DEVICE void normalize_when_ready(const BatchNormParams &p, const Shared &space, int group, int split) {
  __shared__ Sums ready[COLUMNS];
  if (threadIdx.x == 0)
    while (!atomicAdd(space.flags + group, 0u)) pause();
  __syncthreads();
  if (threadIdx.x < COLUMNS) {
    const double *const from = reinterpret_cast<const double *>(space.ready + group * COLUMNS + threadIdx.x);
    ready[threadIdx.x] = {__ldcg(from), __ldcg(from + 1)};
  }
  __syncthreads();
  normalize(p, group, split, ready);
}

KERNEL void __launch_bounds__(THREADS) batchnorm(const BatchNormParams p) {
  wait_for_stream();
  if constexpr (KIND == BATCHNORM_INFERENCE) {
    normalize(p, blockIdx.x / p.splits, blockIdx.x % p.splits, nullptr);
  } else if constexpr (ALONE) {
    __shared__ Sums ready[COLUMNS];
    const int group = blockIdx.x, channel = group * COLUMNS + (int)threadIdx.x;
    const Sums sums = sum_up(p, group, 0);
    if (threadIdx.x < COLUMNS && channel < p.channels) ready[threadIdx.x] = finish(p, channel, sums);
    __syncthreads();
    normalize(p, group, 0, ready);
  } else {
    // Numbered as they begin: so whatever a block waits for has begun before.
    __shared__ int number;
    const Shared space(p);
    if (threadIdx.x == 0) number = (int)atomicAdd(space.blocks, 1u);
    __syncthreads();
    const int total = p.groups * p.splits, pair = number - p.lag;
    const bool adds = pair < 0 || (number < 2 * total - p.lag && pair % 2 == 0);
    if (adds) {
      const int work = pair < 0 ? number : p.lag + pair / 2;
      add_to_group(p, space, work / p.splits, work % p.splits);
    } else {
      const int work = number < 2 * total - p.lag ? pair / 2 : number - total;
      normalize_when_ready(p, space, work / p.splits, work % p.splits);
    }
  }
}
