// Batch normalization in training, its gradient, and batch normalization by given statistics.
//
// The axes that keep their statistics apart follow each other, so that every array is seen as
// (batch, channel, inner): a statistic is over batch and inner.
//
// All sums are made here, in float64, and oneDNN normalizes by them.  Its own ones are sums in
// float32, of which the variance of a million elements keeps three digits.
#include <cmath>
#include <cstring>
#include <vector>

#include "../common/batchnorm_problem.hpp"
#include "batchnorm_loops.hpp"
#include "node_state.hpp"

namespace dnnops {
namespace {

struct Key {
  View view;  // of x, as (batch, channel, inner)
  int64_t threads;
};
bool operator==(const Key &a, const Key &b) { return std::memcmp(&a, &b, sizeof a) == 0; }

LruCache<Key, PlanEntry, WordHash<Key>> &cache() { return entry_cache<Key, PlanEntry>(); }

// params: a bit for each axis that statistics are over; whether there are running averages.

// -- plans -------------------------------------------------------------------------------------

double read_scalar(const dnnops_tensor &tensor) { return *static_cast<const double *>(tensor.data); }

// Without an inner axis the batch takes its place: so oneDNN sees the channels last, and goes along
// them instead of down each one.
MemoryDesc image_desc(const int64_t *shape, const int64_t *strides) {
  if (shape[2] != 1) return memory_desc(3, shape, strides);
  const int64_t swapped_shape[3] = {1, shape[1], shape[0]};
  const int64_t swapped_strides[3] = {shape[0] * strides[0], strides[1], strides[0]};
  return memory_desc(3, swapped_shape, swapped_strides);
}

// Arrays of the plan: x, out, mean, variance, scale, bias.
std::shared_ptr<PlanEntry> make_entry(const Key &key) {
  auto entry = std::make_shared<PlanEntry>();
  Plan &plan = entry->plan;
  const int64_t *shape = key.view.shape, channels = shape[1], one = 1;
  int64_t dense[3];
  contiguous_strides(3, shape, dense);
  const auto add_vector = [&] { return plan.add_array(memory_desc(1, &channels, &one)); };
  const MemoryDesc contiguous = image_desc(shape, dense);
  const int x = plan.add_array(image_desc(shape, key.view.strides)), out = plan.add_array(image_desc(shape, dense));
  const int mean = add_vector(), variance = add_vector(), scale = add_vector(), bias = add_vector();
  // What epsilon is added to is added up before.
  const float epsilon = 0;
  Attributes attributes = user_scratchpad();
  dnnl_primitive_desc_t made;
  DNNL_CHECK(dnnl_batch_normalization_forward_primitive_desc_create(
      &made, cpu_engine(), dnnl_forward_inference, contiguous.get(), contiguous.get(), epsilon,
      dnnl_use_scale | dnnl_use_shift | dnnl_use_global_stats, attributes.get()));
  PrimitiveDesc forward(made);
  plan.add_primitive(forward, {{DNNL_ARG_SRC, plan.reordered_input(x, contiguous.get())},
                               {DNNL_ARG_DST, out},
                               {DNNL_ARG_MEAN, mean},
                               {DNNL_ARG_VARIANCE, variance},
                               {DNNL_ARG_SCALE, scale},
                               {DNNL_ARG_SHIFT, bias}});
  return entry;
}

// What the Ops work on: images as their views say, parameters contiguous.
struct Operands {
  View views[2];
  float *data[5];
  float *spare[2];  // memory for two parameters
  char *scratch;    // the plan's
};

size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Packs what can't be used as it lies, of inputs of which image_count images come first and the others up to count
// are parameters.
class PackedInputs {
 public:
  PackedInputs(const int64_t *params, const dnnops_tensor *inputs, int image_count, int count)
      : inputs_(inputs), count_(count) {
    int64_t bounds[4];
    axis_bounds(params, inputs[0].ndim, bounds);
    for (int i = 0; i < count; ++i) {
      if (i < image_count) {
        is_packed_[i] = !strided_view(bounds, inputs[i], operands.views[i]);
        if (is_packed_[i]) operands.views[i] = contiguous_view(bounds, inputs[i]);
      } else {
        is_packed_[i] = !is_contiguous(inputs[i]);
      }
    }
  }

