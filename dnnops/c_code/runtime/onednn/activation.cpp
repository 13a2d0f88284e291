// Activations of which oneDNN's are faster than compiled elementwise code, and the gradient of one.
#include <cstring>

#include "node_state.hpp"
#include "pieces.hpp"

namespace dnnops {
namespace {

// The order of `MODES` in dnnops/onednn/activation.py.
constexpr dnnl_alg_kind_t kAlgorithms[] = {dnnl_eltwise_tanh, dnnl_eltwise_logistic, dnnl_eltwise_elu,
                                           dnnl_eltwise_swish};

struct Key {
  int64_t count, mode, coef, backward, threads;  // the coefficient's bits
};
bool operator==(const Key &a, const Key &b) { return std::memcmp(&a, &b, sizeof a) == 0; }

LruCache<Key, PlanEntry, WordHash<Key>> &cache() { return entry_cache<Key, PlanEntry>(); }

std::shared_ptr<PlanEntry> make_entry(const Key &key) {
  auto entry = std::make_shared<PlanEntry>();
  Plan &plan = entry->plan;
  const int64_t one = 1;
  int arrays[3];
  for (int i = 0; i < (key.backward ? 3 : 2); ++i) arrays[i] = plan.add_array(memory_desc(1, &key.count, &one));
  const_dnnl_memory_desc_t desc = plan.desc(arrays[0]);
  double coef;
  std::memcpy(&coef, &key.coef, sizeof coef);
  const dnnl_alg_kind_t algorithm = kAlgorithms[key.mode];
  Attributes attributes = user_scratchpad();
  dnnl_primitive_desc_t made;
  DNNL_CHECK(dnnl_eltwise_forward_primitive_desc_create(
      &made, cpu_engine(), key.backward ? dnnl_forward_training : dnnl_forward_inference, algorithm, desc, desc,
      (float)coef, 0, attributes.get()));
  PrimitiveDesc forward(made);
  if (!key.backward) {
    plan.add_primitive(forward, {{DNNL_ARG_SRC, arrays[0]}, {DNNL_ARG_DST, arrays[1]}});
    return entry;
  }
  DNNL_CHECK(dnnl_eltwise_backward_primitive_desc_create(&made, cpu_engine(), algorithm, desc, desc, desc, (float)coef,
                                                         0, forward.get(), attributes.get()));
  PrimitiveDesc backward(made);
  plan.add_primitive(backward,
                     {{DNNL_ARG_SRC, arrays[0]}, {DNNL_ARG_DIFF_DST, arrays[1]}, {DNNL_ARG_DIFF_SRC, arrays[2]}});
  return entry;
}

// params: mode, the coefficient's bits.  Inputs: x; backward: x, y, the output's gradient.
void run(const dnnops_context *context, const int64_t *params, const dnnops_tensor *inputs, bool is_backward,
         const dnnops_tensor &output) {
  const int64_t count = element_count(output.shape, output.ndim);
  if (count == 0) return;
  const Key key{count, params[0], params[1], is_backward, thread_count()};
  const dnnops_tensor *const operands[] = {&inputs[0], is_backward ? &inputs[2] : &output, &output};
  const int arrays = is_backward ? 3 : 2;
  with_entry(context, cache(), key, [&] { return make_entry(key); }, [&](PlanEntry &entry, PlanRun &plan_run) {
    const auto padded = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    const size_t plan_bytes = padded(entry.plan.scratch_bytes()), size = padded(count * sizeof(float));
    size_t bytes = plan_bytes;
    for (int i = 0; i < arrays; ++i) bytes += is_contiguous(*operands[i]) ? 0 : size;
    char *scratch = thread_scratch(bytes), *next = scratch + plan_bytes;
    void *data[3] = {nullptr, nullptr, nullptr};
    for (int i = 0; i < arrays; ++i) {
      data[i] = operands[i]->data;
      if (is_contiguous(*operands[i])) continue;
      data[i] = next;
      next += size;
      if (i < arrays - 1) pack(*operands[i], data[i], false);
    }
    if (is_backward)
      plan_run({data[0], data[1], data[2]}, scratch);
    else
      plan_run({data[0], data[1]}, scratch);
    // Only an input that is overwritten isn't contiguous.
    Pieces<float>(output).finish(0, count, static_cast<const float *>(data[arrays - 1]));
  });
}

void shape(const int64_t *params, const dnnops_tensor *inputs, int input_count, dnnops_tensor &output) {
  if (params[0] < 0 || params[0] >= (int64_t)(sizeof kAlgorithms / sizeof *kAlgorithms))
    fail(DNNOPS_VALUE_ERROR, "there is no mode %lld", (long long)params[0]);
  for (int i = 0; i < input_count; ++i) {
    dnnl_dtype(inputs[i].dtype);
    if (inputs[i].ndim != inputs[0].ndim ||
        std::memcmp(inputs[i].shape, inputs[0].shape, inputs[0].ndim * sizeof(int64_t)))
      fail(DNNOPS_VALUE_ERROR, "x, y and gy have to have one shape");
  }
  output.dtype = inputs[0].dtype;
  output.ndim = inputs[0].ndim;
  std::memcpy(output.shape, inputs[0].shape, output.ndim * sizeof(int64_t));
}

}  // namespace
}  // namespace dnnops

using namespace dnnops;

DNNOPS_EXPORT int dnnops_onednn_activation_shape(const dnnops_context *, const int64_t *params,
                                                 const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnActivation", inputs, 1, [&] { shape(params, inputs, 1, outputs[0]); });
}
DNNOPS_EXPORT int dnnops_onednn_activation(const dnnops_context *context, const int64_t *params,
                                           const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnActivation", inputs, 1, [&] { run(context, params, inputs, false, outputs[0]); });
}

// Inputs: x, y, the output's gradient.
DNNOPS_EXPORT int dnnops_onednn_activation_grad_shape(const dnnops_context *, const int64_t *params,
                                                      const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnActivationGrad", inputs, 3, [&] { shape(params, inputs, 3, outputs[0]); });
}
DNNOPS_EXPORT int dnnops_onednn_activation_grad(const dnnops_context *context, const int64_t *params,
                                                const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnActivationGrad", inputs, 3, [&] { run(context, params, inputs, true, outputs[0]); });
}

DNNOPS_EXPORT_CACHE(dnnops_onednn_activation, cache())
