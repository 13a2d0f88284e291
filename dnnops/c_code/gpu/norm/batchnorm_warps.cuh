// The way BY_WARPS of batchnorm.cuh: batch normalization of channels whose elements are contiguous, by warps
// that work independently.

// The number of a block's shares in flight at once. Without a limit, all warps would read at the same time,
// then wait, then write.
constexpr int FLIGHT = WARPS / 4;

// A share: its channel, and its number within the channel.
struct Piece {
  int channel, split;
  // Adjacent channels take turns, image by image, so that data read together is closer together in memory.
  DEVICE Piece(const BatchNormParams &p, unsigned number) {
    const unsigned size = p.abreast * p.splits, group = number / size, rest = number - group * size;
    const unsigned begin = group * p.abreast, width = min((unsigned)p.abreast, (unsigned)p.channels - begin);
    const unsigned image = rest / p.pieces;
    channel = (int)(begin + image % width);
    split = (int)(image / width * p.pieces + rest % p.pieces);
  }
};

// Starts reading a share into the warp's part of shared memory, with one copy for each image and array.
DEVICE void fetch(const BatchNormParams &p, int channel, int split, Arrivals &arrivals) {
  const Share share(p, split);
  const int across = (int)(p.inner / V), run = min(share.size, across);
  const unsigned image = (unsigned)share.begin / (unsigned)across, at = (unsigned)share.begin - image * across;
  if (lane() == 0) expect_bytes(arrivals, ARRAYS * share.size * (int)sizeof(Pack));
  __syncwarp();  // and all lanes have used the previous contents
  for (int i = lane(); i * run < share.size; i += 32) {
    const long long offset = ((long long)(image + i) * p.channels + channel) * p.inner + (long long)at * V;
    UNROLL
    for (int k = 0; k < ARRAYS; ++k)
      copy_in_bulk(kept(p, k) + i * run, array_of(p, k) + offset, run * (int)sizeof(Pack), arrivals);
  }
}

// Sums that other warps wait for. The workspace is initially filled with a NaN that sums never have, so they are there
// as soon as they differ from it. This needs no counts and no fence, which would wait for the thread's earlier writes.
DEVICE bool is_there(double value) { return __double2hiint(value) != -1; }
DEVICE void publish(double *to, double value) {
  write_relaxed(to, value == value ? value : __hiloint2double(0x7ff80000, 0));
}

// Several published doubles, which a thread reads together.
struct Read {
  static constexpr int SIZE = 4;
  double of[SIZE];
  // `left` is the number of doubles from here on.
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

// The result is the same in all lanes.
DEVICE Sums sum_of_lanes(Sums sums) {
  UNROLL
  for (int apart = 16; apart > 0; apart /= 2)
    UNROLL
    for (int k = 0; k < COUNT; ++k) sums.of[k] += __shfl_xor_sync(~0u, sums.of[k], apart);
  return sums;
}

// Adds up what the shares have published; the result is the same in all lanes and warps. Sum k of share i is
// at from[k * stride + i]. Polling slows down warps that read and write, so only one sum of a share is
// polled; the others are published together with it.
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

// Where a channel's sums are: those of its shares and, if there are many, of bundles of shares.
struct Published {
  double *shares, *bundles;
  DEVICE Published(const BatchNormParams &p, int channel) {
    double *const all = static_cast<double *>(p.workspace);
    shares = all + (long long)channel * COUNT * p.splits;
    bundles = all + (long long)p.channels * COUNT * p.splits + (long long)channel * COUNT * p.bundles;
  }
};

// Waits for the sums of all shares of a channel. If there are many, the last share of each bundle adds up the
// bundle for all.
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

// Shares are numbered: first those of several adjacent channels, interleaved, then those of the next ones. In its turn
// t, a block has the share number t * gridDim.x + blockIdx.x, which the warp t % WARPS processes after its previous
// share. It starts to read when what the block has read in the turn t - FLIGHT has arrived.
//
// No warp waits forever. All run at once. Suppose that all shares with numbers less than n get summed, and
// consider share n. Its warp reaches it unless it waits for the channel of its previous share, number n -
// WARPS * gridDim.x. The shares of that channel, and of the channels interleaved with it, have numbers less
// than n, since there are no more of them than warps. A warp that adds up a bundle only waits for such
// shares, too. The warp can start to read, because the block's share n - FLIGHT * gridDim.x has been summed
// and so has arrived. So share n gets summed as well, and by induction so do all.
//
// A wait for arrivals concerns a warp's last share or its next one: those of the turn t - FLIGHT + WARPS are not
// expected before those of the turn t have arrived, because they have to wait for them, through every FLIGHT-th turn.
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