  // With so many bytes of scratch memory for a plan.
  const Operands &pack_all(size_t plan_bytes) {
    const size_t spare = padded(operands.views[0].shape[1] * sizeof(float));
    size_t bytes = padded(plan_bytes) + 2 * spare;
    for (int i = 0; i < count_; ++i) bytes += is_packed_[i] ? size(i) : 0;
    operands.scratch = thread_scratch(bytes);
    char *next = operands.scratch + padded(plan_bytes);
    for (float *&memory : operands.spare) {
      memory = reinterpret_cast<float *>(next);
      next += spare;
    }
    for (int i = 0; i < count_; ++i) {
      operands.data[i] = static_cast<float *>(inputs_[i].data);
      if (!is_packed_[i]) continue;
      pack(inputs_[i], next, false);
      operands.data[i] = reinterpret_cast<float *>(next);
      next += size(i);
    }
    return operands;
  }

  Operands operands;

 private:
  size_t size(int i) const { return padded(element_count(inputs_[i].shape, inputs_[i].ndim) * sizeof(float)); }

  const dnnops_tensor *inputs_;
  int count_;
  bool is_packed_[5];
};

// Calls use(plan_run, operands) with the plan that normalizes the first input.
template <class Use>
void with_plan(const dnnops_context *context, const int64_t *params, const dnnops_tensor *inputs, int count, Use &&use) {
  PackedInputs packed(params, inputs, 1, count);
  Key key;
  std::memset(&key, 0, sizeof key);
  key.view = packed.operands.views[0];
  key.threads = thread_count();
  with_entry(context, cache(), key, [&] { return make_entry(key); }, [&](PlanEntry &entry, PlanRun &plan_run) {
    use(plan_run, packed.pack_all(entry.plan.scratch_bytes()));
  });
}

// -- the Ops -----------------------------------------------------------------------------------

float *floats(void *data) { return static_cast<float *>(data); }

void check_dtypes(const dnnops_tensor &x, const dnnops_tensor &other) {
  dnnl_dtype(x.dtype);
  dnnl_dtype(other.dtype);
}

// next = now * (1 - factor) + values * weight * factor, now having any strides.
void update_average(const dnnops_tensor &now, const std::vector<double> &values, double weight, double factor,
                    float *next) {
  pack(now, next, false);
  for (size_t i = 0; i < values.size(); ++i)
    next[i] = (float)(next[i] * (1 - factor) + values[i] * weight * factor);
}

// Inputs: x, scale, bias, epsilon and, with running averages, factor, their mean and variance.
void train(const dnnops_context *context, const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  const int64_t channels = element_count(outputs[1].shape, outputs[1].ndim);
  if (channels == 0) return;
  const double epsilon = read_scalar(inputs[3]);
  with_plan(context, params, inputs, 3, [&](PlanRun &plan_run, const Operands &operands) {
    const Statistics found = take_statistics(operands.views[0], operands.data[0]);
    const float *scale = operands.data[1], *bias = operands.data[2];
    float *mean = floats(outputs[1].data), *invstd = floats(outputs[2].data);
    float *variance = operands.spare[0], *shift = operands.spare[1];
    for (int64_t c = 0; c < channels; ++c) {
      const double inverse = 1 / std::sqrt(found.variance[c] + epsilon);
      mean[c] = (float)found.mean[c];
      invstd[c] = (float)inverse;
      variance[c] = (float)(found.variance[c] + epsilon);
      // What rounding took from a mean that is large beside the deviation.
      shift[c] = (float)(bias[c] + (mean[c] - found.mean[c]) * inverse * scale[c]);
    }
    plan_run({operands.data[0], outputs[0].data, mean, variance, operands.data[1], shift}, operands.scratch);
    if (!params[1]) return;
    const double factor = read_scalar(inputs[4]), samples = (double)sample_count(params, inputs[0]);
    // The variance of one sample is no estimate that a factor could make unbiased.
    const double unbiased = samples > 1 ? samples / (samples - 1) : 1;
    update_average(inputs[5], found.mean, 1, factor, floats(outputs[3].data));
    update_average(inputs[6], found.variance, unbiased, factor, floats(outputs[4].data));
  });
}

// Inputs: x, out's gradient, scale, mean, invstd.  Outputs: the gradients of x, scale and bias.
void train_grad(const dnnops_context *context, const int64_t *params, const dnnops_tensor *inputs,
                dnnops_tensor *outputs) {
  const int64_t channels = element_count(outputs[1].shape, outputs[1].ndim);
  if (channels == 0) return;
  if (sample_count(params, inputs[0]) == 0) {  // sums over nothing
    for (int i = 1; i < 3; ++i) std::memset(outputs[i].data, 0, channels * sizeof(float));
    return;
  }
  PackedInputs packed(params, inputs, 2, 5);
  const Operands &operands = packed.pack_all(0);
  const float *const *data = operands.data;
  normalization_gradient({operands.views[0], operands.views[1], data[0], data[1], data[2], data[3], data[4]},
                         floats(outputs[0].data), floats(outputs[1].data), floats(outputs[2].data));
}

// Inputs: x, scale, bias, mean, variance, epsilon.
void infer(const dnnops_context *context, const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  if (element_count(outputs[0].shape, outputs[0].ndim) == 0) return;
  const int64_t channels = element_count(inputs[1].shape, inputs[1].ndim);
  const double epsilon = read_scalar(inputs[5]);
  with_plan(context, params, inputs, 5, [&](PlanRun &plan_run, const Operands &operands) {
    const float *given = operands.data[4];
    float *variance = operands.spare[0];
    for (int64_t c = 0; c < channels; ++c) variance[c] = (float)(given[c] + epsilon);
    plan_run({operands.data[0], outputs[0].data, operands.data[3], variance, operands.data[1], operands.data[2]},
             operands.scratch);
  });
}

}  // namespace
}  // namespace dnnops

