// Batch normalization in training, its gradient, and batch normalization by given statistics.
//
// The axes that keep their statistics apart follow each other, so that every array is seen as
// (batch, channel, inner): a statistic is over batch and inner.
//
// Statistics are summed here, in float64, and oneDNN normalizes by them.  Its own ones are sums in
// float32, of which the variance of a million elements keeps three digits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "node_state.hpp"
#include "views.hpp"

namespace dnnops {
namespace {

enum Kind : int64_t { FORWARD = 0, GRAD = 1 };

struct Key {
  View views[2];  // as (batch, channel, inner): of x and, in the gradient, of the output's gradient
  int64_t kind, threads;
};
bool operator==(const Key &a, const Key &b) { return std::memcmp(&a, &b, sizeof a) == 0; }

struct Entry {
  Plan plan;
};

LruCache<Key, Entry, WordHash<Key>> &cache() {
  static auto *plans = new LruCache<Key, Entry, WordHash<Key>>(256);
  return *plans;
}

// params: a bit for each axis that statistics are over; whether there are running averages.
bool is_reduced(const int64_t *params, int64_t axis) { return params[0] >> axis & 1; }

// The axes of batch are [bounds[0], bounds[1]), those of channel and inner follow.
void axis_bounds(const int64_t *params, int64_t ndim, int64_t *bounds) {
  int64_t begin = 0, end = 0;
  for (int64_t i = 0; i < ndim; ++i) {
    if (is_reduced(params, i)) continue;
    if (end == 0)
      begin = i;
    else if (end != i)
      fail(DNNOPS_NOT_SUPPORTED, "axes that have statistics of their own have to be neighbors, %lld and %lld are not",
           (long long)end - 1, (long long)i);
    end = i + 1;
  }
  bounds[0] = 0, bounds[1] = begin, bounds[2] = end, bounds[3] = ndim;
}

// -- statistics --------------------------------------------------------------------------------

struct Statistics {
  std::vector<double> mean, variance;
};

// By one pass: the sums of what a channel's values differ from its first one, and of the squares of that, in as many
// slices as there are threads, or with channels in blocks where that is too few.  Rounding depends on the number of
// threads only.
Statistics take_statistics(const View &view, const float *data) {
  const int64_t batch = view.shape[0], channels = view.shape[1], inner = view.shape[2];
  const int64_t threads = batch * channels * inner > 16384 ? thread_count() : 1;
  // Along whichever axis is dense: inner, or else the channels.
  const bool by_rows = view.strides[2] == 1 && inner > 1;
  constexpr int64_t kRow = 4096;
  const int64_t pieces = by_rows ? (inner + kRow - 1) / kRow : inner, rows = batch * pieces;
  const int64_t slices = std::min(rows, threads), blocks = std::min(channels, (threads + slices - 1) / slices);
  std::vector<double> sums(slices * channels), squares(slices * channels), origin(channels);
  const int64_t step = view.strides[1];
  for (int64_t c = 0; c < channels; ++c) origin[c] = data[c * step];
#pragma omp parallel for if (threads > 1)
  for (int64_t task = 0; task < slices * blocks; ++task) {
    const int64_t slice = task / blocks, block = task % blocks;
    const int64_t first = channels * block / blocks, last = channels * (block + 1) / blocks;
    double *sum = sums.data() + slice * channels, *square = squares.data() + slice * channels;
    for (int64_t row = rows * slice / slices; row < rows * (slice + 1) / slices; ++row) {
      const float *start = data + row / pieces * view.strides[0];
      if (by_rows) {
        const int64_t begin = row % pieces * kRow, end = std::min(inner, begin + kRow);
        for (int64_t c = first; c < last; ++c) {
          const float *values = start + c * step;
          const double from = origin[c];
          double total = 0, total_square = 0;
#pragma omp simd reduction(+ : total, total_square)
          for (int64_t i = begin; i < end; ++i) {
            const double away = values[i] - from;
            total += away;
            total_square += away * away;
          }
          sum[c] += total;
          square[c] += total_square;
        }
      } else {
        const float *values = start + row % pieces * view.strides[2];
        for (int64_t c = first; c < last; ++c) {
          const double away = values[c * step] - origin[c];
          sum[c] += away;
          square[c] += away * away;
        }
      }
    }
  }
  const double count = (double)(batch * inner);
  Statistics found;
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0, square = 0;
    for (int64_t slice = 0; slice < slices; ++slice) {
      sum += sums[slice * channels + c];
      square += squares[slice * channels + c];
    }
    const double mean = sum / count, variance = square / count - mean * mean;
    found.mean.push_back(origin[c] + mean);
    found.variance.push_back(variance < 0 ? 0 : variance);  // NaN stays
  }
  return found;
}

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

// Arrays of the plans.  Forward: x, out, mean, variance, scale, bias.  Gradient: x, out's gradient,
// mean, variance, scale, the gradients of x, scale and bias.
std::shared_ptr<Entry> make_entry(const Key &key) {
  auto entry = std::make_shared<Entry>();
  Plan &plan = entry->plan;
  const bool grad = key.kind == GRAD;
  const int64_t *shape = key.views[0].shape, channels = shape[1], one = 1;
  int64_t dense[3];
  contiguous_strides(3, shape, dense);
  const auto add_vector = [&] { return plan.add_array(memory_desc(1, &channels, &one)); };
  const int x = plan.add_array(image_desc(shape, key.views[0].strides));
  const int top = plan.add_array(image_desc(shape, grad ? key.views[1].strides : dense));
  const int mean = add_vector(), variance = add_vector(), scale = add_vector();
  const MemoryDesc contiguous = image_desc(shape, dense);

  // What epsilon is added to is added up before.
  const float epsilon = 0;
  const unsigned flags = dnnl_use_scale | dnnl_use_shift | (grad ? 0u : dnnl_use_global_stats);
  Attributes attributes = user_scratchpad();
  dnnl_primitive_desc_t made;
  DNNL_CHECK(dnnl_batch_normalization_forward_primitive_desc_create(
      &made, cpu_engine(), grad ? dnnl_forward_training : dnnl_forward_inference, contiguous.get(),
      contiguous.get(), epsilon, flags, attributes.get()));
  PrimitiveDesc forward(made);
  const int dense_x = plan.reordered_input(x, contiguous.get());
  if (!grad) {
    const int bias = add_vector();
    plan.add_primitive(forward, {{DNNL_ARG_SRC, dense_x},
                                 {DNNL_ARG_DST, top},
                                 {DNNL_ARG_MEAN, mean},
                                 {DNNL_ARG_VARIANCE, variance},
                                 {DNNL_ARG_SCALE, scale},
                                 {DNNL_ARG_SHIFT, bias}});
    return entry;
  }
  DNNL_CHECK(dnnl_batch_normalization_backward_primitive_desc_create(
      &made, cpu_engine(), dnnl_backward, contiguous.get(), contiguous.get(), contiguous.get(), epsilon, flags,
      forward.get(), attributes.get()));
  PrimitiveDesc backward(made);
  const int dense_top = plan.reordered_input(top, contiguous.get());
  const int dx = plan.add_array(image_desc(shape, dense)), dscale = add_vector(), dbias = add_vector();
  plan.add_primitive(backward, {{DNNL_ARG_SRC, dense_x},
                                {DNNL_ARG_DIFF_DST, dense_top},
                                {DNNL_ARG_MEAN, mean},
                                {DNNL_ARG_VARIANCE, variance},
                                {DNNL_ARG_SCALE, scale},
                                {DNNL_ARG_DIFF_SRC, dx},
                                {DNNL_ARG_DIFF_SCALE, dscale},
                                {DNNL_ARG_DIFF_SHIFT, dbias}});
  return entry;
}

// What a plan runs on.
struct Operands {
  const View *views;  // of the images
  void *data[5];      // the inputs, contiguous but for images that are as views say
  float *spare[2];    // memory for two parameters
  char *scratch;      // the plan's
};

// Calls use(plan_run, operands) with the plan of a kind for inputs, of which image_count images come
// first and the others up to count are parameters.
template <class Use>
void with_plan(const dnnops_context *context, const int64_t *params, Kind kind, const dnnops_tensor *inputs,
               int image_count, int count, Use &&use) {
  int64_t bounds[4];
  axis_bounds(params, inputs[0].ndim, bounds);
  Key key;
  std::memset(&key, 0, sizeof key);
  key.kind = kind;
  key.threads = thread_count();
  const auto padded = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
  const auto size = [&](int i) { return padded(element_count(inputs[i].shape, inputs[i].ndim) * sizeof(float)); };
  bool packed[5];
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    if (i < image_count) {
      packed[i] = !strided_view(bounds, inputs[i], key.views[i]);
      if (packed[i]) key.views[i] = contiguous_view(bounds, inputs[i]);
    } else {
      packed[i] = !is_contiguous(inputs[i]);
    }
    if (packed[i]) bytes += size(i);
  }
  const size_t spare = padded(key.views[0].shape[1] * sizeof(float));
  with_entry(context, cache(), key, [&] { return make_entry(key); }, [&](Entry &entry, PlanRun &plan_run) {
    const size_t plan_bytes = padded(entry.plan.scratch_bytes());
    Operands operands;
    operands.views = key.views;
    operands.scratch = thread_scratch(plan_bytes + 2 * spare + bytes);
    char *next = operands.scratch + plan_bytes;
    for (float *&memory : operands.spare) {
      memory = reinterpret_cast<float *>(next);
      next += spare;
    }
    for (int i = 0; i < count; ++i) {
      operands.data[i] = inputs[i].data;
      if (!packed[i]) continue;
      pack(inputs[i], operands.data[i] = next, false);
      next += size(i);
    }
    use(plan_run, operands);
  });
}

