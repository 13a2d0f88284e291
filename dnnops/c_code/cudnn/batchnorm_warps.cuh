// Batch normalization of channels whose elements lie together, by warps that each work for themselves: the way BY_WARPS
// of batchnorm.cuh.

// Shares of a block that are on their way at once.  Without a limit all warps read at the same time, then wait, then
// write.
constexpr int FLIGHT = WARPS / 4;

// A share: of which channel, and its number there.
struct Piece {
  int channel, split;
  // Channels side by side take turns, image by image, so that what is read together lies closer together.
  DEVICE Piece(const BatchNormParams &p, unsigned number) {
    const unsigned size = p.abreast * p.splits, group = number / size, rest = number - group * size;
    const unsigned begin = group * p.abreast, width = min((unsigned)p.abreast, (unsigned)p.channels - begin);
    const unsigned image = rest / p.pieces;
    channel = (int)(begin + image % width);
    split = (int)(image / width * p.pieces + rest % p.pieces);
  }
};

// Begins to read a share into the warp's room: one copy of each image and array.
DEVICE void fetch(const BatchNormParams &p, int channel, int split, Arrivals &arrivals) {
  const Share share(p, split);
  const int across = (int)(p.inner / V), run = min(share.size, across);
  const unsigned image = (unsigned)share.begin / (unsigned)across, at = (unsigned)share.begin - image * across;
  if (lane() == 0) expect_bytes(arrivals, ARRAYS * share.size * (int)sizeof(Pack));
  __syncwarp();  // and all have used what was there before
  for (int i = lane(); i * run < share.size; i += 32) {
    const long long offset = ((long long)(image + i) * p.channels + channel) * p.inner + (long long)at * V;
    UNROLL
    for (int k = 0; k < ARRAYS; ++k)
      copy_in_bulk(kept(p, k) + i * run, array_of(p, k) + offset, run * (int)sizeof(Pack), arrivals);
  }
}

// Sums that other warps look for.  They are there as soon as they aren't what the workspace is filled with before, a NaN
// which sums never are: no counts are needed, and no fence, which would wait for what the thread has written before.
DEVICE bool is_there(double value) { return __double2hiint(value) != -1; }
DEVICE void publish(double *to, double value) {
  write_relaxed(to, value == value ? value : __hiloint2double(0x7ff80000, 0));
}

// Some of the doubles that others publish, which a thread reads together.
struct Read {
  static constexpr int SIZE = 4;
  double of[SIZE];
  // `left`: how many there are from here on.
  DEVICE void begin(const double *from, int left) {
    UNROLL
    for (int i = 0; i < SIZE; ++i) of[i] = 32 * i < left ? read_relaxed(from + 32 * i) : 0;
  }
  DEVICE void wait(const double *from) {
    for (;;) {
      bool all = true;
      UNROLL
      for (int i = 0; i < SIZE; ++i) all = all && is_there(of[i]);
      if (all) return;
      pause();
      UNROLL
      for (int i = 0; i < SIZE; ++i)
        if (!is_there(of[i])) of[i] = read_relaxed(from + 32 * i);
    }
  }
};

// The same in all lanes.
DEVICE Sums sum_of_lanes(Sums sums) {
  UNROLL
  for (int apart = 16; apart > 0; apart /= 2)
    UNROLL
    for (int k = 0; k < COUNT; ++k) sums.of[k] += __shfl_xor_sync(~0u, sums.of[k], apart);
  return sums;
}

// What so many shares have published, added up, the same in all lanes and warps: the sum k of the share i at
// from[k * stride + i].  Polling takes time from those who read and write: it is for one of a share's sums, which the
// others come with.
DEVICE Sums gather(const double *from, long long stride, int count) {
  Sums sums = {};
  for (int first = lane(); first < count; first += 32 * Read::SIZE) {
    const auto at = [&](int k) { return from + k * stride + first; };
    Read read[COUNT];
    read[0].begin(at(0), count - first);
    read[0].wait(at(0));
    UNROLL
    for (int k = 1; k < COUNT; ++k) read[k].begin(at(k), count - first);
    UNROLL
    for (int k = 1; k < COUNT; ++k) read[k].wait(at(k));
    UNROLL
    for (int k = 0; k < COUNT; ++k)
      UNROLL
      for (int i = 0; i < Read::SIZE; ++i) sums.of[k] += read[k].of[i];
  }
  return sum_of_lanes(sums);
}

