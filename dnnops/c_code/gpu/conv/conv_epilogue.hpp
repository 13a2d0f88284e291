// The epilogue of a convolution: as operations of cuDNN's graph API, and as a kernel of its own.
#ifndef DNNOPS_CUDNN_CONV_EPILOGUE_HPP
#define DNNOPS_CUDNN_CONV_EPILOGUE_HPP

#include "conv_plan.hpp"
#include "../kernels/kernel_loader.hpp"

namespace dnnops {

// An array of cuDNN's graph API. Without a unique id, it is an intermediate array between two operations.
BackendDescriptor graph_array(const Tensor &tensor, int64_t dtype, int64_t unique_id);

// The intermediate array that the convolution of a case with an epilogue writes.
BackendDescriptor before_epilogue(const ConvCase &conv);

// Whether cuDNN may have kernels for the epilogue that are compiled in advance, rather than at run time.
bool is_compiled_in_advance(const ConvCase &conv);

// The operations that follow the convolution, which writes `array`; `result` is what the last one writes.
std::vector<BackendDescriptor> epilogue_operations(const ConvCase &conv, BackendDescriptor array,
                                                   const BackendDescriptor &result, const int64_t *unique_ids);

// How the kernel in epilogue.cuh is compiled and launched, except for addresses.
struct EpilogueWork {
  std::string options;
  unsigned blocks, threads;
  int64_t units, channels, step;
};
// Throws, with the reason, if the result is not dense.
EpilogueWork epilogue_work(const ConvCase &conv);

// The kernel that computes the epilogue in place.
class EpilogueKernel {
 public:
  EpilogueKernel(const ConvCase &conv, const Handle &handle);
  void run(const Launch &launch) const;

 private:
  EpilogueWork work_;
  double coef_;
  Kernel kernel_;
};

// `inner` is a plan of the case without its epilogue.
std::shared_ptr<Plan> make_unfused_plan(const ConvCase &conv, const Handle &handle, std::shared_ptr<Plan> inner);

}  // namespace dnnops
#endif
