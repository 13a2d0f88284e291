#include "batchnorm_work.hpp"

#include <algorithm>
#include <cstring>

namespace dnnops {

namespace {

// What a block reads of an array, about; and how much of it a block takes for itself at most, if there are as many groups
// as blocks run at once, or fewer.
constexpr int64_t SHARE_BYTES = 32 << 10;
constexpr int64_t ALONE_BYTES = 256 << 10, FEW_ALONE_BYTES = 64 << 10;
constexpr int64_t VECTOR_BYTES = 16;
// Threads side by side along a row: of vectors, and of single elements.
constexpr int64_t VECTOR_LANES = 8, ELEMENT_LANES = 32;

int64_t divided(int64_t size, int64_t by) { return (size + by - 1) / by; }

}  // namespace

BatchNormWork batchnorm_work(const BatchNormCase &of, int64_t blocks) {
  BatchNormWork work;
  BatchNormParams &p = work.params;
  std::memset(static_cast<void *>(&p), 0, sizeof p);
  p.batch = of.batch;
  p.channels = of.channels;
  p.inner = of.inner;
  if (p.channels == 1) {
    p.inner *= p.batch;
    p.batch = 1;
  }
  const bool rows = p.inner == 1 && p.channels > 1;
  const int64_t size = item_size(of.dtype), wanted = VECTOR_BYTES / size, along = rows ? p.channels : p.inner;
  const int64_t vector = along % wanted == 0 && of.alignment >= VECTOR_BYTES ? wanted : 1;
  const int64_t lanes = !rows ? 1 : vector > 1 ? VECTOR_LANES : ELEMENT_LANES;
  const int64_t columns = rows ? lanes * vector : 1;
  const int64_t units = rows ? p.batch : p.batch * (p.inner / vector), unit_bytes = (rows ? columns : vector) * size;
  const int64_t groups = divided(p.channels, columns), group_bytes = units * unit_bytes;
  const bool alone = of.kind != BATCHNORM_INFERENCE &&
                     (group_bytes <= FEW_ALONE_BYTES || (groups >= blocks && group_bytes <= ALONE_BYTES));
  const int64_t share = alone ? units : std::min(units, std::max<int64_t>(1, SHARE_BYTES / unit_bytes));
  const int64_t splits = divided(units, share), total = groups * splits;
  if (p.channels > INT32_MAX - columns || p.inner > INT32_MAX || share > INT32_MAX || total > INT32_MAX / 2)
    fail(DNNOPS_NOT_SUPPORTED, "the arrays are too large for batch normalization: %lld x %lld x %lld",
         (long long)of.batch, (long long)of.channels, (long long)of.inner);
  p.groups = static_cast<int>(groups);
  p.splits = static_cast<int>(splits);
  p.share = static_cast<int>(share);
  // A whole group, at least: so all that a block waits for has begun before.
  p.lag = static_cast<int>(std::min(total, std::max(blocks, splits)));
  const bool is_shared = !alone && of.kind != BATCHNORM_INFERENCE;
  work.grid = static_cast<unsigned>(is_shared ? 2 * total : total);
  work.zero_bytes = is_shared ? (2 * groups + 1) * static_cast<int64_t>(sizeof(unsigned)) : 0;
  work.workspace = is_shared ? 2 * static_cast<int64_t>(sizeof(double)) * (total + groups) * columns + work.zero_bytes : 0;
  const auto macro = [](const char *name, int64_t value) { return std::string(" -D") + name + "=" + std::to_string(value); };
  work.options = "-DDTYPE=" + std::to_string(of.dtype) + macro("KIND", of.kind) + macro("ROWS", rows) +
                 macro("V", vector) + macro("LANES", lanes) + macro("ALONE", alone);
  return work;
}

}  // namespace dnnops
