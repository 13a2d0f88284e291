// Depthwise convolution, with one channel per group, forward and both gradients, in loops over planes of the plain
// layout.
//
// An infinity or NaN affects the same outputs as in a convolution that skips the border. The same number of threads
// gives the same bits.
#include "../../base/huge_pages.hpp"
#include "../conv_ways.hpp"
#include "../own_scratch.hpp"
#include "depthwise_planes.hpp"

namespace dnnops {
namespace {

using depthwise::Planes;

// The computation of a problem, and the scratch memory that it needs.
struct Work {
  Planes planes;
  void (*compute)(const Planes &, float *);
  bool flips;  // whether the taps are the filters in reverse
  Layout layout;
  Operands operands;
  int64_t loops_at, taps_at;

  Work(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output)
      : operands(inputs, output, layout) {
    const ConvGeometry &geometry = problem.geometry;
    const bool as_forward = problem.direction == CONV_GRAD_INPUTS && geometry.stride[0] == 1;
    planes = {};
    planes.batch = problem.image[0];
    planes.channels = problem.image[1];
    planes.kernel = problem.filters[2];
    planes.stride = geometry.stride[0];
    planes.threads = thread_count();
    for (int i = 0; i < 2; ++i) {
      planes.image_shape[i] = (as_forward ? problem.top : problem.image)[2 + i];
      planes.top_shape[i] = (as_forward ? problem.image : problem.top)[2 + i];
      planes.pad[i] = as_forward ? planes.kernel - 1 - geometry.pad_begin[i] : geometry.pad_begin[i];
    }
    flips = (geometry.filter_flip != 0) != as_forward;
    if (problem.direction == CONV_GRAD_WEIGHTS) {
      compute = depthwise::sum_products;
      loops_at = layout.add(depthwise::sum_products_scratch(planes));
    } else if (problem.direction == CONV_GRAD_INPUTS && !as_forward) {
      compute = depthwise::spread;
      loops_at = layout.add(depthwise::spread_scratch(planes));
    } else {
      compute = depthwise::correlate;
      loops_at = layout.add(depthwise::correlate_scratch(planes));
    }
    taps_at = layout.add(planes.channels * planes.tap_count());
  }
};

// Copies the filters to taps or back, reversed where the correlation needs it.
void copy_taps(const Planes &planes, bool flips, const float *from, float *to) {
  const int64_t count = planes.tap_count();
  for (int64_t channel = 0; channel < planes.channels; ++channel, from += count, to += count)
    for (int64_t i = 0; i < count; ++i) to[i] = from[flips ? count - 1 - i : i];
}

const char *depthwise_obstacle(const ConvProblem &problem) {
  const ConvGeometry &geometry = problem.geometry;
  if (geometry.spatial_ndim != 2) return "it requires two spatial axes";
  if (problem.filters[1] != 1 || problem.filters[0] != geometry.groups)
    return "it requires groups of one channel and one filter";
  const int64_t kernel = problem.filters[2], stride = geometry.stride[0];
  if (problem.filters[3] != kernel || (kernel != 3 && kernel != 5 && kernel != 7))
    return "it requires filters of 3 x 3, 5 x 5 or 7 x 7";
  if (geometry.stride[1] != stride || stride > 2) return "it requires stride 1 or 2 along both axes";
  for (int i = 0; i < 2; ++i) {
    if (geometry.dilation[i] != 1) return "it requires dilation 1";
    if (geometry.pad_begin[i] < 0 || geometry.pad_begin[i] >= kernel || geometry.pad_end[i] < 0 ||
        geometry.pad_end[i] >= kernel)
      return "it requires padding smaller than the filters";
  }
  return nullptr;
}

const char *depthwise_drawback(const ConvProblem &problem) {
  // Measured on two AVX-512 cores beside oneDNN 3.2 with a few images at a time. Filters of 3 x 3, on images of 7 x 7
  // to 56 x 56, are 1.2 to 8 times as fast at a batch of 32, and 1.1 to 4 times at a batch of 1. On images of 112 x
  // 112, where new pages for the output take most of the time, they are 0.9 to 2 times as fast. Filters of 5 x 5 are
  // 1.1 to 10 times as fast, and filters of 7 x 7 0.9 to 1.7 times forward. The exception is the gradient with respect
  // to 3 x 3 filters of few outputs, where summing the lanes of each filter takes longest: 784 outputs of a channel or
  // fewer are 0.5 to 1.0 times as fast, 1568 or more at least 1.1 times.
  if (problem.direction == CONV_GRAD_WEIGHTS && problem.filters[2] == 3 &&
      problem.top[0] * problem.top[2] * problem.top[3] < 1024)
    return "not used for filters of 3 x 3 and fewer than 1024 outputs of a channel";
  return nullptr;
}

void conv_depthwise(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output) {
  Work work(problem, inputs, output);
  Planes &planes = work.planes;
  float *const scratch = work.layout.allocate(), *const taps = scratch + work.taps_at;
  work.operands.read(scratch);
  float *const *const data = work.operands.data;
  prefer_huge_pages(data[2], element_count(output.shape, 4) * (int64_t)sizeof(float));
  planes.taps = taps;
  planes.image = data[0];
  planes.top = data[2];
  if (problem.direction == CONV_FORWARD) {
    copy_taps(planes, work.flips, data[1], taps);
  } else if (problem.direction == CONV_GRAD_INPUTS) {
    copy_taps(planes, work.flips, data[0], taps);
    // For stride 1, it is a convolution of the output's gradient.
    const bool as_forward = work.compute == depthwise::correlate;
    planes.image = as_forward ? data[1] : data[2];
    planes.top = as_forward ? data[2] : data[1];
  } else {
    planes.top = data[1];
  }
  work.compute(planes, scratch + work.loops_at);
  if (problem.direction == CONV_GRAD_WEIGHTS) copy_taps(planes, work.flips, taps, data[2]);
  work.operands.write();
}

int64_t depthwise_scratch_bytes(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output) {
  return Work(problem, inputs, output).layout.bytes();
}

}  // namespace

const OwnWay depthwise_way = {
    ConvWay::DEPTHWISE, "depthwise", depthwise_obstacle, depthwise_drawback, conv_depthwise, depthwise_scratch_bytes,
};

}  // namespace dnnops
