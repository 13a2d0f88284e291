// Convolution and its two gradients on oneDNN (float32) and BLAS (float64).
#include <cstring>

#include "conv_blas.hpp"
#include "conv_params.hpp"
#include "node_state.hpp"
#include "winograd.hpp"

namespace dnnops {
namespace {

// Arrays are numbered by role, whichever the direction computes.
enum Role { IMAGE, FILTERS, TOP };
struct Roles {
  Role first, second, result;
};
Roles roles_of(int64_t direction) {
  if (direction == CONV_FORWARD) return {IMAGE, FILTERS, TOP};
  if (direction == CONV_GRAD_INPUTS) return {FILTERS, TOP, IMAGE};
  return {IMAGE, TOP, FILTERS};
}

// Everything that a plan depends on.
struct Key {
  ConvProblem problem;
  int64_t strides[3][5];  // in elements; zeros for an array that has to be packed first
  int64_t threads;
};
bool operator==(const Key &a, const Key &b) { return std::memcmp(&a, &b, sizeof a) == 0; }

struct Entry {
  Plan plan;
  bool packed[3] = {false, false, false};
  size_t pack_offset[3] = {0, 0, 0};
};

// With groups the filters' output channels are split: (groups, out / groups, in / groups, ...).
int64_t grouped(const ConvProblem &problem, const int64_t *plain, bool are_strides, int64_t *out) {
  const int64_t groups = problem.geometry.groups, ndim = problem.ndim;
  if (groups == 1) {
    std::copy(plain, plain + ndim, out);
    return ndim;
  }
  const int64_t per_group = problem.filters[0] / groups;
  out[0] = are_strides ? plain[0] * per_group : groups;
  out[1] = are_strides ? plain[0] : per_group;
  std::copy(plain + 1, plain + ndim, out + 2);
  return ndim + 1;
}

const int64_t *shape_of(const ConvProblem &problem, int role) {
  return role == IMAGE ? problem.image : role == FILTERS ? problem.filters : problem.top;
}

MemoryDesc role_desc(const ConvProblem &problem, int role, const int64_t *strides) {
  if (role != FILTERS) return memory_desc(problem.ndim, shape_of(problem, role), strides);
  int64_t shape[6], grouped_strides[6];
  int64_t ndim = grouped(problem, problem.filters, false, shape);
  if (strides) grouped(problem, strides, true, grouped_strides);
  return memory_desc(ndim, shape, strides ? grouped_strides : nullptr);
}

PrimitiveDesc forward_desc(const ConvProblem &problem, dnnl_prop_kind_t kind, const MemoryDesc any[3],
                           const Attributes &attributes) {
  int64_t dilates[3];
  for (int i = 0; i < 3; ++i) dilates[i] = problem.geometry.dilation[i] - 1;
  dnnl_primitive_desc_t desc;
  DNNL_CHECK(dnnl_convolution_forward_primitive_desc_create(
      &desc, cpu_engine(), kind, dnnl_convolution_direct, any[IMAGE].get(), any[FILTERS].get(), nullptr,
      any[TOP].get(), problem.geometry.stride, dilates, problem.geometry.pad_begin, problem.geometry.pad_end,
      attributes.get()));
  return PrimitiveDesc(desc);
}

PrimitiveDesc direction_desc(const ConvProblem &problem, const MemoryDesc any[3]) {
  Attributes attributes = user_scratchpad();
  if (problem.direction == CONV_FORWARD) return forward_desc(problem, dnnl_forward_training, any, attributes);
  PrimitiveDesc hint = forward_desc(problem, dnnl_forward_training, any, attributes);
  int64_t dilates[3];
  for (int i = 0; i < 3; ++i) dilates[i] = problem.geometry.dilation[i] - 1;
  dnnl_primitive_desc_t desc;
  if (problem.direction == CONV_GRAD_INPUTS)
    DNNL_CHECK(dnnl_convolution_backward_data_primitive_desc_create(
        &desc, cpu_engine(), dnnl_convolution_direct, any[IMAGE].get(), any[FILTERS].get(), any[TOP].get(),
        problem.geometry.stride, dilates, problem.geometry.pad_begin, problem.geometry.pad_end, hint.get(),
        attributes.get()));
  else
    DNNL_CHECK(dnnl_convolution_backward_weights_primitive_desc_create(
        &desc, cpu_engine(), dnnl_convolution_direct, any[IMAGE].get(), any[FILTERS].get(), nullptr,
        any[TOP].get(), problem.geometry.stride, dilates, problem.geometry.pad_begin, problem.geometry.pad_end,
        hint.get(), attributes.get()));
  return PrimitiveDesc(desc);
}

std::shared_ptr<Entry> make_entry(const Key &key) {
  const ConvProblem &problem = key.problem;
  const Roles roles = roles_of(problem.direction);
  auto entry = std::make_shared<Entry>();
  MemoryDesc any[3];
  for (int role = 0; role < 3; ++role) any[role] = role_desc(problem, role, nullptr);
  PrimitiveDesc desc = direction_desc(problem, any);

  // What oneDNN chose for each role, under the names that the direction gives them.
  static const dnnl_query_t queries[3][3] = {
      {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
      {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
      {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md}};
  static const int arguments[3][3] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                                      {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                                      {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
  Plan &plan = entry->plan;
  int arrays[3], buffers[3];
  for (int role : {roles.first, roles.second, roles.result}) {
    int64_t packed_strides[5];
    const int64_t *strides = key.strides[role];
    if (strides[0] == 0) {
      contiguous_strides(problem.ndim, shape_of(problem, role), packed_strides);
      strides = packed_strides;
      entry->packed[role] = true;
      entry->pack_offset[role] =
          plan.add_bytes(element_count(shape_of(problem, role), problem.ndim) * sizeof(float));
    }
    arrays[role] = plan.add_array(role_desc(problem, role, strides));
  }
  for (int role : {roles.first, roles.second, roles.result}) {
    const_dnnl_memory_desc_t wanted =
        dnnl_primitive_desc_query_md(desc.get(), queries[problem.direction][role], 0);
    buffers[role] = role == roles.result ? plan.output_buffer(arrays[role], wanted)
                                         : plan.reordered_input(arrays[role], wanted);
  }
  const int *names = arguments[problem.direction];
  plan.add_primitive(desc, {{names[IMAGE], buffers[IMAGE]}, {names[FILTERS], buffers[FILTERS]}, {names[TOP], buffers[TOP]}});
  plan.finish_output(buffers[roles.result], arrays[roles.result]);
  return entry;
}

LruCache<Key, Entry, WordHash<Key>> &cache() {
  // Never destroyed: threads may still compute while the process ends.
  static auto *plans = new LruCache<Key, Entry, WordHash<Key>>(512);
  return *plans;
}

void fill_zeros(const dnnops_tensor &output, const int64_t *shape, int64_t ndim) {
  std::memset(output.data, 0, element_count(shape, ndim) * item_size(output.dtype));
}

void run(const dnnops_context *context, const ConvParams &params, const dnnops_tensor *inputs,
         dnnops_tensor &output) {
  const ConvProblem problem = problem_of(params, inputs);
  const int64_t *result = conv_result_shape(problem);
  if (element_count(result, problem.ndim) == 0) return;
  if (element_count(inputs[0].shape, problem.ndim) == 0 || element_count(inputs[1].shape, problem.ndim) == 0) {
    fill_zeros(output, result, problem.ndim);  // a sum over nothing
    return;
  }
  if (inputs[0].dtype == DNNOPS_FLOAT64) {
    conv_blas(problem, inputs, output);
    return;
  }
  dnnl_dtype(inputs[0].dtype);
  if (params.algorithm == ALGORITHM_AUTO && winograd_suits(problem)) {
    conv_winograd(problem, inputs, output);
    return;
  }

  const Roles roles = roles_of(problem.direction);
  const dnnops_tensor *tensors[3];
  tensors[roles.first] = &inputs[0];
  tensors[roles.second] = &inputs[1];
  tensors[roles.result] = &output;
  // oneDNN computes correlations: a convolution's filters are reversed on the way.
  const bool flip = problem.geometry.filter_flip &&
                    element_count(problem.filters + 2, problem.geometry.spatial_ndim) > 1;
  Key key;
  std::memset(&key, 0, sizeof key);
  key.problem = problem;
  key.threads = thread_count();
  for (int role = 0; role < 3; ++role)
    if ((role == FILTERS && flip) || !addressable_strides(*tensors[role], key.strides[role]))
      std::memset(key.strides[role], 0, sizeof key.strides[role]);

  with_entry(context, cache(), key, [&] { return make_entry(key); }, [&](Entry &entry, PlanRun &plan_run) {
    char *scratch = thread_scratch(entry.plan.scratch_bytes());
    void *data[3];
    for (int role = 0; role < 3; ++role) {
      data[role] = entry.packed[role] ? scratch + entry.pack_offset[role] : tensors[role]->data;
      if (entry.packed[role] && role != roles.result) pack(*tensors[role], data[role], role == FILTERS && flip);
    }
    plan_run({data[roles.first], data[roles.second], data[roles.result]}, scratch);
    if (entry.packed[roles.result]) {
      dnnops_tensor computed = output;
      computed.data = data[roles.result];
      int64_t strides[5];
      contiguous_strides(output.ndim, output.shape, strides);
      for (int64_t i = 0; i < output.ndim; ++i) computed.strides[i] = strides[i] * (int64_t)sizeof(float);
      pack(computed, output.data, roles.result == FILTERS && flip);
    }
  });
}

}  // namespace
}  // namespace dnnops

using namespace dnnops;

static const char *conv_name(const int64_t *params) {
  return params[0] == CONV_FORWARD       ? "OneDnnConv"
         : params[0] == CONV_GRAD_INPUTS ? "OneDnnConvGradInputs"
                                         : "OneDnnConvGradWeights";
}

DNNOPS_EXPORT int dnnops_onednn_conv_shape(const dnnops_context *, const int64_t *params,
                                           const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded(conv_name(params), inputs, 2, [&] {
    const ConvProblem problem = problem_of(conv_params(params), inputs);
    outputs[0].dtype = inputs[0].dtype;
    outputs[0].ndim = problem.ndim;
    std::memcpy(outputs[0].shape, conv_result_shape(problem), problem.ndim * sizeof(int64_t));
  });
}

DNNOPS_EXPORT int dnnops_onednn_conv(const dnnops_context *context, const int64_t *params,
                                     const dnnops_tensor *inputs, dnnops_tensor *outputs) {
  return guarded(conv_name(params), inputs, 2, [&] { run(context, conv_params(params), inputs, outputs[0]); });
}

DNNOPS_EXPORT_CACHE(dnnops_onednn_conv, cache())
