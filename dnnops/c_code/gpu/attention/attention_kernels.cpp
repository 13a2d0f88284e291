#include "attention_kernels.hpp"

#include <algorithm>
#include <cmath>

#include "attention_graph.hpp"

namespace dnnops {

namespace {

constexpr unsigned THREADS = 256;
// With more blocks, each thread processes several elements.
constexpr int64_t MAX_BLOCKS = 1 << 16;

void launch(const Kernel &kernel, int64_t blocks, void *params, void *stream) {
  void *arguments[] = {params};
  launch_kernel(kernel, static_cast<unsigned>(std::min(std::max<int64_t>(blocks, 1), MAX_BLOCKS)), THREADS, 0, stream,
                arguments);
}

int64_t blocks_of(int64_t threads) { return (threads + THREADS - 1) / THREADS; }

}  // namespace

AttentionKernels::AttentionKernels(const Handle &handle, int64_t dtype, int64_t mask_dtype) {
  std::string options = "-DMASK_WIDTH=" + std::to_string(item_size(mask_dtype));
  const bool is_float16 = dtype == DNNOPS_FLOAT16;
  const std::string minus_infinity = is_float16 ? "0xfc00" : "0xff80";
  // Engines that require finite scores get -65504 or -1e30.
  const std::string finite = is_float16 ? "0xfbff" : "0xf14a";
  options += " -DMINUS_INFINITY=" + minus_infinity;
  options += " -DHIDDEN=" + (std::isinf(hidden_score()) ? minus_infinity : finite);
  const auto load = [&](const char *name) { return load_kernel(handle, "attention", name, options); };
  lengths_ = load("attention_lengths");
  mask_ = load("attention_mask");
  stats_ = load("attention_stats");
  copy_ = load("attention_copy");
  hide_ = load("attention_hide");
}

void AttentionKernels::run(LengthParams params, void *stream) const {
  launch(lengths_, blocks_of(params.batch), &params, stream);
}
void AttentionKernels::run(MaskParams params, void *stream) const {
  launch(mask_, params.batch * params.heads * params.queries, &params, stream);
}
void AttentionKernels::run(StatsParams params, void *stream) const {
  launch(stats_, blocks_of(params.count), &params, stream);
}
void AttentionKernels::run(RowCopyParams params, void *stream) const {
  launch(copy_, blocks_of(32 * params.sizes[0] * params.sizes[1] * params.sizes[2]), &params, stream);
}
void AttentionKernels::run(HideParams params, void *stream) const {
  launch(hide_, blocks_of(32 * params.batch * params.heads * params.rows), &params, stream);
}

}  // namespace dnnops
