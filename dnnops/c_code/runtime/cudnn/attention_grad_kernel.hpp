// The gradient of attention by the kernel of c_code/cudnn/attention_grad.cuh, in place of cuDNN's graph.
#ifndef DNNOPS_CUDNN_ATTENTION_GRAD_KERNEL_HPP
#define DNNOPS_CUDNN_ATTENTION_GRAD_KERNEL_HPP

#include "attention_call.hpp"
#include "kernel_loader.hpp"

namespace dnnops {

class AttentionGradKernel {
 public:
  // Whether the kernel is to compute a call: by WORD_PATH, and if that leaves it open, by the shapes.  Throws
  // DNNOPS_NOT_SUPPORTED if the word asks for the kernel and it can't.
  static bool is_chosen(const AttentionCall &call, const Handle &handle);

  AttentionGradKernel(const AttentionCall &call, const Handle &handle);
  void run(const AttentionCall &call, const dnnops_tensor *results, void *stream) const;

 private:
  Kernel kernel_;
  unsigned threads_, shared_bytes_;
};

}  // namespace dnnops
#endif
