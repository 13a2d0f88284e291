// Convolutions in the other memory format: arrays are transposed before and after, and get some channels of
// zeros where that makes their number one that tensor cores like.
#ifndef DNNOPS_CUDNN_CONV_RELAYOUT_HPP
#define DNNOPS_CUDNN_CONV_RELAYOUT_HPP

#include "conv_plan.hpp"

namespace dnnops {

// A case, and the same with its arrays in another format or with more channels.
struct Relayout {
  ConvCase inner;
  int64_t format;   // of the inner case
  bool moves[3];    // by Role: the array is copied; others are as the inner case wants them
};

// Throws with the reason where a case can't be run so.
Relayout make_relayout(const ConvCase &conv);

// `inner` is a plan of the relayout's case.  Throws if the kernels that transpose can't be had.
std::shared_ptr<Plan> make_relayout_plan(const ConvCase &conv, const Relayout &relayout, const Handle &handle,
                                         std::shared_ptr<Plan> inner);

}  // namespace dnnops
#endif
