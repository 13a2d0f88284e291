// Depthwise convolutions (one channel per group) with the dnnops kernels in c_code/gpu/depthwise/*.cuh.
#ifndef DNNOPS_CUDNN_CONV_DEPTHWISE_HPP
#define DNNOPS_CUDNN_CONV_DEPTHWISE_HPP

#include "../conv/conv_plan.hpp"
#include "depthwise_params.hpp"

namespace dnnops {

// Values of a PlanSpec's id. Each has a kernel for the data and one for the gradient with respect to the filters.
enum DepthwiseKernel : int64_t { DEPTHWISE_CHANNELS_LAST = 0, DEPTHWISE_CONTIGUOUS = 1 };

// Types of knobs.
enum DepthwiseKnob : int64_t {
  KNOB_TILE_HEIGHT = 0,
  KNOB_TILE_WIDTH = 1,
  KNOB_VECTOR = 2,   // channels per thread, for the channels-last kernels
  KNOB_THREADS = 3,  // threads per block, approximately
  KNOB_STAGED = 4,   // for the contiguous data kernel: whether results pass through shared memory
  KNOB_BLOCKS = 5,   // for the filter kernels: the approximate number of blocks, in multiples of BLOCK_UNIT
  KNOB_COUNT = 6,
};

struct DepthwiseLaunch {
  const char *kernel;
  unsigned grid, block, shared;
};

// Everything needed to run a plan, except for addresses and scaling factors.
struct DepthwiseWork {
  std::string options;  // for the compiler
  std::vector<DepthwiseLaunch> launches;
  DepthwiseParams params;
  int64_t workspace;
};

// Throws, with the reason, if the kernels cannot run the case.
DepthwiseWork depthwise_work(const ConvCase &conv, const PlanSpec &spec);

// The plans worth trying, the most promising first; empty if there are none.
std::vector<PlanSpec> depthwise_specs(const ConvCase &conv);

// Whether the first of these plans is certain to be faster than all of cuDNN's.
bool depthwise_is_fast(const ConvCase &conv, const PlanSpec &spec);

// Compiles the kernels unless this process already has. Throws with the reason if that fails.
std::shared_ptr<Plan> make_depthwise_plan(const ConvCase &conv, const Handle &handle, const PlanSpec &spec);

}  // namespace dnnops
#endif
