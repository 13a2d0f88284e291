#include "batchnorm_work.hpp"

#include <algorithm>
#include <cstring>

namespace dnnops {

namespace {

// About how much of an array a block reads if it does not keep it.
constexpr int64_t SHARE_BYTES = 32 << 10;
constexpr int64_t VECTOR_BYTES = 16;
// Threads side by side along a row, with vectors and with single elements.
constexpr int64_t VECTOR_LANES = 8, ELEMENT_LANES = 32;

int64_t divided(int64_t size, int64_t by) { return (size + by - 1) / by; }

// The numbers of vectors that a thread may hold if shares differ; each number is a separate program. If
// shares are equal, the number is their exact size.
constexpr int64_t HOLDS[] = {7, 13, 19, BATCHNORM_MOST_HELD[1]};
constexpr int64_t SHORT_HOLDS[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

// How arrays are cut into shares. For rows, a group of channels is as wide as a row of threads.
struct Cut {
  int64_t way, lanes, columns, groups, units, share, splits, slots = 0;
  BatchNormBlocks blocks = BATCHNORM_PLAIN;
  int64_t pieces = 1, abreast = 1, bundles = 0, members = 0, crews = 0, time = INT64_MAX;
  int64_t stride = 0, kept = 0, cached = 0, reach = 0;

  // The number of shares that a block processes at a time.
  int64_t rooms() const { return way == BATCHNORM_BY_WARPS || way == BATCHNORM_HELD ? blocks.threads / 32 : 1; }
  int64_t total() const { return groups * splits; }
  // If held: whether each warp has a share, and all shares have the same number of vectors. If short: whether all
  // threads of a channel have.
  bool is_even(int64_t vectors) const {
    if (way == BATCHNORM_SHORT) return vectors % lanes == 0;
    return way == BATCHNORM_HELD && splits == members * rooms() && splits * share == vectors;
  }
  // If held or short: the number of vectors per thread.
  int64_t holds(int64_t vectors) const {
    if (way != BATCHNORM_HELD && way != BATCHNORM_SHORT) return 0;
    const int64_t least = divided(share, way == BATCHNORM_HELD ? 32 : lanes);
    const auto first = [&](const auto &numbers) {
      return *std::lower_bound(std::begin(numbers), std::end(numbers), least);
    };
    return is_even(vectors) ? least : way == BATCHNORM_HELD ? first(HOLDS) : first(SHORT_HOLDS);
  }
  void split(int64_t into) {
    // Blocks of a group wait for each other, so make shares about equal.
    share = divided(units, into);
    splits = divided(units, share);
  }
};

// The number of arrays that results are computed from.
int64_t array_count(const BatchNormCase &of) {
  return of.kind == BATCHNORM_GRADIENT || of.fused & BATCHNORM_ADDEND ? 2 : 1;
}

// Cuts arrays into shares of at most `bytes` bytes per array.
Cut cut_into(const BatchNormCase &of, bool rows, int64_t vector, int64_t bytes) {
  Cut cut;
  cut.lanes = !rows ? 1 : vector > 1 ? VECTOR_LANES : ELEMENT_LANES;
  cut.columns = rows ? cut.lanes * vector : 1;
  cut.groups = divided(of.channels, cut.columns);
  cut.units = rows ? of.batch : of.batch * (of.inner / vector);
  const int64_t most = std::max<int64_t>(1, bytes / (item_size(of.dtype) * vector * cut.lanes));
  cut.split(divided(cut.units, most));
  return cut;
}

// The fixed cost of a share, in the time of this many vectors.
constexpr int64_t SHARE_OVERHEAD = 256;

// Makes shares smaller if that reduces the work of the busiest block.
void even_out(Cut &cut, int64_t blocks) {
  const auto most = [&](int64_t splits) {
    return divided(cut.groups * splits, blocks) * (divided(cut.units, splits) + SHARE_OVERHEAD);
  };
  int64_t best = cut.splits;
  for (int64_t splits = cut.splits + 1; splits <= std::min(cut.splits * 5 / 4, blocks); ++splits)
    if (most(splits) < most(best)) best = splits;
  // With little data, each thread still gets a few vectors.
  const int64_t least = 2 * cut.blocks.threads / cut.lanes;
  if (cut.total() < blocks) best = std::max(best, std::min(blocks / cut.groups, cut.units / least));
  cut.split(best);
}

// Cuts arrays into shares that stay in shared memory.
Cut keep(const BatchNormCase &of, bool rows, int64_t vector, int64_t at_once) {
  Cut cut = cut_into(of, rows, vector, BATCHNORM_PLAIN.bytes / array_count(of));
  cut.way = BATCHNORM_KEPT;
  if (at_once > 0 && cut.splits <= at_once) even_out(cut, at_once);
  cut.slots = cut.share * cut.lanes;
  return cut;
}

// By warps, a share is a piece of an image with at least this many vectors, or several whole images of at
// least this many bytes.
constexpr int64_t LEAST_PIECE = 64, LEAST_IMAGE_BYTES = 128;

// If a channel has more shares than this, its warps wait for the sums of bundles, since the total number of
// sums they read is the square of their number.
constexpr int64_t MOST_SINGLE_SHARES = 192;

// The fixed cost of a warp's share, in the time of this many vectors: waiting for its data and for the sums
// of the others.
int64_t warp_overhead(int64_t splits) {
  return splits > MOST_SINGLE_SHARES ? 240 + splits / (2 * BATCHNORM_BUNDLE) : 128 + splits / 2;
}

// Calls consider(share, pieces, splits) for each way to cut a channel into at most `most_splits` shares of at
// most `most` vectors.
template <class Consider>
void for_each_cut(const BatchNormCase &of, int64_t across, int64_t most, int64_t most_splits, Consider consider) {
  const auto consider_few = [&](int64_t share, int64_t pieces, int64_t splits) {
    if (splits <= most_splits) consider(share, pieces, splits);
  };
  for (int64_t images = std::min(most / across, of.batch); images > 0; --images) {
    const int64_t splits = divided(of.batch, images);
    consider_few(divided(of.batch, splits) * across, 1, splits);
  }
  for (int64_t into = std::max<int64_t>(2, divided(across, most));
       into <= across / LEAST_PIECE && of.batch * into <= most_splits; ++into) {
    const int64_t share = divided(across, into), pieces = divided(across, share);
    consider_few(share, pieces, of.batch * pieces);
  }
}

// The start of a cut for warps; `splits` of 0 means that there is none.
Cut begin_cut(const BatchNormCase &of, int64_t way, const BatchNormBlocks &blocks) {
  Cut cut;
  cut.way = way;
  cut.blocks = blocks;
  cut.lanes = cut.columns = 1;
  cut.groups = of.channels;
  cut.units = cut.share = cut.splits = 0;
  return cut;
}

// Whether bulk copies can load the images.
bool suits_warps(const BatchNormCase &of, int64_t vector) {
  return vector * item_size(of.dtype) == VECTOR_BYTES && of.inner * item_size(of.dtype) >= LEAST_IMAGE_BYTES;
}

// Rounds up the size of a share in shared memory, so that the next one is also aligned to 128 bytes.
int64_t aligned(int64_t share) { return 8 * divided(share, 8); }

// Cuts arrays into shares for single warps; `splits` is 0 if that is not possible.
Cut cut_for_warps(const BatchNormCase &of, int64_t vector, int64_t at_once) {
  const bool has_more = array_count(of) == 1 && item_size(of.dtype) == 2;
  Cut cut = begin_cut(of, BATCHNORM_BY_WARPS, has_more ? BATCHNORM_MORE_WARPS : BATCHNORM_WARPS);
  if (!suits_warps(of, vector)) return cut;
  const int64_t all = at_once * cut.rooms(), most = cut.blocks.bytes / (cut.rooms() * array_count(of) * VECTOR_BYTES);
  for_each_cut(of, of.inner / vector, most, all, [&](int64_t share, int64_t pieces, int64_t splits) {
    const int64_t turns = divided(of.channels * splits, all);
    const int64_t time = turns * (share * array_count(of) + warp_overhead(splits));
    if (time >= cut.time) return;
    cut.time = time;
    cut.share = share;
    cut.pieces = pieces;
    cut.splits = splits;
  });
  // The fastest choice on an H200, if warps have room for all shares of these channels at once.
  const int64_t wanted = of.kind == BATCHNORM_TRAIN ? 2 : 1;
  cut.abreast = std::min(of.channels, wanted * cut.splits <= all ? wanted : 1);
  cut.bundles = cut.splits > MOST_SINGLE_SHARES ? divided(cut.splits, BATCHNORM_BUNDLE) : 0;
  cut.slots = aligned(cut.share);
  return cut;
}

// The maximum number of blocks that share a channel: a single warp waits for their sums.
constexpr int64_t MOST_MEMBERS = 32;
// The minimum number of vectors in a share. A warp sums the differences from the mean of its threads' first
// elements. A thread without elements contributes the channel's first element, which may be far off.
constexpr int64_t LEAST_HELD = 32;
// The fixed cost of a turn, in the time of this many vectors of an array per warp, during which the sums of
// other blocks arrive.
constexpr int64_t TURN_OVERHEAD = 64;

// Cuts arrays into shares that warps hold in registers; `splits` is 0 if that is not possible.
Cut cut_to_hold(const BatchNormCase &of, int64_t vector, int64_t at_once) {
  Cut cut = begin_cut(of, BATCHNORM_HELD, BATCHNORM_HOLDING);
  if (!suits_warps(of, vector)) return cut;
  const int64_t most_splits = std::min(at_once, MOST_MEMBERS) * cut.rooms();
  for_each_cut(of, of.inner / vector, 32 * BATCHNORM_MOST_HELD[array_count(of)], most_splits,
               [&](int64_t share, int64_t pieces, int64_t splits) {
                 if (share < LEAST_HELD) return;
                 const int64_t members = divided(splits, cut.rooms()), crews = at_once / members;
                 const int64_t turn = (share + TURN_OVERHEAD) * array_count(of);
                 const int64_t time = divided(of.channels, crews) * turn;
                 if (time >= cut.time) return;
                 cut.time = time;
                 cut.share = share;
                 cut.pieces = pieces;
                 cut.splits = splits;
                 cut.members = members;
                 cut.crews = std::min(crews, of.channels);
               });
  cut.slots = aligned(cut.share);
  return cut;
}

// The registers of a thread for the vectors of all arrays. Twice as many would leave too few for their conversion.
constexpr int64_t MOST_REGISTERS = 128;
// With more vectors per thread than this, more threads of the warp share the channel.
constexpr int64_t WANTED_VECTORS = 2;

// Gives each channel to a few threads; `splits` is 0 if that is not possible, or leaves multiprocessors idle.
Cut cut_short(const BatchNormCase &of, int64_t vector, const BatchNormDevice &device) {
  Cut cut = begin_cut(of, BATCHNORM_SHORT, BATCHNORM_SHORT_CHANNELS);
  const int64_t vectors = of.inner / vector;
  while (cut.lanes < 32 && cut.lanes * WANTED_VECTORS < vectors) cut.lanes *= 2;
  const int64_t registers = divided(vector * item_size(of.dtype), 4) * array_count(of);
  const int64_t most = std::min<int64_t>(MOST_REGISTERS / registers, *std::rbegin(SHORT_HOLDS));
  if (of.batch > 1 || vectors > most * cut.lanes || of.channels < device.streaming) return cut;
  cut.columns = cut.blocks.threads / cut.lanes;
  cut.groups = divided(of.channels, cut.columns);
  cut.units = cut.share = vectors;
  cut.splits = 1;
  return cut;
}

// All blocks sweep over all rows side by side; there is one group of channels if a block's threads span a row.
Cut sweep(const BatchNormCase &of, int64_t vector, int64_t at_once) {
  Cut cut;
  cut.way = BATCHNORM_SWEPT;
  cut.blocks = BATCHNORM_SWEEPING;
  const int64_t threads = cut.blocks.threads, across = divided(of.channels, vector);
  cut.groups = divided(across, threads);
  cut.lanes = divided(across, cut.groups);
  cut.columns = cut.lanes * vector;
  cut.units = of.batch;
  cut.share = threads / cut.lanes;
  cut.splits = std::min(at_once / cut.groups, divided(cut.units, cut.share));
  cut.stride = cut.splits * cut.share;
  cut.reach = of.batch;
  const int64_t step_bytes = threads * vector * item_size(of.dtype) * array_count(of);
  cut.kept = std::min(cut.blocks.bytes / step_bytes, cut.splits ? divided(cut.units, cut.stride) : 0);
  cut.cached = BATCHNORM_CACHED_BYTES / (step_bytes * std::max<int64_t>(1, cut.total()));
  cut.slots = cut.kept * threads;
  return cut;
}

Cut cut_case(const BatchNormCase &of, bool rows, int64_t vector, const BatchNormDevice &device) {
  Cut streamed = cut_into(of, rows, vector, SHARE_BYTES);
  streamed.way = of.kind == BATCHNORM_INFERENCE ? BATCHNORM_BY_GIVEN : BATCHNORM_STREAMED;
  if (of.kind == BATCHNORM_INFERENCE) return streamed;
  // What is held in registers, or loaded by bulk copies, is not masked by the result of relu.
  const bool has_result = of.kind == BATCHNORM_GRADIENT && of.fused & BATCHNORM_ADDEND;
  if (!rows && !has_result) {
    const Cut cut = cut_short(of, vector, device);
    if (cut.splits > 0) return cut;
  }
  Cut alone = cut_into(of, rows, vector, BATCHNORM_PLAIN.bytes / array_count(of));
  alone.way = BATCHNORM_ALONE;
  alone.slots = alone.share * alone.lanes;
  if (alone.splits == 1) return alone;
  const Cut kept = keep(of, rows, vector, device.plain);
  if (!rows && has_result) return kept.splits <= device.plain / 2 ? kept : streamed;
  if (!rows) {
    const Cut held = cut_to_hold(of, vector, device.holding), by_warps = cut_for_warps(of, vector, device.by_warps);
    // The time in vectors per multiprocessor. Held vectors take 0.87 of the time of others.
    const bool holds = held.splits > 0, has_warps = by_warps.splits > 0;
    if (holds && (!has_warps || 20 * held.time * held.rooms() <= 23 * by_warps.time * by_warps.rooms())) return held;
    if (has_warps) return by_warps;
    // While the blocks of one channel wait, those of another must read and write.
    return kept.splits <= device.plain / 2 ? kept : streamed;
  }
  // Use parts of rows if all of them are read at about the same time.
  if (kept.total() <= device.plain) return kept;
  const Cut swept = sweep(of, vector, device.sweeping);
  return swept.splits > 0 ? swept : streamed;
}

}  // namespace

BatchNormWork batchnorm_work(const BatchNormCase &given, const BatchNormDevice &device) {
  BatchNormCase of = given;
  if (of.channels == 1) {
    of.inner *= of.batch;
    of.batch = 1;
  }
  const bool rows = of.inner == 1 && of.channels > 1;
  const int64_t wanted = VECTOR_BYTES / item_size(of.dtype), along = rows ? of.channels : of.inner;
  const int64_t vector = along % wanted == 0 && of.alignment >= VECTOR_BYTES ? wanted : 1;
  const Cut cut = cut_case(of, rows, vector, device);
  const int64_t total = cut.total(), steps = cut.way == BATCHNORM_SWEPT ? divided(of.batch, cut.stride) : 0;
  if (of.channels > INT32_MAX - cut.columns || of.inner > INT32_MAX || cut.share > INT32_MAX || total > INT32_MAX / 2 ||
      steps > INT32_MAX / 2)
    fail(DNNOPS_NOT_SUPPORTED, "the arrays are too large for batch normalization: %lld x %lld x %lld",
         (long long)given.batch, (long long)given.channels, (long long)given.inner);
  BatchNormWork work;
  BatchNormParams &p = work.params;
  std::memset(static_cast<void *>(&p), 0, sizeof p);
  p.batch = of.batch;
  p.channels = of.channels;
  p.inner = of.inner;
  p.groups = static_cast<int>(cut.groups);
  p.splits = static_cast<int>(cut.splits);
  p.share = static_cast<int>(cut.share);
  p.slots = static_cast<int>(cut.slots);
  p.pieces = static_cast<int>(cut.pieces);
  p.abreast = static_cast<int>(cut.abreast);
  p.bundles = static_cast<int>(cut.bundles);
  p.members = static_cast<int>(cut.members);
  const int64_t across = of.inner / vector, vectors = of.batch * across;
  p.across = static_cast<int>(std::min<int64_t>(across, INT32_MAX));
  p.wrap = (of.channels - 1) * of.inner;
  p.jump_at = across ? static_cast<int>(32 % across) : 0;
  p.jump = across ? 32 / across * of.channels * of.inner + 32 % across * vector : 0;
  p.lanes = static_cast<int>(cut.lanes);
  p.stride = static_cast<int>(cut.stride);
  p.kept = static_cast<int>(cut.kept);
  p.cached = static_cast<int>(std::min<int64_t>(cut.cached, INT32_MAX));
  p.reach = cut.reach;
  // At least a whole group, so that everything a block waits for has already started, plus those that are
  // still summing.
  p.lag = static_cast<int>(std::min(total, cut.splits + device.streaming / 2));
  const int64_t sums = given.kind == BATCHNORM_GRADIENT ? 3 : 2, number = sizeof(double), word = sizeof(unsigned);
  work.way = cut.way;
  work.threads = cut.blocks.threads;
  work.grid = cut.way == BATCHNORM_STREAMED ? 2 * total : cut.way == BATCHNORM_HELD ? cut.crews * cut.members : total;
  work.shared_bytes = cut.slots * vector * item_size(of.dtype) * array_count(of) * cut.rooms();
  work.filled_bytes = work.workspace = work.fill = 0;
  const int64_t partial = number * sums * total * cut.columns;
  if (cut.way == BATCHNORM_SWEPT) {
    work.filled_bytes = 2 * word;
    work.workspace = number * (sums * cut.splits + 2) * of.channels + work.filled_bytes;
  } else if (cut.way == BATCHNORM_BY_WARPS) {
    work.fill = 0xff;  // NaN
    work.filled_bytes = work.workspace = partial + number * sums * of.channels * cut.bundles;
  } else if (cut.way == BATCHNORM_HELD) {
    work.fill = 0xff;
    work.filled_bytes = cut.members > 1 ? number * sums * of.channels * cut.members : 0;
    work.workspace = 2 * number * of.channels + work.filled_bytes;
  } else if (cut.way == BATCHNORM_KEPT || cut.way == BATCHNORM_STREAMED) {
    work.filled_bytes = (2 * cut.groups + 1) * word;
    work.workspace = partial + number * 2 * cut.groups * cut.columns + work.filled_bytes;
  }
  const auto macro = [](const char *name, int64_t value) { return std::string(" -D") + name + "=" + std::to_string(value); };
  // If swept, one program serves all numbers of lanes.
  work.options = "-DDTYPE=" + std::to_string(of.dtype) + macro("KIND", of.kind) + macro("FUSED", of.fused) +
                 macro("HOW", cut.way) + macro("ROWS", rows) + macro("V", vector) +
                 macro("LANES", cut.way == BATCHNORM_SWEPT ? 1 : cut.lanes) + macro("THREADS", cut.blocks.threads) +
                 macro("BLOCKS", cut.blocks.blocks) + macro("BUNDLED", cut.bundles > 0) +
                 macro("HOLDS", cut.holds(vectors)) +
                 macro("EVEN", cut.is_even(vectors)) + macro("LINED", cut.way == BATCHNORM_HELD && cut.share <= across);
  return work;
}

}  // namespace dnnops