using namespace dnnops;

DNNOPS_EXPORT int dnnops_onednn_batchnorm_train_shape(const dnnops_context *, const int64_t *params,
                                                      const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrain", inputs, params[1] ? 7 : 4, [&] { batchnorm_train_shape(params, inputs, outputs, check_dtypes); });
}
DNNOPS_EXPORT int dnnops_onednn_batchnorm_train(const dnnops_context *context, const int64_t *params,
                                                const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrain", inputs, params[1] ? 7 : 4, [&] { train(context, params, inputs, outputs); });
}

DNNOPS_EXPORT int dnnops_onednn_batchnorm_train_grad_shape(const dnnops_context *, const int64_t *params,
                                                           const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrainGrad", inputs, 5, [&] { batchnorm_gradient_shape(params, inputs, outputs, check_dtypes); });
}
DNNOPS_EXPORT int dnnops_onednn_batchnorm_train_grad(const dnnops_context *context, const int64_t *params,
                                                     const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrainGrad", inputs, 5, [&] { train_grad(context, params, inputs, outputs); });
}

DNNOPS_EXPORT int dnnops_onednn_batchnorm_inference_shape(const dnnops_context *, const int64_t *params,
                                                          const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormInference", inputs, 6, [&] { batchnorm_inference_shape(params, inputs, outputs, check_dtypes); });
}
DNNOPS_EXPORT int dnnops_onednn_batchnorm_inference(const dnnops_context *context, const int64_t *params,
                                                    const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormInference", inputs, 6, [&] { infer(context, params, inputs, outputs); });
}

DNNOPS_EXPORT_CACHE(dnnops_onednn_batchnorm, cache())
