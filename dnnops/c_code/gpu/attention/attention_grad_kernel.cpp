#include "attention_grad_kernel.hpp"

#include <algorithm>
#include <limits>

#include "attention_grad_params.hpp"

namespace dnnops {

namespace {

// Limits of the kernel: each warp has 16 keys and holds the sums of their gradients in registers.
constexpr int64_t MAX_KEYS = 64, MAX_DEPTH = 128;
// Up to this many scores per key head, the kernel is at least as fast as cuDNN's gradient, which is three kernels.
constexpr int64_t MOST_SCORES = 32 * 32;

constexpr int64_t TILE = 16, MOST_QUERIES = 64;

// The sizes that the kernel is compiled for.
struct Sizes {
  int64_t keys, queries, depth, value_depth, warps;
  int64_t shared_bytes() const { return ATTENTION_GRAD_SHARED_BYTES(keys, queries, depth, value_depth); }
};

// Rounds up to one of a few sizes, since each is compiled separately.
int64_t padded(int64_t size) {
  int64_t power = TILE;
  while (power < size) power *= 2;
  return power;
}

int64_t shared_limit(int device) {
  int limit = 0;
  DNNOPS_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return limit;
}

Sizes sizes_of(const AttentionCall &call, int64_t limit) {
  Sizes sizes;
  sizes.keys = padded(call.keys), sizes.queries = std::min(padded(call.queries), MOST_QUERIES);
  sizes.depth = padded(call.depth), sizes.value_depth = padded(call.value_depth);
  while (sizes.queries > TILE && sizes.shared_bytes() > limit) sizes.queries /= 2;
  const int64_t rows = std::max(sizes.keys, sizes.queries);
  const int64_t columns = std::max({sizes.keys, sizes.depth, sizes.value_depth});
  sizes.warps = rows * columns > 4 * TILE * TILE ? 8 : 4;
  return sizes;
}

bool is_possible(const AttentionCall &call, const Handle &handle) {
  constexpr int64_t MAX_INT = std::numeric_limits<int>::max();
  if (!call.gradient || call.params.dropout > 0 || call.keys > MAX_KEYS ||
      std::max(call.depth, call.value_depth) > MAX_DEPTH)
    return false;
  if (call.batch * call.heads > MAX_INT || call.queries > MAX_INT - MOST_QUERIES) return false;
  const int64_t limit = shared_limit(handle.device);
  return sizes_of(call, limit).shared_bytes() <= limit;
}

// Whether rows can be moved 16 bytes at a time.
bool has_vectors(const dnnops_tensor &array) {
  constexpr int64_t BYTES = 16;
  bool fits = alignment_of(array.data) == BYTES && array.shape[3] * item_size(array.dtype) % BYTES == 0;
  for (int i = 0; i < 3; ++i) fits = fits && (array.shape[i] == 1 || array.strides[i] % BYTES == 0);
  return fits;
}

}  // namespace

bool AttentionGradKernel::is_chosen(const AttentionCall &call, const Handle &handle) {
  const int64_t path = call.params.path;
  if (!call.gradient || path == PATH_CUDNN || path == PATH_FAULTY) return false;
  const bool possible = is_possible(call, handle);
  if (path == PATH_KERNEL && !possible)
    fail(DNNOPS_NOT_SUPPORTED, "the dnnops kernel supports up to %lld keys and depths of up to %lld, without dropout",
         (long long)MAX_KEYS, (long long)MAX_DEPTH);
  const int64_t rows = call.query_heads / std::max<int64_t>(call.heads, 1) * call.queries;
  return possible && (path == PATH_KERNEL || rows * call.keys <= MOST_SCORES);
}

AttentionGradKernel::AttentionGradKernel(const AttentionCall &call, const Handle &handle) {
  const Sizes sizes = sizes_of(call, shared_limit(handle.device));
  std::string options = "-DDTYPE=" + std::to_string(call.dtype);
  const auto define = [&](const char *name, int64_t value) {
    options += std::string(" -D") + name + "=" + std::to_string(value);
  };
  define("WARPS", sizes.warps);
  define("KEYS", sizes.keys);
  define("QUERIES", sizes.queries);
  define("DEPTH", sizes.depth);
  define("VALUE_DEPTH", sizes.value_depth);
  kernel_ = load_kernel(handle, "attention_grad", "attention_grad", options);
  threads_ = static_cast<unsigned>(32 * sizes.warps);
  shared_bytes_ = static_cast<unsigned>(sizes.shared_bytes());
}

void AttentionGradKernel::run(const AttentionCall &call, const dnnops_tensor *results, void *stream) const {
  AttentionGradParams params = {};
  const dnnops_tensor *const arrays[GRAD_ARRAYS] = {&call.inputs[0], &call.inputs[1], &call.inputs[2], call.gout,
                                                    &results[0],     &results[1],     &results[2]};
  for (int i = 0; i < GRAD_ARRAYS; ++i) {
    params.arrays[i] = arrays[i]->data;
    for (int axis = 0; axis < 3; ++axis) params.steps[i][axis] = arrays[i]->strides[axis] / item_size(call.dtype);
    if (has_vectors(*arrays[i])) params.vectors |= 1ll << i;
  }
  if (call.mask) {
    params.mask = call.mask->data;
    params.mask_width = item_size(call.mask->dtype);
    for (int i = 0; i < 4; ++i) params.mask_steps[i] = call.mask->shape[i] == 1 ? 0 : call.mask->strides[i];
  }
  if (call.query_lengths) params.query_lengths = static_cast<const long long *>(call.query_lengths->data);
  if (call.key_lengths) params.key_lengths = static_cast<const long long *>(call.key_lengths->data);
  params.heads = call.heads, params.group = call.query_heads / call.heads;
  params.queries = call.queries, params.keys = call.keys;
  params.depth = call.depth, params.value_depth = call.value_depth;
  params.is_causal = call.params.is_causal;
  params.scale = call.scale();
  void *arguments[] = {&params};
  launch_kernel(kernel_, static_cast<unsigned>(call.batch * call.heads), threads_, shared_bytes_, stream, arguments);
}

}  // namespace dnnops
