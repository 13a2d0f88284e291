// The gradient of attention with the kernel in c_code/gpu/attention/attention_grad.cuh instead of cuDNN's graph.
#ifndef DNNOPS_CUDNN_ATTENTION_GRAD_KERNEL_HPP
#define DNNOPS_CUDNN_ATTENTION_GRAD_KERNEL_HPP

#include "attention_call.hpp"
#include "../kernels/kernel_loader.hpp"

namespace dnnops {

class AttentionGradKernel {
 public:
  // Whether the kernel computes a call: as its path says or, if that leaves it open, depending on the
  // shapes. Throws DNNOPS_NOT_SUPPORTED if the path requests the kernel and it does not support the call.
  static bool is_chosen(const AttentionCall &call, const Handle &handle);

  AttentionGradKernel(const AttentionCall &call, const Handle &handle);
  void run(const AttentionCall &call, const dnnops_tensor *results, void *stream) const;

 private:
  Kernel kernel_;
  unsigned threads_, shared_bytes_;
};

}  // namespace dnnops
#endif
