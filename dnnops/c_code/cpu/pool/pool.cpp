// Pooling and its gradients. oneDNN computes float32 averages, forward and backward. Loops compute float64,
// sums and maxima (oneDNN loses NaNs in maxima and needs a workspace for their gradient), windows that cover the
// whole image, which oneDNN 3.2 adds up one element after the other, and averages in wide rows.
#include <cstring>

#include "../../common/op.hpp"
#include "../base/huge_pages.hpp"
#include "../base/caches.hpp"
#include "../base/node_state.hpp"
#include "pool_forward.hpp"
#include "pool_loops.hpp"

namespace dnnops {
namespace {

struct Key {
  PoolProblem problem;
  int64_t backward;
  int64_t strides[5];  // of the input, in elements; zeros if it must be packed first
  int64_t threads;
};
bool operator==(const Key &a, const Key &b) { return std::memcmp(&a, &b, sizeof a) == 0; }

struct Entry {
  Plan plan;
  bool packed = false, is_slow = false;  // slow: a reference implementation
  size_t pack_offset = 0;
};

LruCache<Key, Entry, WordHash<Key>> &cache() { return entry_cache<Key, Entry>(); }

// The end padding that gives oneDNN's output the expected size.
void end_padding(const PoolProblem &problem, int64_t *padding) {
  for (int64_t i = 0; i < problem.spatial_ndim; ++i)
    padding[i] = std::max<int64_t>(0, (problem.top[2 + i] - 1) * problem.stride[i] + problem.window[i] -
                                          problem.image[2 + i] - problem.pad[i]);
}

bool onednn_can(const PoolProblem &problem, int64_t dtype) {
  // oneDNN loses NaNs in maxima and does not support sums.
  if (dtype != DNNOPS_FLOAT32 || problem.mode == POOL_SUM || problem.mode == POOL_MAX) return false;
  // oneDNN adds up windows that cover the whole image one element after the other.
  if (element_count(problem.top + 2, problem.spatial_ndim) == 1) return false;
  int64_t padding[3];
  end_padding(problem, padding);
  for (int64_t i = 0; i < problem.spatial_ndim; ++i) {
    if (padding[i] >= problem.window[i]) return false;
    // The average of a partial window counts only the part inside the padded image.
    if (problem.mode == POOL_AVERAGE_INC_PAD && padding[i] > problem.pad[i]) return false;
  }
  return true;
}

// For the averages of onednn_can(), which reads arrays with any strides. Its vectors hold channels; those of the loops
// hold pixels of a row.
bool loops_are_faster(const PoolProblem &problem, const dnnops_tensor &in, bool backward) {
  constexpr int64_t kWideRow = 24, kFewChannels = 7, kFewChannelsBackward = 2;
  if (!is_contiguous(in)) return false;
  const PoolAxes axes(problem);
  if (axes.is_row() || problem.image[1] <= (backward ? kFewChannelsBackward : kFewChannels)) return true;
  return !backward && axes.top[2] >= kWideRow && axes.window[0] == 1 && axes.window[1] <= 3 &&
         with_usual_window(axes, [](auto, auto) {});
}

dnnl_alg_kind_t algorithm(const PoolProblem &problem) {
  return problem.mode == POOL_AVERAGE_INC_PAD ? dnnl_pooling_avg_include_padding
                                              : dnnl_pooling_avg_exclude_padding;
}

std::shared_ptr<Entry> make_entry(const Key &key) {
  const PoolProblem &problem = key.problem;
  const int64_t ndim = problem.spatial_ndim + 2;
  auto entry = std::make_shared<Entry>();
  Plan &plan = entry->plan;
  // Forward reads the image and writes the top; backward reads the gradient with respect to the top.
  const int64_t *in_shape = key.backward ? problem.top : problem.image;
  const int64_t *out_shape = key.backward ? problem.image : problem.top;
  int64_t in_strides[5], out_strides[5];
  std::copy(key.strides, key.strides + 5, in_strides);
  if (key.strides[0] == 0) {
    contiguous_strides(ndim, in_shape, in_strides);
    entry->packed = true;
    entry->pack_offset = plan.add_bytes(element_count(in_shape, ndim) * sizeof(float));
  }
  contiguous_strides(ndim, out_shape, out_strides);
  int in = plan.add_array(memory_desc(ndim, in_shape, in_strides));
  int out = plan.add_array(memory_desc(ndim, out_shape, out_strides));

  int64_t end[3], no_dilation[3] = {0, 0, 0};
  end_padding(problem, end);
  Attributes attributes = user_scratchpad();
  dnnl_primitive_desc_t made;
  DNNL_CHECK(dnnl_pooling_forward_primitive_desc_create(
      &made, cpu_engine(), key.backward ? dnnl_forward_training : dnnl_forward_inference, algorithm(problem),
      plan.desc(key.backward ? out : in), plan.desc(key.backward ? in : out), problem.stride, problem.window,
      no_dilation, problem.pad, end, attributes.get()));
  PrimitiveDesc forward(made);
  if (!key.backward) {
    entry->is_slow = is_reference(forward.get());
    plan.add_primitive(forward, {{DNNL_ARG_SRC, in}, {DNNL_ARG_DST, out}});
    return entry;
  }
  DNNL_CHECK(dnnl_pooling_backward_primitive_desc_create(&made, cpu_engine(), algorithm(problem), plan.desc(out),
                                                         plan.desc(in), problem.stride, problem.window, no_dilation,
                                                         problem.pad, end, forward.get(), attributes.get()));
  PrimitiveDesc backward(made);
  entry->is_slow = is_reference(backward.get());
  plan.add_primitive(backward, {{DNNL_ARG_DIFF_DST, in}, {DNNL_ARG_DIFF_SRC, out}});
  return entry;
}

// Returns false, and computes nothing, if the loops are faster than what oneDNN has.
bool run_onednn(const dnnops_context &context, const PoolProblem &problem, bool backward, const dnnops_tensor &in,
                dnnops_tensor &out) {
  Key key;
  std::memset(&key, 0, sizeof key);
  key.problem = problem;
  key.backward = backward;
  key.threads = thread_count();
  if (!addressable_strides(in, key.strides)) std::memset(key.strides, 0, sizeof key.strides);
  bool is_done = true;
  with_entry(context, cache(), key, [&] { return make_entry(key); }, [&](Entry &entry, PlanRun &plan_run) {
    is_done = !entry.is_slow;
    if (!is_done) return;
    char *scratch = thread_scratch(entry.plan.scratch_bytes());
    void *data = in.data;
    if (entry.packed) pack(in, data = scratch + entry.pack_offset, false);
    plan_run({data, out.data}, scratch);
  });
  return is_done;
}

// The operands of the loops, as contiguous arrays.
struct Packed {
  const void *data[3];
  Packed(std::initializer_list<const dnnops_tensor *> tensors) {
    size_t bytes = 0;
    for (const dnnops_tensor *tensor : tensors)
      if (!is_contiguous(*tensor)) bytes += size_of(*tensor);
    char *scratch = thread_scratch(bytes);
    int i = 0;
    for (const dnnops_tensor *tensor : tensors) {
      data[i++] = is_contiguous(*tensor) ? tensor->data : scratch;
      if (is_contiguous(*tensor)) continue;
      pack(*tensor, scratch, false);
      scratch += size_of(*tensor);
    }
  }
  static size_t size_of(const dnnops_tensor &tensor) {
    return (element_count(tensor.shape, tensor.ndim) * item_size(tensor.dtype) + 63) / 64 * 64;
  }
};

void expect_shape(const char *name, const dnnops_tensor &tensor, const int64_t *shape, int64_t ndim, int64_t dtype) {
  if (tensor.ndim != ndim || tensor.dtype != dtype || std::memcmp(tensor.shape, shape, ndim * sizeof(int64_t)))
    fail(DNNOPS_VALUE_ERROR, "%s has to be %s%s, got %s", name, dtype_name(dtype), list_of(shape, ndim).c_str(),
         describe(tensor).c_str());
}

// The inputs of each Op are its arrays, which messages describe, then ws, stride and pad.
template <class Params>
PoolProblem problem_of(const OpCall<Params> &call) {
  for_float_dtype(call.inputs[0].dtype, [](auto) {});
  return pool_problem(call.params, call.inputs[0], call.inputs + call.params.input_count());
}

void expect_large(dnnops_tensor &output) {
  prefer_huge_pages(output.data, element_count(output.shape, output.ndim) * item_size(output.dtype));
}

// Arrays: image.
struct PoolParams : PoolWords {
  static const char *op() { return "OneDnnPool"; }
  static int input_count() { return 1; }
};

void shape(const OpCall<PoolParams> &call) {
  set_output(call.outputs[0], call.inputs[0].dtype, problem_of(call).top, call.inputs[0].ndim);
}

void run(const OpCall<PoolParams> &call) {
  const PoolProblem problem = problem_of(call);
  const dnnops_tensor &image = call.inputs[0];
  dnnops_tensor &output = call.outputs[0];
  if (element_count(problem.top, image.ndim) == 0) return;
  expect_large(output);
  if (onednn_can(problem, image.dtype) && !loops_are_faster(problem, image, false) &&
      run_onednn(call.context, problem, false, image, output))
    return;
  const Packed packed{&image};
  for_float_dtype(image.dtype, [&](auto zero) {
    using T = decltype(zero);
    pool_forward(problem, static_cast<const T *>(packed.data[0]), static_cast<T *>(output.data));
  });
}

// Arrays: image, maximum, gradient with respect to the maximum.
struct MaxGradParams : PoolWords {
  static const char *op() { return "OneDnnMaxPoolGrad"; }
  static int input_count() { return 3; }
};

void shape(const OpCall<MaxGradParams> &call) {
  problem_of(call);
  set_output(call.outputs[0], call.inputs[0]);
}

void run(const OpCall<MaxGradParams> &call) {
  const dnnops_tensor *inputs = call.inputs;
  const PoolProblem problem = problem_of(call);
  expect_shape("the maximum", inputs[1], problem.top, inputs[0].ndim, inputs[0].dtype);
  expect_shape("the maximum's gradient", inputs[2], problem.top, inputs[0].ndim, inputs[0].dtype);
  expect_large(call.outputs[0]);
  const Packed packed{&inputs[0], &inputs[1], &inputs[2]};
  for_float_dtype(inputs[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    max_pool_grad(problem, static_cast<const T *>(packed.data[0]), static_cast<const T *>(packed.data[1]),
                  static_cast<const T *>(packed.data[2]), static_cast<T *>(call.outputs[0].data));
  });
}

// Arrays: image, maximum, direction in image space.
struct MaxGradGradParams : PoolWords {
  static const char *op() { return "OneDnnMaxPoolGradGrad"; }
  static int input_count() { return 3; }
};

void shape(const OpCall<MaxGradGradParams> &call) {
  set_output(call.outputs[0], call.inputs[0].dtype, problem_of(call).top, call.inputs[0].ndim);
}

void run(const OpCall<MaxGradGradParams> &call) {
  const dnnops_tensor *inputs = call.inputs;
  const PoolProblem problem = problem_of(call);
  expect_shape("the maximum", inputs[1], problem.top, inputs[0].ndim, inputs[0].dtype);
  expect_shape("the direction", inputs[2], problem.image, inputs[0].ndim, inputs[0].dtype);
  const Packed packed{&inputs[0], &inputs[1], &inputs[2]};
  for_float_dtype(inputs[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    max_pool_grad_grad(problem, static_cast<const T *>(packed.data[0]), static_cast<const T *>(packed.data[1]),
                       static_cast<const T *>(packed.data[2]), static_cast<T *>(call.outputs[0].data));
  });
}

// Arrays: image (only its shape is used), gradient with respect to the output.
struct AverageGradParams : PoolWords {
  static const char *op() { return "OneDnnAveragePoolGrad"; }
  static int input_count() { return 2; }
};

void shape(const OpCall<AverageGradParams> &call) {
  problem_of(call);
  set_output(call.outputs[0], call.inputs[0]);
}

void run(const OpCall<AverageGradParams> &call) {
  const dnnops_tensor &image = call.inputs[0], &gradient = call.inputs[1];
  dnnops_tensor &output = call.outputs[0];
  const PoolProblem problem = problem_of(call);
  expect_shape("the output's gradient", gradient, problem.top, image.ndim, image.dtype);
  if (element_count(problem.image, image.ndim) == 0) return;
  expect_large(output);
  if (onednn_can(problem, image.dtype) && element_count(problem.top, image.ndim) &&
      !loops_are_faster(problem, gradient, true) &&
      run_onednn(call.context, problem, true, gradient, output))
    return;
  const Packed packed{&gradient};
  for_float_dtype(image.dtype, [&](auto zero) {
    using T = decltype(zero);
    average_pool_grad(problem, static_cast<const T *>(packed.data[0]), static_cast<T *>(output.data));
  });
}

}  // namespace

DNNOPS_OP(onednn_pool, PoolParams, shape, run)
DNNOPS_OP(onednn_max_pool_grad, MaxGradParams, shape, run)
DNNOPS_OP(onednn_max_pool_grad_grad, MaxGradGradParams, shape, run)
DNNOPS_OP(onednn_average_pool_grad, AverageGradParams, shape, run)
DNNOPS_EXPORT_CACHE(pool, cache())

}  // namespace dnnops
