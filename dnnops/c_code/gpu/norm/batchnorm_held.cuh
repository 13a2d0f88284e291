// The way HELD of batchnorm.cuh: batch normalization of channels whose elements are contiguous, by warps that
// hold their shares in registers.

// The number of vectors that every thread is certain to have if all shares are equal. Conditions cost
// instructions: with them, a gradient of 64x256x56x56 took 190 us instead of 183.
constexpr int HAVE = EVEN ? HOLDS - 1 : 0;

// A thread's vectors of a share.
struct Holding {
  Words words[HOLDS > 0 ? HOLDS : 1];
  Origins from;
};

// The data that the warps of a block exchange in each turn: their sums, and the sums of the whole channel, for which
// the first warp waits. There are two of each, since some warps may be a turn ahead.
struct Exchange {
  Sums parts[2][WARPS], all[2];
  Arrivals have_parts[2], have_all[2];
  // To be called by one thread.
  DEVICE void begin() {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      begin_arrivals(have_parts[i], WARPS);
      begin_arrivals(have_all[i]);
    }
  }
};

// The sums that the blocks of a crew publish; each lane reads those of one block. All sums are read at once:
// while other warps have copies in flight, a read takes 2 us.
struct Look {
  Sums of;
  DEVICE void begin(const BatchNormParams &p, const double *from) {
    UNROLL
    for (int k = 0; k < COUNT; ++k) of.of[k] = lane() < p.members ? read_relaxed(from + k * p.members + lane()) : 0;
  }
  // Reads again until all sums are there, and adds them up.
  DEVICE Sums end(const BatchNormParams &p, const double *from) {
    for (;;) {
      bool all = true;
      UNROLL
      for (int k = 0; k < COUNT; ++k) all = all && is_there(of.of[k]);
      if (all) break;
      pause();
      begin(p, from);
    }
    __syncwarp();
    return sum_of_lanes(of);
  }
};

