// Gradients for heads with large scores, with the kernels in c_code/gpu/attention/large/attention_large.cuh.
#ifndef DNNOPS_CUDNN_ATTENTION_LARGE_HPP
#define DNNOPS_CUDNN_ATTENTION_LARGE_HPP

#include "../attention_call.hpp"
#include "../../kernels/kernel_loader.hpp"

namespace dnnops {

class AttentionLargeKernels {
 public:
  AttentionLargeKernels(const AttentionCall &call, const Handle &handle);
  // The bytes of scratch memory.
  static int64_t bytes(const AttentionCall &call);
  // Overwrites the gradients of the heads with large scores.
  void run(const AttentionCall &call, const dnnops_tensor *results, void *scratch, void *stream) const;

 private:
  Kernel dquery_, dkey_;
  unsigned dquery_blocks_, dkey_blocks_;
};

}  // namespace dnnops
#endif
