// The operands of a convolution's call, and the case that they make.
#ifndef DNNOPS_CUDNN_CONV_CALL_HPP
#define DNNOPS_CUDNN_CONV_CALL_HPP

#include "conv_plan.hpp"

namespace dnnops {

// By direction.
extern const char *const conv_op_names[3];

inline const ConvParams &conv_params_of(const int64_t *words) { return *reinterpret_cast<const ConvParams *>(words); }

// Of the inputs before alpha.
inline int input_count(const ConvParams &params) { return params.direction == CONV_FORWARD ? 2 : 3; }

// The operands of a call in one place.
struct Call {
  const ConvParams &params;
  const dnnops_tensor *inputs;
  dnnops_tensor &output;
  const dnnops_tensor *out;  // to be added to, or null
  double alpha, beta;

  Call(const ConvParams &params_, const dnnops_tensor *inputs_, dnnops_tensor *outputs);
  const dnnops_tensor &of_role(int role) const;
  void read_pointers(Launch &launch) const;
};

// Throws for operands that don't fit each other, and for padding that is not left to cuDNN.
ConvProblem checked_problem(const ConvParams &params, const dnnops_tensor *inputs);

// The type that arrays of a dtype are computed with in.
int64_t compute_dtype(int64_t precision, int64_t dtype);

void describe_case(ConvCase &conv, const ConvProblem &problem, const Call &call, int64_t handle);

// Scaling factors that a plan may have built in.
void fix_scalars(ConvCase &conv, const Call &call);

}  // namespace dnnops
#endif