// `members` adjacent blocks form a crew, which processes one channel per turn. The first warp of each block
// waits for the sums of the others.
//
// No warp waits forever. All blocks run at once and wait only for those of their crew. Each sums its share of
// a turn before it waits for the sums of the previous turn, and summing only waits for its own copies.
//
// For when others may write to x, see normalize_by_warps(). Elements in other shares, the origins, are read a
// turn ahead, and so before this block has published its sums of that channel.
DEVICE void normalize_held(const BatchNormParams &p) {
  __shared__ Arrivals arrivals[WARPS];
  __shared__ Exchange exchange;
  Arrivals &own = arrivals[warp()];
  if (lane() == 0) begin_arrivals(own);
  if (threadIdx.x == 0) exchange.begin();
  __syncthreads();
  const int crews = gridDim.x / p.members, number = blockIdx.x % p.members, split = number * WARPS + warp();
  const bool has_share = split < p.splits;
  const Walk walk(p, {0, has_share}, split);  // of the first channel
  const int left = walk.left;
  const auto origins_of = [&](int channel) { return Origins(p, {channel, channel < p.channels}); };
  // Averages are updated at the end: reading the old ones here would delay the block and its crew.
  Moments *const moments = static_cast<Moments *>(p.workspace);
  double *const of_blocks = reinterpret_cast<double *>(moments + p.channels);
  const auto published = [&](int channel) { return of_blocks + (long long)channel * COUNT * p.members; };
  const int crew = blockIdx.x / p.members;
  int channel = crew;
  Origins next = origins_of(channel);

  // Holds the share of a channel, and publishes its sums.
  const auto take = [&](int turn, int channel, Holding &holding) {
    const int two = turn % 2;
    holding.from = next;
    next = origins_of(channel + crews);
    if (has_share) wait_for_arrivals(own, turn);
    const auto has = [&](int i) { return i < HAVE || i < left; };
    const auto read = [&](int i, Words &words) {
      UNROLL
      for (int k = 0; k < ARRAYS; ++k) {
        const auto *const from = reinterpret_cast<const Words::Type *>(kept(p, k)) + i * 32 + lane();
        words.of[k] = has(i) ? *from : Words::Type{};
      }
    };
    // No branches, since they would separate the loads.
    UNROLL
    for (int i = 0; i < HOLDS; ++i) read(i, holding.words[i]);
    const Pack first = ((Packs)holding.words[0]).of[0];
    Acc start[SUMS];
    UNROLL
    for (int v = 0; v < SUMS; ++v) start[v] = left ? to_acc(first.of[v]) : holding.from.of[v];
    const auto each = [&](auto f, bool again = false) {
      if (again) {  // rarely; held words would keep more registers
        NO_UNROLL
        for (int i = 0; i < HOLDS; ++i) {
          Words words;
          read(i, words);
          f(words, has(i));
        }
      } else {
        UNROLL
        for (int i = 0; i < HOLDS; ++i) f(holding.words[i], has(i));
      }
    };
    sum_of_warp(p, start, left, holding.from, each, [&](int, const Sums &sums) {
      if (lane() == 0) exchange.parts[two][warp()] = sums;
    });
    if (lane() == 0) arrive(exchange.have_parts[two]);
    if (warp() == 0) {
      wait_for_arrivals(exchange.have_parts[two], turn / 2);
      Sums sums = {};
      if (lane() < WARPS) sums = exchange.parts[two][lane()];
      sums = sum_of_lanes(sums);
      if (p.members > 1)
        publish(published(channel) + number, p.members, sums);
      else if (lane() == 0)
        exchange.all[two] = sums;
    }
  };

  // Fetches the share of a channel, once the whole warp holds that of the previous channel.
  const auto fetch_share = [&](int channel) {
    if (has_share && channel < p.channels) fetch(p, channel, split, own);
  };

  const bool looks = warp() == 0 && p.members > 1;
  Look look;

  // Writes the results of a share.
  const auto give = [&](int turn, int channel, Holding &holding) {
    const int two = turn % 2;
    UNROLL
    for (int i = 0; i < HOLDS; ++i)
      UNROLL
      for (int k = 0; k < ARRAYS; ++k) forget_uses(reinterpret_cast<uint4 &>(holding.words[i].of[k]));
    const Given given(p, {channel, true});
    if (looks) {
      const Sums sums = look.end(p, published(channel));
      if (lane() == 0) exchange.all[two] = sums;
    }
    if (threadIdx.x == 0) arrive(exchange.have_all[two]);
    wait_for_arrivals(exchange.have_all[two], turn / 2);
    const Acc known = KIND == BATCHNORM_GRADIENT ? given.spread[0] : holding.from.of[0];
    const Ready ready = finish(p, channel, exchange.all[two], known, number == 0 && threadIdx.x == 0,
                               [&](const Moments &of) { moments[channel] = of; });
    const Formula formula(p, given, &ready);
    if constexpr (HAS_OFFSETS)
      if (number == 0 && threadIdx.x == 0) store_parameter(p.offsets, channel, formula.add[0]);
    Bits *to = static_cast<Bits *>(p.out) + walk.offset + channel * p.inner;
    int at = walk.at;
    // Otherwise the compiler computes all places in advance, for which there are not enough registers.
    forget_uses(to);
    forget_uses(at);
    UNROLL
    for (int i = 0; i < HOLDS; ++i) {
      const Pack out = formula.apply(holding.words[i]);
      if (i < HAVE || i < left) store(to + (LINED ? i * 32 * V : 0), out);
      if constexpr (!LINED) {
        to += p.jump;
        if ((at += p.jump_at) >= p.across) {
          at -= p.across;
          to += p.wrap;
        }
      }
    }
  };

  if (channel >= p.channels) return;
  fetch_share(channel);
  Holding mine, coming;
  // A warp sums its next share before it waits for the sums of this one.
  for (int turn = -1; channel < p.channels; ++turn) {
    const int ahead = turn < 0 ? channel : channel + crews;
    if (looks && turn >= 0) look.begin(p, published(channel));
    if (ahead < p.channels) {
      take(turn + 1, ahead, coming);
      fetch_share(ahead + crews);
    }
    if (turn >= 0) give(turn, channel, mine);
    channel = ahead;
    mine = coming;
  }
  if (KIND != BATCHNORM_TRAIN || !p.running[0] || number) return;
  __syncthreads();
  for (int i = crew + (int)threadIdx.x * crews; i < p.channels; i += THREADS * crews) update_averages(p, i, moments[i]);
}
