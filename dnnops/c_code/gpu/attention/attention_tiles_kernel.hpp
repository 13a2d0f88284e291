// One of the kernels of attention_tiles.cuh, in the variant that suits a call.
#ifndef DNNOPS_CUDNN_ATTENTION_TILES_KERNEL_HPP
#define DNNOPS_CUDNN_ATTENTION_TILES_KERNEL_HPP

#include "../kernels/kernel_loader.hpp"
#include "attention_tiles_params.hpp"

namespace dnnops {

enum AttentionTilesKernelKind { TILES_KERNEL_OUT, TILES_KERNEL_DQUERY, TILES_KERNEL_DKEY };

// What a kernel is compiled for.
struct AttentionTilesForm {
  int64_t depth, value_depth;
  bool split, is_causal, aligned;
  int64_t mask;  // as MASK in the kernel
};

// Constants of a kernel, which change its speed but not its results.
struct AttentionTilesVariant {
  int64_t warps, tiles, columns, stages;
  bool hold;
  int64_t least_blocks;
};

// The variant for a device with so many bytes of shared memory for a block. Throws DNNOPS_NOT_SUPPORTED if that is too
// little for any.
AttentionTilesVariant attention_tiles_variant(AttentionTilesKernelKind kind, const AttentionTilesForm &form, int64_t limit);

class AttentionTilesKernel {
 public:
  AttentionTilesKernel() = default;
  // For so many heads of the batch, with so many queries or keys each. If there are none, the kernel does nothing.
  AttentionTilesKernel(const Handle &handle, AttentionTilesKernelKind kind, const AttentionTilesForm &form, int64_t heads,
                       int64_t rows);
  void run(AttentionTilesParams params, void *stream) const;

 private:
  Kernel kernel_;
  unsigned blocks_ = 0, threads_ = 0, shared_bytes_ = 0;
};

}  // namespace dnnops
#endif
