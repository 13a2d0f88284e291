// Pooling and its gradients. oneDNN computes float32 averages, forward and backward. Loops compute float64,
// sums and maxima (oneDNN loses NaNs in maxima and needs a workspace for their gradient), and windows that
// cover the whole image, which oneDNN 3.2 adds up one element after the other.
#include <cstring>

#include "../base/huge_pages.hpp"
#include "../base/node_state.hpp"
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
  bool packed = false;
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
  // For such gradients, oneDNN only has its reference implementation.
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
    plan.add_primitive(forward, {{DNNL_ARG_SRC, in}, {DNNL_ARG_DST, out}});
    return entry;
  }
  DNNL_CHECK(dnnl_pooling_backward_primitive_desc_create(&made, cpu_engine(), algorithm(problem), plan.desc(out),
                                                         plan.desc(in), problem.stride, problem.window, no_dilation,
                                                         problem.pad, end, forward.get(), attributes.get()));
  PrimitiveDesc backward(made);
  plan.add_primitive(backward, {{DNNL_ARG_DIFF_DST, in}, {DNNL_ARG_DIFF_SRC, out}});
  return entry;
}

void run_onednn(const dnnops_context *context, const PoolProblem &problem, bool backward, const dnnops_tensor &in,
                dnnops_tensor &out) {
  Key key;
  std::memset(&key, 0, sizeof key);
  key.problem = problem;
  key.backward = backward;
  key.threads = thread_count();
  if (!addressable_strides(in, key.strides)) std::memset(key.strides, 0, sizeof key.strides);
  with_entry(context, cache(), key, [&] { return make_entry(key); }, [&](Entry &entry, PlanRun &plan_run) {
    char *scratch = thread_scratch(entry.plan.scratch_bytes());
    void *data = in.data;
    if (entry.packed) pack(in, data = scratch + entry.pack_offset, false);
    plan_run({data, out.data}, scratch);
  });
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

// The parameters of all pooling Ops are spatial_ndim, mode, ignore_border; their operands end with ws, stride and pad.
PoolProblem problem_of(const int64_t *params, const dnnops_tensor *inputs, int arrays) {
  if (inputs[0].dtype != DNNOPS_FLOAT32 && inputs[0].dtype != DNNOPS_FLOAT64)
    fail(DNNOPS_TYPE_ERROR, "expected float32 or float64, got %s", dtype_name(inputs[0].dtype));
  return pool_problem(params, inputs[0], inputs[arrays], inputs[arrays + 1], inputs[arrays + 2]);
}

void expect_large(dnnops_tensor &output) {
  prefer_huge_pages(output.data, element_count(output.shape, output.ndim) * item_size(output.dtype));
}

// Calls loops(T{}) with the element type of a checked dtype.
template <class Loops>
void for_dtype(int64_t dtype, Loops &&loops) {
  if (dtype == DNNOPS_FLOAT32)
    loops(float{});
  else
    loops(double{});
}

}  // namespace
}  // namespace dnnops

using namespace dnnops;

// Inputs: image, ws, stride, pad.
DNNOPS_EXPORT int dnnops_onednn_pool_shape(const dnnops_context *, const int64_t *params, const dnnops_tensor *inputs,
                                           dnnops_tensor *outputs) {
  return guarded("OneDnnPool", inputs, 1, [&] {
    set_output(outputs[0], inputs[0].dtype, problem_of(params, inputs, 1).top, inputs[0].ndim);
  });
}

DNNOPS_EXPORT int dnnops_onednn_pool(const dnnops_context *context, const int64_t *params,
                                     const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnPool", inputs, 1, [&] {
    const PoolProblem problem = problem_of(params, inputs, 1);
    if (element_count(problem.top, inputs[0].ndim) == 0) return;
    expect_large(outputs[0]);
    if (onednn_can(problem, inputs[0].dtype)) return run_onednn(context, problem, false, inputs[0], outputs[0]);
    const Packed packed{&inputs[0]};
    for_dtype(inputs[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      pool_forward(problem, static_cast<const T *>(packed.data[0]), static_cast<T *>(outputs[0].data));
    });
  });
}

