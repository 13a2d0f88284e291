// Convolutions of copies: in the other memory format, with some channels of zeros where that makes their number one
// that tensor cores like; or as a convolution in another direction.
#ifndef DNNOPS_CUDNN_CONV_RELAYOUT_HPP
#define DNNOPS_CUDNN_CONV_RELAYOUT_HPP

#include "conv_plan.hpp"

namespace dnnops {

// A case, and another one on copies of its arrays that has the same result.
struct Relayout {
  ConvCase inner;
  int64_t format;       // of PlanSpec
  int64_t copy_format;  // that copies are dense in
  // By Role of the case: the array is copied; others are as the inner case wants them.
  bool copied[3];
  Role inner_role[3];  // what it is there
  bool is_spread = false;  // the output's gradient gets zeros between its elements, for strides
};

// These throw with the reason where a case can't be run so.
Relayout make_relayout(const ConvCase &conv);
// The gradient by the image as a forward convolution of the output's gradient, with filters that are turned around
// and have their channels exchanged; of channels-last arrays.
Relayout make_forward_relayout(const ConvCase &conv);

// `inner` is a plan of the relayout's case.  Throws if the kernels that copy can't be had.
std::shared_ptr<Plan> make_relayout_plan(const ConvCase &conv, const Relayout &relayout, const Handle &handle,
                                         std::shared_ptr<Plan> inner);

}  // namespace dnnops
#endif
