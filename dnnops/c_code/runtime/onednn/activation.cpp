// Activations with an exponential, which compiled elementwise code computes slowly: oneDNN's, and an elu of our own.
#include <cstring>

#include "node_state.hpp"
#include "pieces.hpp"

namespace dnnops {
namespace {

// The order of `MODES` in dnnops/onednn/activation.py; elu comes after them.
constexpr dnnl_alg_kind_t kAlgorithms[] = {dnnl_eltwise_tanh, dnnl_eltwise_logistic, dnnl_eltwise_swish};
constexpr int64_t kElu = sizeof kAlgorithms / sizeof *kAlgorithms;

struct Key {
  int64_t count, mode, coef, backward, threads;  // the coefficient's bits
};
bool operator==(const Key &a, const Key &b) { return std::memcmp(&a, &b, sizeof a) == 0; }

LruCache<Key, PlanEntry, WordHash<Key>> &cache() { return entry_cache<Key, PlanEntry>(); }

double coefficient(int64_t bits) {
  double coef;
  std::memcpy(&coef, &bits, sizeof coef);
  return coef;
}

std::shared_ptr<PlanEntry> make_entry(const Key &key) {
  auto entry = std::make_shared<PlanEntry>();
  Plan &plan = entry->plan;
  const int64_t one = 1;
  int arrays[3];
  for (int i = 0; i < (key.backward ? 3 : 2); ++i) arrays[i] = plan.add_array(memory_desc(1, &key.count, &one));
  const_dnnl_memory_desc_t desc = plan.desc(arrays[0]);
  const float coef = (float)coefficient(key.coef);
  const dnnl_alg_kind_t algorithm = kAlgorithms[key.mode];
  Attributes attributes = user_scratchpad();
  dnnl_primitive_desc_t made;
  DNNL_CHECK(dnnl_eltwise_forward_primitive_desc_create(
      &made, cpu_engine(), key.backward ? dnnl_forward_training : dnnl_forward_inference, algorithm, desc, desc, coef,
      0, attributes.get()));
  PrimitiveDesc forward(made);
  if (!key.backward) {
    plan.add_primitive(forward, {{DNNL_ARG_SRC, arrays[0]}, {DNNL_ARG_DST, arrays[1]}});
    return entry;
  }
  DNNL_CHECK(dnnl_eltwise_backward_primitive_desc_create(&made, cpu_engine(), algorithm, desc, desc, desc, coef, 0,
                                                         forward.get(), attributes.get()));
  PrimitiveDesc backward(made);
  plan.add_primitive(backward,
                     {{DNNL_ARG_SRC, arrays[0]}, {DNNL_ARG_DIFF_DST, arrays[1]}, {DNNL_ARG_DIFF_SRC, arrays[2]}});
  return entry;
}

// exp(x) - 1 of x <= 0.  oneDNN's elu subtracts the 1, and of a small x it keeps few digits.
inline float negative_expm1(float x) {
  const float bounded = x < -20.0f ? -20.0f : x;  // NaN stays
  const float magic = 12582912.0f;                 // adding 1.5 * 2^23 rounds, and leaves the integer in the low bits
  const float shifted = bounded * 1.44269504f + magic, n = shifted - magic;
  const float r = (bounded - n * 0.693145752f) - n * 1.42860677e-6f;
  const float tail =
      0.5f + r * (1.66666667e-1f + r * (4.16666667e-2f + r * (8.33333333e-3f + r * (1.38888889e-3f + r * 1.98412698e-4f))));
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (int32_t)(((uint32_t)bits << 23) + 0x3f800000u);
  float power;  // 2^n
  std::memcpy(&power, &bits, sizeof power);
  return power * (r + r * r * tail) + (power - 1.0f);
}

void elu(const float *from, float *to, int64_t count, float alpha) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float x = from[i], below = alpha * negative_expm1(x > 0 ? 0.0f : x);
    to[i] = x > 0 ? x : below;
  }
}

void run_elu(double alpha, const dnnops_tensor &x, const dnnops_tensor &y) {
  const Pieces<float> source(x), result(y);
  by_pieces(element_count(y.shape, y.ndim), [&](int64_t begin, int64_t count) {
    float read[kPiece], written[kPiece];
    elu(source.read(begin, count, read), result.target(begin, written), count, (float)alpha);
    result.finish(begin, count, written);
  });
}

// params: mode, the coefficient's bits.  Inputs: x; backward: x, y, the output's gradient.
void run(const dnnops_context *context, const int64_t *params, const dnnops_tensor *inputs, bool is_backward,
         const dnnops_tensor &output) {
  const int64_t count = element_count(output.shape, output.ndim);
  if (count == 0) return;
  if (params[0] == kElu) return run_elu(coefficient(params[1]), inputs[0], output);
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
  if (params[0] < 0 || params[0] > kElu || (params[0] == kElu && input_count > 1))
    fail(DNNOPS_VALUE_ERROR, "there is no mode %lld", (long long)params[0]);
  for (int i = 0; i < input_count; ++i) {
    dnnl_dtype(inputs[i].dtype);
    if (!same_shape(inputs[i], inputs[0])) fail(DNNOPS_VALUE_ERROR, "x, y and gy have to have one shape");
  }
  set_output(output, inputs[0]);
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
