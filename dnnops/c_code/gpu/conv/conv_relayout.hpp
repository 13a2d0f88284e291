// Convolutions on copies: in the other memory format, with added channels of zeros if tensor cores need them;
// or as a convolution in another direction.
#ifndef DNNOPS_CUDNN_CONV_RELAYOUT_HPP
#define DNNOPS_CUDNN_CONV_RELAYOUT_HPP

#include "conv_plan.hpp"

namespace dnnops {

// A case, and another one on copies of its arrays that gives the same result.
struct Relayout {
  ConvCase inner;
  int64_t format;       // the format of the PlanSpec
  int64_t copy_format;  // the format in which copies are dense
  // By Role of the case: whether the array is copied. The others already suit the inner case.
  bool copied[3];
  Role inner_role[3];  // its role in the inner case
  bool is_spread = false;  // for strides: the output's gradient gets zeros between its elements
};

// These throw with the reason if a case cannot be run this way.
Relayout make_relayout(const ConvCase &conv);
// The gradient with respect to the image as a forward convolution of the output's gradient, with reversed
// filters whose channels are exchanged. For channels-last arrays.
Relayout make_forward_relayout(const ConvCase &conv);

// `inner` is a plan of the relayout's case. Throws if the copy kernels are not available.
std::shared_ptr<Plan> make_relayout_plan(const ConvCase &conv, const Relayout &relayout, const Handle &handle,
                                         std::shared_ptr<Plan> inner);

}  // namespace dnnops
#endif