// Inputs: image, maximum, gradient with respect to the maximum, ws, stride, pad.
DNNOPS_EXPORT int dnnops_onednn_max_pool_grad_shape(const dnnops_context *, const int64_t *params,
                                                    const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnMaxPoolGrad", inputs, 3, [&] {
    problem_of(params, inputs, 3);
    set_output(outputs[0], inputs[0]);
  });
}

DNNOPS_EXPORT int dnnops_onednn_max_pool_grad(const dnnops_context *, const int64_t *params,
                                              const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnMaxPoolGrad", inputs, 3, [&] {
    const PoolProblem problem = problem_of(params, inputs, 3);
    expect_shape("the maximum", inputs[1], problem.top, inputs[0].ndim, inputs[0].dtype);
    expect_shape("the maximum's gradient", inputs[2], problem.top, inputs[0].ndim, inputs[0].dtype);
    expect_large(outputs[0]);
    const Packed packed{&inputs[0], &inputs[1], &inputs[2]};
    for_dtype(inputs[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      max_pool_grad(problem, static_cast<const T *>(packed.data[0]), static_cast<const T *>(packed.data[1]),
                    static_cast<const T *>(packed.data[2]), static_cast<T *>(outputs[0].data));
    });
  });
}

// Inputs: image, maximum, direction in image space, ws, stride, pad.
DNNOPS_EXPORT int dnnops_onednn_max_pool_grad_grad_shape(const dnnops_context *, const int64_t *params,
                                                         const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnMaxPoolGradGrad", inputs, 3, [&] {
    set_output(outputs[0], inputs[0].dtype, problem_of(params, inputs, 3).top, inputs[0].ndim);
  });
}

DNNOPS_EXPORT int dnnops_onednn_max_pool_grad_grad(const dnnops_context *, const int64_t *params,
                                                   const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnMaxPoolGradGrad", inputs, 3, [&] {
    const PoolProblem problem = problem_of(params, inputs, 3);
    expect_shape("the maximum", inputs[1], problem.top, inputs[0].ndim, inputs[0].dtype);
    expect_shape("the direction", inputs[2], problem.image, inputs[0].ndim, inputs[0].dtype);
    const Packed packed{&inputs[0], &inputs[1], &inputs[2]};
    for_dtype(inputs[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      max_pool_grad_grad(problem, static_cast<const T *>(packed.data[0]), static_cast<const T *>(packed.data[1]),
                         static_cast<const T *>(packed.data[2]), static_cast<T *>(outputs[0].data));
    });
  });
}

// Inputs: image (only its shape is used), gradient with respect to the output, ws, stride, pad.
DNNOPS_EXPORT int dnnops_onednn_average_pool_grad_shape(const dnnops_context *, const int64_t *params,
                                                        const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnAveragePoolGrad", inputs, 2, [&] {
    problem_of(params, inputs, 2);
    set_output(outputs[0], inputs[0]);
  });
}

DNNOPS_EXPORT int dnnops_onednn_average_pool_grad(const dnnops_context *context, const int64_t *params,
                                                  const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded("OneDnnAveragePoolGrad", inputs, 2, [&] {
    const PoolProblem problem = problem_of(params, inputs, 2);
    expect_shape("the output's gradient", inputs[1], problem.top, inputs[0].ndim, inputs[0].dtype);
    if (element_count(problem.image, inputs[0].ndim) == 0) return;
    expect_large(outputs[0]);
    if (onednn_can(problem, inputs[0].dtype) && element_count(problem.top, inputs[0].ndim))
      return run_onednn(context, problem, true, inputs[1], outputs[0]);
    const Packed packed{&inputs[1]};
    for_dtype(inputs[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      average_pool_grad(problem, static_cast<const T *>(packed.data[0]), static_cast<T *>(outputs[0].data));
    });
  });
}

DNNOPS_EXPORT_CACHE(dnnops_onednn_pool, cache())
