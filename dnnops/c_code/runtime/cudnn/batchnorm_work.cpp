#include "batchnorm_work.hpp"

#include <algorithm>
#include <cstring>

namespace dnnops {

namespace {

// What a block reads of an array, about, if it doesn't keep it.
constexpr int64_t SHARE_BYTES = 32 << 10;
constexpr int64_t VECTOR_BYTES = 16;
// Threads side by side along a row: of vectors, and of single elements.
constexpr int64_t VECTOR_LANES[] = {8, 4, 2}, ELEMENT_LANES = 32;

int64_t divided(int64_t size, int64_t by) { return (size + by - 1) / by; }

// How arrays are cut.  Along rows, groups of channels are as wide as threads side by side reach.
struct Cut {
  int64_t way, lanes, columns, groups, units, share, splits, slots = 0;
};

// Into shares of at most so many bytes of an array.
Cut cut_into(const BatchNormCase &of, bool rows, int64_t vector, int64_t lanes, int64_t bytes) {
  const int64_t size = item_size(of.dtype);
  Cut cut;
  cut.lanes = lanes;
  cut.columns = rows ? lanes * vector : 1;
  cut.groups = divided(of.channels, cut.columns);
  cut.units = rows ? of.batch : of.batch * (of.inner / vector);
  const int64_t most = std::max<int64_t>(1, bytes / (size * vector * (rows ? lanes : 1)));
  // Shares of about one size: blocks of a group wait for each other.
  cut.splits = divided(cut.units, most);
  cut.share = divided(cut.units, cut.splits);
  cut.splits = divided(cut.units, cut.share);
  return cut;
}

// Makes shares smaller if blocks that take one after the other then have less to do.
void even_out(Cut &cut, int64_t blocks) {
  const auto most = [&](int64_t splits) {
    return divided(cut.groups * splits, blocks) * divided(cut.units, splits);
  };
  int64_t best = cut.splits;
  for (int64_t splits = cut.splits + 1; splits <= cut.splits * 5 / 4; ++splits)
    if (most(splits) < most(best)) best = splits;
  cut.share = divided(cut.units, best);
  cut.splits = divided(cut.units, cut.share);
}

Cut cut_case(const BatchNormCase &of, bool rows, int64_t vector, int64_t kept_blocks) {
  const int64_t widest = !rows ? 1 : vector > 1 ? VECTOR_LANES[0] : ELEMENT_LANES;
  Cut streamed = cut_into(of, rows, vector, widest, SHARE_BYTES);
  streamed.way = of.kind == BATCHNORM_INFERENCE ? BATCHNORM_BY_GIVEN : BATCHNORM_STREAMED;
  if (of.kind == BATCHNORM_INFERENCE) return streamed;
  const int64_t kept_bytes = BATCHNORM_KEPT_BYTES / (of.kind == BATCHNORM_GRADIENT ? 2 : 1);
  const auto keep = [&](int64_t lanes) {
    Cut cut = cut_into(of, rows, vector, lanes, kept_bytes);
    cut.way = cut.splits == 1 ? BATCHNORM_ALONE : BATCHNORM_KEPT;
    if (cut.splits > 1 && kept_blocks > 0 && !rows) even_out(cut, kept_blocks);
    const int64_t at_once = BATCHNORM_THREADS / (rows ? lanes : 1);
    cut.slots = divided(cut.share, at_once) * BATCHNORM_THREADS;
    return cut;
  };
  const Cut wide = keep(widest);
  // While one group's blocks wait, those of others have to read and write: of three, if rows can have long parts, else
  // of one.
  if (wide.way == BATCHNORM_ALONE || wide.splits <= kept_blocks / 4) return wide;
  if (!rows || vector == 1) return wide.splits <= kept_blocks / 2 ? wide : streamed;
  for (int64_t lanes : VECTOR_LANES) {
    const Cut cut = keep(lanes);
    if (cut.splits <= kept_blocks / 2) return cut;
  }
  return streamed;
}

}  // namespace

BatchNormWork batchnorm_work(const BatchNormCase &given, int64_t blocks, int64_t kept_blocks) {
  BatchNormCase of = given;
  if (of.channels == 1) {
    of.inner *= of.batch;
    of.batch = 1;
  }
  const bool rows = of.inner == 1 && of.channels > 1;
  const int64_t wanted = VECTOR_BYTES / item_size(of.dtype), along = rows ? of.channels : of.inner;
  const int64_t vector = along % wanted == 0 && of.alignment >= VECTOR_BYTES ? wanted : 1;
  const Cut cut = cut_case(of, rows, vector, kept_blocks);
  const int64_t total = cut.groups * cut.splits;
  if (of.channels > INT32_MAX - cut.columns || of.inner > INT32_MAX || cut.share > INT32_MAX || total > INT32_MAX / 2)
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
  // A whole group, at least: so all that a block waits for has begun before.  And those that are still adding up.
  p.lag = static_cast<int>(std::min(total, cut.splits + blocks / 2));
  const bool is_shared = cut.way == BATCHNORM_KEPT || cut.way == BATCHNORM_STREAMED;
  const int64_t sums = given.kind == BATCHNORM_GRADIENT ? 3 : 2, number = sizeof(double);
  work.way = cut.way;
  work.grid = cut.way == BATCHNORM_STREAMED ? 2 * total : total;
  work.shared_bytes = cut.slots * vector * item_size(of.dtype) * (given.kind == BATCHNORM_GRADIENT ? 2 : 1);
  work.zero_bytes = is_shared ? (2 * cut.groups + 1) * static_cast<int64_t>(sizeof(unsigned)) : 0;
  work.workspace = is_shared ? number * (sums * total + 2 * cut.groups) * cut.columns + work.zero_bytes : 0;
  const auto macro = [](const char *name, int64_t value) { return std::string(" -D") + name + "=" + std::to_string(value); };
  work.options = "-DDTYPE=" + std::to_string(of.dtype) + macro("KIND", of.kind) + macro("HOW", cut.way) +
                 macro("ROWS", rows) + macro("V", vector) + macro("LANES", cut.lanes);
  return work;
}

}  // namespace dnnops
