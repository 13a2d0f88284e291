// The way SWEPT of batchnorm.cuh: batch normalization of rows by blocks that go over all of them.

// The vectors of a thread in memory order.
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
  // Calls f(packs, offset) for the vectors from `begin` to `end`, or backwards. Some are loaded while others are used.
  // Going forwards is the first part.
  template <bool ONCE, bool BACKWARDS, class F>
  DEVICE void go(const BatchNormParams &p, int begin, int end, F f) const {
    const int count = end - begin;
    const auto place = [&](int number) { return at(BACKWARDS ? end - 1 - number : begin + number); };
    const auto get = [&](int from, Words (&words)[DEPTH]) {
      UNROLL
      for (int i = 0; i < DEPTH; ++i)
        if (from + i < count) words[i] = load<ONCE, BACKWARDS>(p, place(from + i));
    };
    const auto use = [&](int from, const Words (&words)[DEPTH]) {
      UNROLL
      for (int i = 0; i < DEPTH; ++i)
        if (from + i < count) f(words[i], place(from + i));
    };
    Words some[DEPTH], others[DEPTH];
    get(0, some);
    for (int done = 0; done < count; done += 2 * DEPTH) {
      get(done + DEPTH, others);
      use(done, some);
      get(done + 2 * DEPTH, some);
      use(done + DEPTH, others);
    }
  }
};

// The mean of the middle two of a thread's first four elements: near the channel's mean, even if
// one of them is far off.
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

// The workspace of blocks that each process all channels.
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

// The number of a thread's channels whose sums are added up at a time.
constexpr int PORTION = SUMS < 4 ? SUMS : 4;
union SweptTable {
  double portion[THREADS * PORTION];
  double sums[COUNT][THREADS];
  double ready[THREADS * PORTION];
};

