// Softmax, log-softmax and their gradients over one axis or several neighboring ones.
#include <cfloat>
#include <cmath>
#include <cstring>

#include "node_state.hpp"
#include "views.hpp"

namespace dnnops {
namespace {

struct Key {
  View views[3];  // as (outer, axis, inner); forward: x, y; backward: output's gradient, output, x's gradient
  int64_t log, backward, threads;
};
bool operator==(const Key &a, const Key &b) { return std::memcmp(&a, &b, sizeof a) == 0; }

LruCache<Key, PlanEntry, WordHash<Key>> &cache() { return entry_cache<Key, PlanEntry>(); }

// oneDNN's softmax along a dense axis hides NaNs and infinities.  Where SciPy's is NaN throughout, so
// is ours: where there is a NaN or an infinity, or nothing but negative infinities.
void spread_nan(const View &x_view, const float *x, const View &y_view, float *y) {
  const int64_t outer = x_view.shape[0], length = x_view.shape[1], inner = x_view.shape[2];
  const int64_t step = x_view.strides[1];
#pragma omp parallel for if (outer * length * inner > 16384)
  for (int64_t i = 0; i < outer; ++i)
    for (int64_t j = 0; j < inner; ++j) {
      const float *row = x + i * x_view.strides[0] + j * x_view.strides[2];
      int unbounded = 0, above = 0;
      if (step == 1) {
#pragma omp simd reduction(| : unbounded, above)
        for (int64_t k = 0; k < length; ++k) {
          unbounded |= !(row[k] <= FLT_MAX);
          above |= row[k] >= -FLT_MAX;
        }
      } else {
        for (int64_t k = 0; k < length; ++k) {
          unbounded |= !(row[k * step] <= FLT_MAX);
          above |= row[k * step] >= -FLT_MAX;
        }
      }
      if (!unbounded && above) continue;
      float *result = y + i * y_view.strides[0] + j * y_view.strides[2];
      for (int64_t k = 0; k < length; ++k) result[k * y_view.strides[1]] = NAN;
    }
}

std::shared_ptr<PlanEntry> make_entry(const Key &key) {
  auto entry = std::make_shared<PlanEntry>();
  Plan &plan = entry->plan;
  int arrays[3] = {0, 0, 0};
  for (int i = 0; i < (key.backward ? 3 : 2); ++i)
    arrays[i] = plan.add_array(memory_desc(3, key.views[i].shape, key.views[i].strides));
  const int output = key.backward ? arrays[2] : arrays[1], result = arrays[1];
  const dnnl_alg_kind_t algorithm = key.log ? dnnl_softmax_log : dnnl_softmax_accurate;
  Attributes attributes = user_scratchpad();
  dnnl_primitive_desc_t made;
  DNNL_CHECK(dnnl_softmax_forward_primitive_desc_create(
      &made, cpu_engine(), key.backward ? dnnl_forward_training : dnnl_forward_inference, algorithm,
      plan.desc(key.backward ? output : arrays[0]), plan.desc(result), 1, attributes.get()));
  PrimitiveDesc forward(made);
  if (!key.backward) {
    plan.add_primitive(forward, {{DNNL_ARG_SRC, arrays[0]}, {DNNL_ARG_DST, result}});
    return entry;
  }
  DNNL_CHECK(dnnl_softmax_backward_primitive_desc_create(&made, cpu_engine(), algorithm, plan.desc(output),
                                                         plan.desc(arrays[0]), plan.desc(result), 1, forward.get(),
                                                         attributes.get()));
  PrimitiveDesc backward(made);
  plan.add_primitive(backward,
                     {{DNNL_ARG_DIFF_DST, arrays[0]}, {DNNL_ARG_DST, result}, {DNNL_ARG_DIFF_SRC, output}});
  return entry;
}

// params: first axis, last axis + 1, whether it is the logarithm.
void run(const dnnops_context *context, const int64_t *params, const dnnops_tensor *inputs, int input_count,
         dnnops_tensor &output) {
  for (int64_t i = 0; i < output.ndim; ++i)
    if (output.shape[i] == 0) return;
  Key key;
  std::memset(&key, 0, sizeof key);
  key.log = params[2];
  key.threads = thread_count();
  key.backward = input_count == 2;
  const int64_t bounds[4] = {0, params[0], params[1], output.ndim};
  size_t bytes = 0, size = item_size(output.dtype);
  for (int64_t i = 0; i < output.ndim; ++i) size *= output.shape[i];
  size = (size + 63) / 64 * 64;
  bool packed[2] = {false, false};
  for (int i = 0; i < input_count; ++i) {
    packed[i] = !strided_view(bounds, inputs[i], key.views[i]);
    if (packed[i]) {
      key.views[i] = contiguous_view(bounds, inputs[i]);
      bytes += size;
    }
  }
  key.views[input_count] = contiguous_view(bounds, output);
  with_entry(context, cache(), key, [&] { return make_entry(key); }, [&](PlanEntry &entry, PlanRun &plan_run) {
    const size_t plan_bytes = (entry.plan.scratch_bytes() + 63) / 64 * 64;
    char *scratch = thread_scratch(plan_bytes + bytes), *next = scratch + plan_bytes;
    void *data[2] = {nullptr, nullptr};
    for (int i = 0; i < input_count; ++i) {
      data[i] = inputs[i].data;
      if (!packed[i]) continue;
      pack(inputs[i], data[i] = next, false);
      next += size;
    }
    if (input_count == 1) {
      plan_run({data[0], output.data}, scratch);
      spread_nan(key.views[0], static_cast<const float *>(data[0]), key.views[1], static_cast<float *>(output.data));
    } else
      plan_run({data[0], data[1], output.data}, scratch);
  });
}

void shape(const int64_t *params, const dnnops_tensor *inputs, int input_count, dnnops_tensor &output) {
  dnnl_dtype(inputs[0].dtype);
  if (params[0] < 0 || params[1] > inputs[0].ndim || params[0] >= params[1])
    fail(DNNOPS_VALUE_ERROR, "axes %lld to %lld of an array of %lld dimensions", (long long)params[0],
         (long long)params[1] - 1, (long long)inputs[0].ndim);
  for (int i = 1; i < input_count; ++i)
    if (inputs[i].dtype != inputs[0].dtype || !same_shape(inputs[i], inputs[0]))
      fail(DNNOPS_VALUE_ERROR, "the output's gradient and the output have to have one shape and dtype");
  set_output(output, inputs[0]);
}

}  // namespace
}  // namespace dnnops

using namespace dnnops;

DNNOPS_EXPORT int dnnops_onednn_softmax_shape(const dnnops_context *, const int64_t *params,
                                              const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnSoftmax", inputs, 1, [&] { shape(params, inputs, 1, outputs[0]); });
}
DNNOPS_EXPORT int dnnops_onednn_softmax(const dnnops_context *context, const int64_t *params,
                                        const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnSoftmax", inputs, 1, [&] { run(context, params, inputs, 1, outputs[0]); });
}

// Inputs: the output's gradient, the output.
DNNOPS_EXPORT int dnnops_onednn_softmax_grad_shape(const dnnops_context *, const int64_t *params,
                                                   const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnSoftmaxGrad", inputs, 2, [&] { shape(params, inputs, 2, outputs[0]); });
}
DNNOPS_EXPORT int dnnops_onednn_softmax_grad(const dnnops_context *context, const int64_t *params,
                                             const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnSoftmaxGrad", inputs, 2, [&] { run(context, params, inputs, 2, outputs[0]); });
}

DNNOPS_EXPORT_CACHE(dnnops_onednn_softmax, cache())