DEVICE void publish(double *to, long long stride, const Sums &sums) {
  UNROLL
  for (int k = 0; k < COUNT; ++k)
    if (lane() == k) publish(to + k * stride, sums.of[k]);
}

// Where a channel's sums are: of its shares, and, if there are many, of bundles of them.
struct Published {
  double *shares, *bundles;
  DEVICE Published(const BatchNormParams &p, int channel) {
    double *const all = static_cast<double *>(p.workspace);
    shares = all + (long long)channel * COUNT * p.splits;
    bundles = all + (long long)p.channels * COUNT * p.splits + (long long)channel * COUNT * p.bundles;
  }
};

// The sums of a channel when all its shares have been added up.  If there are many, the one that comes last in a bundle
// adds that up for all.
DEVICE Sums sum_of_channel(const BatchNormParams &p, const Published &sums, int split) {
  if constexpr (BUNDLED) {
    const int bundle = split / BATCHNORM_BUNDLE, begin = bundle * BATCHNORM_BUNDLE;
    const int size = min(BATCHNORM_BUNDLE, p.splits - begin);
    if (split == begin + size - 1) publish(sums.bundles + bundle, p.bundles, gather(sums.shares + begin, p.splits, size));
    return gather(sums.bundles, p.bundles, p.bundles);
  } else {
    return gather(sums.shares, p.splits, p.splits);
  }
}

// Shares are numbered, those of some channels side by side one after the other, and then those of the next ones.  At
// its turn t a block has the share number t * gridDim.x + blockIdx.x; the warp t % WARPS works on it, when it has done
// its last one.  It begins to read when what the block has read at the turn t - FLIGHT has come.
//
// No warp waits for ever.  All run at once.  Suppose that all shares with numbers less than n get added up, and look at
// the one with the number n.  Its warp comes to it, unless it waits for the channel of its last share, which had the
// number n - WARPS * gridDim.x: those of that channel, and of the ones beside it, have numbers less than n, since they
// have no more shares than there are warps.  Whoever adds up a bundle waits for such ones, too.  It begins to read,
// since the block's share n - FLIGHT * gridDim.x has been added up, and so has come.  So this one gets added up as
// well, and so do all, one after the other.
//
// A wait for arrivals is for the last or the next ones of a warp: those of the turn t - FLIGHT + WARPS aren't expected
// before those of the turn t have come, which is one of those that they have to wait for, by way of every FLIGHT-th.
//
// Others may write to x as soon as this warp has published its sums, which depend on what it has read.
DEVICE void normalize_by_warps(const BatchNormParams &p) {
  static_assert(WARPS % FLIGHT == 0 && WARPS >= 2 * FLIGHT);
  __shared__ Arrivals arrivals[WARPS];
  Arrivals &own = arrivals[warp()];
  if (lane() == 0) begin_arrivals(own);
  __syncthreads();
  const unsigned total = (unsigned)p.channels * p.splits;
  for (unsigned turn = warp(), round = 0;; turn += WARPS, ++round) {
    const unsigned number = turn * gridDim.x + blockIdx.x;
    if (number >= total) return;
    const Piece piece(p, number);
    if (turn >= FLIGHT) wait_for_arrivals(arrivals[(turn - FLIGHT) % WARPS], (turn - FLIGHT) / WARPS);
    fetch(p, piece.channel, piece.split, own);
    const Place place = {piece.channel, true};
    const Walk walk(p, place, piece.split);
    const Origins from(p, place);
    const Given given(p, place);
    wait_for_arrivals(own, round);
    const Published published(p, piece.channel);
    sum_of_share(p, walk, from,
                 [&](int, const Sums &sums) { publish(published.shares + piece.split, p.splits, sums); });
    const Sums all = sum_of_channel(p, published, piece.split);
    const Acc known = KIND == BATCHNORM_GRADIENT ? given.spread[0] : from.of[0];
    const Ready ready = finish(p, piece.channel, all, known, lane() == 0 && piece.split == 0);
    normalize(p, walk, Formula(p, given, &ready));
  }
}