// Sums the rows of a block.
DEVICE void add_rows(const BatchNormParams &p, const Swept &space, const Sweep &sweep, int group, int split,
                     double (&table)[THREADS * PORTION]) {
  copy_vectors(p, sweep.count - sweep.kept_from, [&, number = sweep.kept_from]() mutable { return sweep.at(number++); });
  Origins from;
  if constexpr (KIND == BATCHNORM_GRADIENT)
    from = Origins(p, {sweep.first_channel, sweep.has_channels(p)});
  else
    UNROLL
    for (int v = 0; v < SUMS; ++v) from.of[v] = 0, from.power[v] = 1;
  Acc sums[COUNT][SUMS];
  UNROLL
  for (int v = 0; v < SUMS; ++v)
    UNROLL
    for (int k = 0; k < COUNT; ++k) sums[k][v] = 0;
  if (KIND == BATCHNORM_TRAIN && sweep.count) typical(p, sweep, from.of);
  const auto each = [&](const Packs &packs) { add(from.masked(packs), from.power, from.of, sums); };
  const int cached_from = max(0, sweep.kept_from - p.cached);
  sweep.go<true, false>(p, 0, cached_from,
                        [&](const Packs &packs, long long offset) { each(settled<true>(p, packs, offset, -1)); });
  sweep.go<false, false>(p, cached_from, sweep.kept_from,
                         [&](const Packs &packs, long long offset) { each(settled(p, packs, offset, -1)); });
  wait_for_copies<0>();
  constexpr int TOGETHER = HAS_RESULT ? DEPTH : 1;
  const int kept_count = sweep.count - sweep.kept_from;
  for (int begin = 0; begin < kept_count; begin += TOGETHER) {
    Words results[TOGETHER];
    UNROLL
    for (int i = 0; i < TOGETHER; ++i)
      if (begin + i < kept_count) results[i] = result_of(p, sweep.at(sweep.kept_from + begin + i));
    UNROLL
    for (int i = 0; i < TOGETHER; ++i) {
      const int number = begin + i, slot = number * THREADS + (int)threadIdx.x;
      if (number < kept_count)
        each(settled(p, joined(recall(p, slot), results[i]), sweep.at(sweep.kept_from + number), slot));
    }
  }

  Pack origins = {};
  if (KIND == BATCHNORM_TRAIN && sweep.count) origins = ((Packs)load(p, sweep.first_channel)).of[0];
  const int across = p.lanes, at_once = THREADS / across, width = across * PORTION;
  UNROLL
  for (int v = 0; v < SUMS; v += PORTION)
    UNROLL
    for (int k = 0; k < COUNT; ++k) {
      __syncthreads();
      if (sweep.mine < at_once)
        UNROLL
        for (int i = 0; i < PORTION; ++i) {
          double sum = as<double>(sums[k][v + i]);
          if (KIND == BATCHNORM_TRAIN && sweep.count) {
            const double away = as<double>(from.of[v + i]) - as<double>(to_acc(origins.of[v + i]));
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

// Tells other blocks that the writes of this block's threads are complete.
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

// Reads the values computed from the sums of a thread's channels. The block reads those of all its channels
// together: reading 16 numbers per thread took a third of the time.
DEVICE void read_ready(const BatchNormParams &p, const Swept &space, const Sweep &sweep, int group,
                       double (&table)[THREADS * PORTION], Ready (&ready)[SUMS]) {
  constexpr int MOST = THREADS * PORTION / 2;  // the number of channels that fit in the table
  const int first = group * p.lanes * V, end = (int)min((long long)first + p.lanes * V, p.channels);
  for (int begin = first; begin < end; begin += MOST) {
    const int count = min(MOST, end - begin), at = sweep.first_channel - begin;
    const double *const from = &space.ready[begin].first;
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * count; i += THREADS) table[i] = read_from_cache(from + i);
    __syncthreads();
    UNROLL
    for (int v = 0; v < SUMS; ++v)
      if (at + v >= 0 && at + v < count) ready[v] = {table[2 * (at + v)], table[2 * (at + v) + 1]};
  }
}

// The sums of a channel in float64, if they did not fit in Acc. The thread reads the channel again, which no block has
// overwritten yet.
DEVICE Sums wide_sums(const BatchNormParams &p, int channel) {
  Sums sums = {};
  const double from = as<double>(origin(p, channel));
  const Bits *x = static_cast<const Bits *>(p.x) + channel;
  UNROLL_4
  for (long long row = 0; row < p.batch; ++row, x += p.channels) {
    const double difference = as<double>(to_acc(*x)) - from;
    sums.of[0] += difference;
    sums.of[1] += difference * difference;
  }
  return sums;
}

// All blocks run at once. They wait twice: until all have summed their rows, and until the channels, which
// are distributed over the blocks, have been added up.
DEVICE void sweep_rows(const BatchNormParams &p, SweptTable &table) {
  constexpr int TILE = BATCHNORM_TILE, PARTS = THREADS / TILE;
  const Swept space(p);
  // Blocks with adjacent numbers have the groups of the same row.
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
      if constexpr (MAY_OVERFLOW)
        if (!(total.of[1] < INFINITY) || (p.epsilon < LEAST_EPSILON && total.of[1] < LEAST_SQUARES))
          total = wide_sums(p, channel);
      space.ready[channel] = finish(p, channel, total, known(p, channel), true);
    }
    announce(space.tiles);
  }
  const Given given(p, {sweep.first_channel, sweep.has_channels(p)});
  wait_until(space.tiles, tiles);
  Ready ready[SUMS] = {};
  read_ready(p, space, sweep, group, table.ready, ready);
  const Formula formula(p, given, ready);
  Bits *const out = static_cast<Bits *>(p.out);
  const auto each = [&](const Packs &packs, long long offset) { store(out + offset, formula.apply(packs)); };
  sweep.go<true, true>(p, 0, sweep.kept_from, each);
  for (int i = sweep.count - sweep.kept_from - 1; i >= 0; --i)
    each(recall(p, i * THREADS + (int)threadIdx.x), sweep.at(sweep.kept_from + i));
}