// -- the Ops -----------------------------------------------------------------------------------

float *floats(void *data) { return static_cast<float *>(data); }

// How many elements each statistic is over.
int64_t sample_count(const int64_t *params, const dnnops_tensor &x) {
  int64_t count = 1;
  for (int64_t i = 0; i < x.ndim; ++i)
    if (is_reduced(params, i)) count *= x.shape[i];
  return count;
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
  with_plan(context, params, FORWARD, inputs, 1, 3, [&](PlanRun &plan_run, const Operands &operands) {
    const Statistics found = take_statistics(operands.views[0], floats(operands.data[0]));
    const float *scale = floats(operands.data[1]), *bias = floats(operands.data[2]);
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
  with_plan(context, params, GRAD, inputs, 2, 5, [&](PlanRun &plan_run, const Operands &operands) {
    const float *invstd = floats(operands.data[4]);
    float *variance = operands.spare[0];
    for (int64_t c = 0; c < channels; ++c) variance[c] = (float)(1 / ((double)invstd[c] * invstd[c]));
    plan_run({operands.data[0], operands.data[1], operands.data[3], variance, operands.data[2], outputs[0].data,
              outputs[1].data, outputs[2].data},
             operands.scratch);
  });
}

// Inputs: x, scale, bias, mean, variance, epsilon.
void infer(const dnnops_context *context, const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  if (element_count(outputs[0].shape, outputs[0].ndim) == 0) return;
  const int64_t channels = element_count(inputs[1].shape, inputs[1].ndim);
  const double epsilon = read_scalar(inputs[5]);
  with_plan(context, params, FORWARD, inputs, 1, 5, [&](PlanRun &plan_run, const Operands &operands) {
    const float *given = floats(operands.data[4]);
    float *variance = operands.spare[0];
    for (int64_t c = 0; c < channels; ++c) variance[c] = (float)(given[c] + epsilon);
    plan_run({operands.data[0], outputs[0].data, operands.data[3], variance, operands.data[1], operands.data[2]},
             operands.scratch);
  });
}

// -- checks of operands, shapes of outputs -----------------------------------------------------

void check_image(const int64_t *params, const dnnops_tensor &x) {
  int64_t bounds[4];
  dnnl_dtype(x.dtype);
  if (x.ndim < 1 || params[0] <= 0 || params[0] >> x.ndim)
    fail(DNNOPS_VALUE_ERROR, "an array of %lld dimensions does not have the axes that statistics are over",
         (long long)x.ndim);
  axis_bounds(params, x.ndim, bounds);
}

void check_parameter(const char *name, const int64_t *params, const dnnops_tensor &x, const dnnops_tensor &parameter) {
  dnnl_dtype(parameter.dtype);
  bool fits = parameter.ndim == x.ndim;
  for (int64_t i = 0; fits && i < x.ndim; ++i) fits = parameter.shape[i] == (is_reduced(params, i) ? 1 : x.shape[i]);
  if (fits) return;
  int64_t expected[DNNOPS_MAX_NDIM];
  for (int64_t i = 0; i < x.ndim; ++i) expected[i] = is_reduced(params, i) ? 1 : x.shape[i];
  fail(DNNOPS_VALUE_ERROR, "%s has shape %s, expected %s for inputs of shape %s", name,
       list_of(parameter.shape, parameter.ndim).c_str(), list_of(expected, x.ndim).c_str(),
       list_of(x.shape, x.ndim).c_str());
}

void check_scalar(const char *name, const dnnops_tensor &scalar) {
  if (scalar.dtype != DNNOPS_FLOAT64 || scalar.ndim != 0) fail(DNNOPS_TYPE_ERROR, "%s has to be a float64 scalar", name);
}

void same_shape(const dnnops_tensor &from, dnnops_tensor &to) {
  to.dtype = from.dtype;
  to.ndim = from.ndim;
  std::memcpy(to.shape, from.shape, from.ndim * sizeof(int64_t));
}

void train_shape(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  check_image(params, inputs[0]);
  check_parameter("scale", params, inputs[0], inputs[1]);
  check_parameter("bias", params, inputs[0], inputs[2]);
  check_scalar("epsilon", inputs[3]);
  if (params[1]) {
    check_scalar("the factor of running averages", inputs[4]);
    check_parameter("the running mean", params, inputs[0], inputs[5]);
    check_parameter("the running variance", params, inputs[0], inputs[6]);
  }
  if (sample_count(params, inputs[0]) == 0)
    fail(DNNOPS_VALUE_ERROR, "mean and variance over no elements: inputs have shape %s",
         list_of(inputs[0].shape, inputs[0].ndim).c_str());
  same_shape(inputs[0], outputs[0]);
  for (int i = 1; i < (params[1] ? 5 : 3); ++i) same_shape(inputs[1], outputs[i]);
}

void train_grad_shape(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  check_image(params, inputs[0]);
  dnnl_dtype(inputs[1].dtype);
  if (inputs[1].ndim != inputs[0].ndim ||
      std::memcmp(inputs[1].shape, inputs[0].shape, inputs[0].ndim * sizeof(int64_t)))
    fail(DNNOPS_VALUE_ERROR, "the output's gradient has shape %s, expected that of the inputs, %s",
         list_of(inputs[1].shape, inputs[1].ndim).c_str(), list_of(inputs[0].shape, inputs[0].ndim).c_str());
  const char *const names[] = {"scale", "mean", "invstd"};
  for (int i = 0; i < 3; ++i) check_parameter(names[i], params, inputs[0], inputs[2 + i]);
  same_shape(inputs[0], outputs[0]);
  same_shape(inputs[2], outputs[1]);
  same_shape(inputs[2], outputs[2]);
}

void infer_shape(const int64_t *params, const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  check_image(params, inputs[0]);
  const char *const names[] = {"scale", "bias", "mean", "variance"};
  for (int i = 0; i < 4; ++i) check_parameter(names[i], params, inputs[0], inputs[1 + i]);
  check_scalar("epsilon", inputs[5]);
  same_shape(inputs[0], outputs[0]);
}

}  // namespace
}  // namespace dnnops

