// Declares the functions that a runtime library exports for an Op.
#ifndef DNNOPS_OP_HPP
#define DNNOPS_OP_HPP

#include <type_traits>

#include "error.hpp"

namespace dnnops {

// A call of an Op. The fields of Params are the Op's words, in their order; there may be none. For messages,
// it has two functions:
//   const char *op() const;   the Op's class in Python
//   int input_count() const;  the number of inputs to describe
template <class Params>
struct OpCall {
  const dnnops_context &context;
  const Params &params;
  const dnnops_tensor *inputs;
  dnnops_tensor *outputs;
};

template <class Params>
const Params &params_of(const int64_t *words) {
  static_assert(std::is_empty_v<Params> || alignof(Params) == sizeof(int64_t), "fields of 8 bytes");
  static_assert(std::is_trivially_copyable_v<Params>, "plain words");
  return *reinterpret_cast<const Params *>(words);
}

// Runs body(call). A failure's message names the Op and its operands.
template <class Params, class Body>
int call_op(const dnnops_context *context, const int64_t *words, const dnnops_tensor *inputs, dnnops_tensor *outputs,
            Body &&body) noexcept {
  const Params &params = params_of<Params>(words);
  return guarded(params.op(), inputs, params.input_count(),
                 [&] { body(OpCall<Params>{*context, params, inputs, outputs}); });
}

}  // namespace dnnops

// Exports dnnops_<name>, which calls run(call) with an OpCall<Params>.
#define DNNOPS_FUNCTION(name, Params, run)                                                                  \
  DNNOPS_EXPORT int dnnops_##name(const dnnops_context *context, const int64_t *words,                      \
                                  const dnnops_tensor *inputs, dnnops_tensor *outputs) {                    \
    return ::dnnops::call_op<Params>(context, words, inputs, outputs, [](const auto &call) { run(call); }); \
  }

// Exports the functions of an Op: dnnops_<name>_shape calls shape(call), dnnops_<name> calls run(call).
#define DNNOPS_OP(name, Params, shape, run)    \
  DNNOPS_FUNCTION(name##_shape, Params, shape) \
  DNNOPS_FUNCTION(name, Params, run)
#endif
