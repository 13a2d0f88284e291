// The operands of a convolution call, and the case that they form.
#ifndef DNNOPS_CUDNN_CONV_CALL_HPP
#define DNNOPS_CUDNN_CONV_CALL_HPP

#include "../../common/op.hpp"
#include "conv_plan.hpp"

namespace dnnops {

// The operands of a call.
struct Call {
  const ConvParams &params;
  const dnnops_tensor *inputs;
  dnnops_tensor &output;
  const dnnops_tensor *out;  // what to add to, or null
  double alpha, beta;
  const dnnops_tensor *epilogue[3];  // scale, bias and addend, or null

  Call(const ConvParams &params_, const dnnops_tensor *inputs_, dnnops_tensor *outputs);
  const dnnops_tensor &of_role(int role) const;
  void read_pointers(Launch &launch) const;
};

// Throws if the operands are inconsistent, or for padding that cuDNN does not handle.
ConvProblem checked_problem(const ConvParams &params, const dnnops_tensor *inputs);

// The dtype in which arrays of a dtype are computed.
int64_t compute_dtype(int64_t precision, int64_t dtype);

void describe_case(ConvCase &conv, const ConvProblem &problem, const Call &call, int64_t handle);

// Sets the scaling factors that a plan may have built in.
void fix_scalars(ConvCase &conv, const Call &call);

}  // namespace dnnops
#endif
