#include "attention_tiles_kernel.hpp"

#include <algorithm>
#include <limits>

namespace dnnops {

namespace {

constexpr int64_t MAX_DEPTH = 256, DEPTH_STEP = 32, TILE = 16;
constexpr bool HELD = true, SHARED = false;
enum When { CAUSAL, FULL, ANY };

// The fastest variant for calls of up to a depth.
struct Choice {
  AttentionTilesKernelKind kind;
  bool split;
  When when;
  int64_t depth;
  AttentionTilesVariant variant;
};

constexpr Choice CHOICES[] = {
    {TILES_KERNEL_OUT, false, CAUSAL, 64, {4, 1, 64, 2, HELD, 3}},
    {TILES_KERNEL_OUT, false, FULL, 64, {4, 2, 32, 3, HELD, 2}},
    {TILES_KERNEL_OUT, false, ANY, 128, {8, 1, 64, 2, HELD, 1}},
    {TILES_KERNEL_DQUERY, false, CAUSAL, 64, {4, 1, 32, 2, HELD, 3}},
    {TILES_KERNEL_DQUERY, false, FULL, 64, {4, 1, 64, 2, HELD, 2}},
    {TILES_KERNEL_DQUERY, false, ANY, 128, {8, 1, 16, 2, HELD, 1}},
    {TILES_KERNEL_DKEY, false, CAUSAL, 64, {4, 1, 32, 2, HELD, 2}},
    {TILES_KERNEL_DKEY, false, FULL, 64, {4, 1, 64, 2, HELD, 1}},
    {TILES_KERNEL_DKEY, false, ANY, 128, {8, 1, 32, 2, SHARED, 1}},
    {TILES_KERNEL_OUT, true, ANY, 64, {4, 1, 64, 2, SHARED, 2}},
    {TILES_KERNEL_OUT, true, ANY, 128, {8, 1, 32, 2, SHARED, 1}},
    {TILES_KERNEL_DQUERY, true, ANY, 64, {4, 1, 32, 2, SHARED, 3}},
    {TILES_KERNEL_DQUERY, true, ANY, 128, {8, 1, 32, 2, SHARED, 1}},
    {TILES_KERNEL_DKEY, true, ANY, 64, {4, 1, 32, 2, SHARED, 2}},
    {TILES_KERNEL_DKEY, true, ANY, 128, {4, 1, 16, 2, SHARED, 2}},
};

int64_t padded(int64_t depth) { return std::max(DEPTH_STEP, (depth + DEPTH_STEP - 1) / DEPTH_STEP * DEPTH_STEP); }

int64_t shared_bytes_of(AttentionTilesKernelKind kind, const AttentionTilesForm &form, const AttentionTilesVariant &v) {
  const int64_t depth = padded(form.depth), value_depth = padded(form.value_depth);
  const int64_t own = v.hold ? 0 : kind == TILES_KERNEL_OUT ? depth : depth + value_depth;
  return ATTENTION_TILES_SHARED_BYTES(TILE * v.tiles * v.warps, v.columns, v.stages, depth, value_depth, own,
                                      kind == TILES_KERNEL_DKEY ? TILES_ROW_NUMBERS : 0);
}

int64_t shared_limit(int device) {
  int limit = 0;
  DNNOPS_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return std::min<int64_t>(limit, ATTENTION_TILES_MOST_SHARED_BYTES);
}

}  // namespace

AttentionTilesVariant attention_tiles_variant(AttentionTilesKernelKind kind, const AttentionTilesForm &form, int64_t limit) {
  const int64_t depth = std::max(form.depth, form.value_depth);
  if (depth > MAX_DEPTH)
    fail(DNNOPS_NOT_SUPPORTED, "depths are at most %lld, not %lld", (long long)MAX_DEPTH, (long long)depth);
  for (const Choice &choice : CHOICES)
    if (choice.kind == kind && choice.split == form.split && choice.when != (form.is_causal ? FULL : CAUSAL) &&
        depth <= choice.depth && shared_bytes_of(kind, form, choice.variant) <= limit)
      return choice.variant;
  // These need the least registers and shared memory.
  for (int64_t warps = 4; warps; warps /= 2) {
    const AttentionTilesVariant variant = {warps, 1, 16, 2, SHARED, 1};
    if (shared_bytes_of(kind, form, variant) <= limit) return variant;
  }
  fail(DNNOPS_NOT_SUPPORTED, "a block has too little shared memory, %lld bytes", (long long)limit);
}

AttentionTilesKernel::AttentionTilesKernel(const Handle &handle, AttentionTilesKernelKind kind,
                                           const AttentionTilesForm &form, int64_t heads, int64_t rows) {
  const AttentionTilesVariant variant = attention_tiles_variant(kind, form, shared_limit(handle.device));
  const int64_t of_block = TILE * variant.tiles * variant.warps, blocks = (rows + of_block - 1) / of_block * heads;
  // Kernels count positions in 32 bits.
  constexpr int64_t MAX_INT = std::numeric_limits<int>::max();
  if (blocks > MAX_INT || rows > MAX_INT - 1024) fail(DNNOPS_NOT_SUPPORTED, "there are too many queries or keys");
  blocks_ = static_cast<unsigned>(blocks);
  threads_ = static_cast<unsigned>(32 * variant.warps);
  shared_bytes_ = static_cast<unsigned>(shared_bytes_of(kind, form, variant));
  if (!blocks) return;
  std::string options;
  const auto define = [&](const char *name, int64_t value) {
    options += std::string(options.empty() ? "-D" : " -D") + name + "=" + std::to_string(value);
  };
  define("WARPS", variant.warps);
  define("TILES", variant.tiles);
  define("COLUMNS", variant.columns);
  define("STAGES", variant.stages);
  define("HOLD", variant.hold);
  define("LEAST_BLOCKS", variant.least_blocks);
  define("DEPTH", padded(form.depth));
  define("VALUE_DEPTH", padded(form.value_depth));
  define("ALIGNED", form.aligned);
  define("SPLIT", form.split);
  define("MASK", form.mask);
  constexpr const char *NAMES[] = {"attention_out", "attention_dquery", "attention_dkey"};
  kernel_ = load_kernel(handle, NAMES[kind], NAMES[kind], options);
}

void AttentionTilesKernel::run(AttentionTilesParams params, void *stream) const {
  if (!blocks_) return;
  void *arguments[] = {&params};
  launch_kernel(kernel_, blocks_, threads_, shared_bytes_, stream, arguments);
}

}  // namespace dnnops
