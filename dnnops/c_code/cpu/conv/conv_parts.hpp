// Convolutions in parts of a few images.
#ifndef DNNOPS_ONEDNN_CONV_PARTS_HPP
#define DNNOPS_ONEDNN_CONV_PARTS_HPP

#include <functional>

#include "../../common/conv_problem.hpp"

namespace dnnops {

// A convolution of some of the images.
struct ConvPart {
  ConvProblem problem;
  dnnops_tensor inputs[2], output;
};

// oneDNN copies images to its formats and back. If they pass through it a few at a time, the copies stay in the caches,
// and in as much scratch memory.
class ConvParts {
 public:
  ConvParts(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output);
  // The larger parts come first. Others have one image less.
  ConvPart first() const { return part(0); }
  ConvPart last() const { return part(count_ - 1); }
  // Calls compute(part) for each part. Gradients with respect to the filters are added up.
  void run(const std::function<void(const ConvPart &)> &compute) const;

 private:
  ConvPart part(int64_t number) const;

  ConvPart whole_;
  int64_t count_;
};

}  // namespace dnnops
#endif