using namespace dnnops;

DNNOPS_EXPORT int dnnops_onednn_batchnorm_train_shape(const dnnops_context *, const int64_t *params,
                                                      const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrain", inputs, params[1] ? 7 : 4, [&] { train_shape(params, inputs, outputs); });
}
DNNOPS_EXPORT int dnnops_onednn_batchnorm_train(const dnnops_context *context, const int64_t *params,
                                                const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrain", inputs, params[1] ? 7 : 4, [&] { train(context, params, inputs, outputs); });
}

DNNOPS_EXPORT int dnnops_onednn_batchnorm_train_grad_shape(const dnnops_context *, const int64_t *params,
                                                           const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrainGrad", inputs, 5, [&] { train_grad_shape(params, inputs, outputs); });
}
DNNOPS_EXPORT int dnnops_onednn_batchnorm_train_grad(const dnnops_context *context, const int64_t *params,
                                                     const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormTrainGrad", inputs, 5, [&] { train_grad(context, params, inputs, outputs); });
}

DNNOPS_EXPORT int dnnops_onednn_batchnorm_inference_shape(const dnnops_context *, const int64_t *params,
                                                          const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormInference", inputs, 6, [&] { infer_shape(params, inputs, outputs); });
}
DNNOPS_EXPORT int dnnops_onednn_batchnorm_inference(const dnnops_context *context, const int64_t *params,
                                                    const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnBatchNormInference", inputs, 6, [&] { infer(context, params, inputs, outputs); });
}

DNNOPS_EXPORT_CACHE(dnnops_onednn_batchnorm, cache())
