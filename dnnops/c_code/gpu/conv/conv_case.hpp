// A convolution as the plan builders see it, and the words by which a caller selects a plan.
#ifndef DNNOPS_CUDNN_CONV_CASE_HPP
#define DNNOPS_CUDNN_CONV_CASE_HPP

#include "../../common/conv_problem.hpp"
#include "../base/tensor.hpp"

namespace dnnops {

// The arrays of a convolution in any direction; also the ids of the graph's tensors.
enum Role { ROLE_IMAGE = 0, ROLE_FILTERS = 1, ROLE_TOP = 2 };

// Where a call's addresses of the epilogue's operands follow those of the roles.
enum EpilogueOperand { EPILOGUE_SCALE = 3, EPILOGUE_BIAS = 4, EPILOGUE_ADDEND = 5 };
constexpr int ARRAY_COUNT = 6;

// The array that a direction computes.
inline Role result_role(int64_t direction) {
  return direction == CONV_FORWARD ? ROLE_TOP : direction == CONV_GRAD_INPUTS ? ROLE_IMAGE : ROLE_FILTERS;
}

// The API of a plan: cuDNN's legacy or graph API, dnnops kernels, or cuBLASLt.
enum Api : int64_t { API_LEGACY = 0, API_GRAPH = 1, API_KERNEL = 2, API_CUBLASLT = 3 };

constexpr int MAX_KNOBS = DNNOPS_MAX_KNOBS;

constexpr int64_t USUAL_MATH = -1;

// The gradient with respect to the image as a forward convolution: see make_forward_relayout.
constexpr int64_t FORMAT_AS_FORWARD = 4;

// A plan without the epilogue, followed by a kernel that computes it: see conv_epilogue.hpp.
constexpr int64_t FORMAT_UNFUSED = 8;

using PlanSpec = dnnops_plan_spec;
using ConvCase = dnnops_conv_case;
using Epilogue = dnnops_conv_epilogue;

// In the order of ACTIVATIONS in dnnops/gpu/fused/conv_activation.py.
enum EpilogueActivation : int64_t {
  ACTIVATE_IDENTITY = 0,
  ACTIVATE_RELU = 1,
  ACTIVATE_CLIPPED_RELU = 2,
  ACTIVATE_TANH = 3,
  ACTIVATE_SIGMOID = 4,
  ACTIVATE_ELU = 5,
  ACTIVATE_SWISH = 6,
};

inline bool has_part(const Epilogue &epilogue, int operand) { return epilogue.parts >> (operand - EPILOGUE_SCALE) & 1; }
inline bool has_epilogue(const ConvCase &conv) {
  return conv.epilogue.parts != 0 || conv.epilogue.activation != ACTIVATE_IDENTITY;
}

// The dtype to compute in, if it depends on the arrays' dtype. Other values are a dnnops_dtype.
enum Precision : int64_t { PRECISION_AS_INPUT_F32 = -1, PRECISION_AS_INPUT = -2 };

// The ways in which a caller can ask for a plan. dnnops/gpu/algorithms.py has the same numbers.
enum Policy : int64_t {
  POLICY_NONE = 0,
  POLICY_SMALL = 1,
  POLICY_LARGE = 2,
  POLICY_FFT = 3,
  POLICY_FFT_TILING = 4,
  POLICY_WINOGRAD = 5,
  POLICY_WINOGRAD_NON_FUSED = 6,
  POLICY_DETERMINISTIC = 7,
  POLICY_GUESS_ONCE = 8,
  POLICY_GUESS_ON_SHAPE_CHANGE = 9,
  POLICY_TIME_ONCE = 10,
  POLICY_TIME_ON_SHAPE_CHANGE = 11,
  POLICY_NAMED = 12,  // the given plan
};

// The parameters of the Ops, word by word, as written by dnnops/gpu/conv.py.
struct ConvParams {
  ConvGeometry geometry;
  int64_t direction;
  int64_t precision;  // a dnnops_dtype or a Precision
  int64_t allow_tf32;
  int64_t deterministic;
  int64_t workspace_limit;  // in bytes; -1 for whatever can be allocated
  int64_t has_out;          // whether the last three inputs are alpha, beta, out; otherwise the last one is alpha
  int64_t channels_last;    // the output's memory format
  int64_t verbose;
  int64_t node;        // the number of the compiled node; 0 if there is none
  int64_t time_limit;  // for timing all plans of one selection, in microseconds
  int64_t policy;
  PlanSpec plan;  // for POLICY_NAMED
  int64_t parts, activation;  // as in an Epilogue
  double coef;

  const char *op() const {
    static const char *const names[] = {"GpuDnnConv", "GpuDnnConvGradI", "GpuDnnConvGradW"};
    return parts || activation ? "GpuDnnConvActivation" : names[direction];
  }
  int input_count() const { return direction == CONV_FORWARD ? 2 : 3; }  // before alpha
};

}  // namespace dnnops
#endif
