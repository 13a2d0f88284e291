// The kernels of c_code/gpu/attention/attention.cuh.
#ifndef DNNOPS_CUDNN_ATTENTION_KERNELS_HPP
#define DNNOPS_CUDNN_ATTENTION_KERNELS_HPP

#include "../kernels/kernel_loader.hpp"

namespace dnnops {

// The same structure as in the kernels.
struct LengthParams {
  const void *queries, *keys;
  int64_t batch, max_queries, max_keys, seed, offset;
  void *inner_queries, *inner_keys, *rows, *columns, *random;
  const void *state;
};

struct MaskParams {
  const void *mask;
  int64_t steps[4];
  void *bias, *visible;
  const void *columns;
  int64_t batch, heads, queries, keys, bias_batch, bias_stride, is_causal;
};

struct StatsParams {
  const void *from;
  void *to;
  int64_t count;
};

struct RowCopyParams {
  const void *from;
  void *to;
  int64_t sizes[4], rows, columns, from_steps[3], to_steps[3], negates;
};

struct HideParams {
  void *array, *stats;
  const void *lengths, *visible;
  int64_t batch, heads, rows, columns, steps[3], visible_batch, visible_heads, hides_all;
};

class AttentionKernels {
 public:
  AttentionKernels() = default;
  // `mask_dtype` is only used for masks.
  AttentionKernels(const Handle &handle, int64_t dtype, int64_t mask_dtype);
  void run(LengthParams params, void *stream) const;
  void run(MaskParams params, void *stream) const;
  void run(StatsParams params, void *stream) const;
  void run(RowCopyParams params, void *stream) const;
  void run(HideParams params, void *stream) const;

 private:
  Kernel lengths_, mask_, stats_, copy_, hide_;
};

}  // namespace dnnops
#endif
