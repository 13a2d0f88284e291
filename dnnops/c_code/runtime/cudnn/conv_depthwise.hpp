// Depthwise convolutions (one channel a group) by our own kernels, which c_code/cudnn/depthwise*.cuh has.
#ifndef DNNOPS_CUDNN_CONV_DEPTHWISE_HPP
#define DNNOPS_CUDNN_CONV_DEPTHWISE_HPP

#include "conv_plan.hpp"
#include "depthwise_params.hpp"

namespace dnnops {

// Of a PlanSpec's id; each has a kernel for the data and one for the gradient by the filters.
enum DepthwiseKernel : int64_t { DEPTHWISE_CHANNELS_LAST = 0, DEPTHWISE_CONTIGUOUS = 1 };

// Types of knobs.
enum DepthwiseKnob : int64_t {
  KNOB_TILE_HEIGHT = 0,
  KNOB_TILE_WIDTH = 1,
  KNOB_VECTOR = 2,   // channels of a thread, of the channels-last kernels
  KNOB_THREADS = 3,  // of a block, about
  KNOB_STAGED = 4,   // whether the contiguous data kernel's results pass through shared memory
  KNOB_BLOCKS = 5,   // of the filter kernels: a multiple of BLOCK_UNIT, about
  KNOB_COUNT = 6,
};

struct DepthwiseLaunch {
  const char *kernel;
  unsigned grid, block, shared;
};

// All that running a plan takes but addresses and scaling factors.
struct DepthwiseWork {
  std::string options;  // of the compiler
  std::vector<DepthwiseLaunch> launches;
  DepthwiseParams params;
  int64_t workspace;
};

// Throws, with the reason, for what the kernels can't run.
DepthwiseWork depthwise_work(const ConvCase &conv, const PlanSpec &spec);

// The plans worth trying, the most promising one first; empty where there are none.
std::vector<PlanSpec> depthwise_specs(const ConvCase &conv);

// Whether the first of these plans is surely faster than all of cuDNN's.
bool depthwise_is_fast(const ConvCase &conv, const PlanSpec &spec);

// Compiles the kernels unless this process has; throws with the reason if that fails.
std::shared_ptr<Plan> make_depthwise_plan(const ConvCase &conv, const Handle &handle, const PlanSpec &spec);

}  // namespace dnnops
#endif
