// The functions of the recurrent network Ops, forward and gradient.
#include "../../common/op.hpp"
#include "rnn_problem.hpp"

namespace dnnops::rnn {
namespace {

void check_all(const Problem &p, const dnnops_tensor *inputs) {
  const int64_t dtype = inputs[1].dtype;
  if (dtype != DNNOPS_FLOAT32 && dtype != DNNOPS_FLOAT64)
    fail(DNNOPS_TYPE_ERROR, "x is %s, expected float32 or float64", dtype_name(dtype));
  check_operands(p, inputs);
}

template <bool kForward>
struct Params : Words {
  static const char *op() { return kForward ? "OneDnnRNNForward" : "OneDnnRNNBackward"; }
  int input_count() const { return operand_count(kForward); }
};

void shape(const OpCall<Params<true>> &call) {
  const Problem p(call.params, call.inputs);
  check_all(p, call.inputs);
  set_forward_shapes(p, call.inputs, call.outputs);
  if (p.flag) set_output(call.outputs[2 + p.has_cell()], call.inputs[1].dtype, {reserve(p)});
}

void shape(const OpCall<Params<false>> &call) {
  const Problem p(call.params, call.inputs);
  check_all(p, call.inputs);
  check_operand("reserve", call.inputs[p.forward_operands() + 1], call.inputs[1].dtype, {reserve(p)});
  set_backward_shapes(p, call.inputs, call.outputs);
}

template <bool kForward>
void run(const OpCall<Params<kForward>> &call) {
  const Problem p(call.params, call.inputs);
  for_float_dtype(call.inputs[1].dtype, [&](auto zero) {
    (kForward ? forward<decltype(zero)> : backward<decltype(zero)>)(p, call.inputs, call.outputs);
  });
}

}  // namespace

DNNOPS_OP(onednn_rnn_forward, Params<true>, shape, run)
DNNOPS_OP(onednn_rnn_backward, Params<false>, shape, run)

}  // namespace dnnops::rnn
