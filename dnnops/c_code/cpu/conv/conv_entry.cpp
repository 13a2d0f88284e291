#include "conv_entry.hpp"

#include <algorithm>
#include <cstring>

#include "conv_ways.hpp"

namespace dnnops {

Roles roles_of(int64_t direction) {
  if (direction == CONV_FORWARD) return {IMAGE, FILTERS, TOP};
  if (direction == CONV_GRAD_INPUTS) return {FILTERS, TOP, IMAGE};
  return {IMAGE, TOP, FILTERS};
}

namespace {

// With groups, the filters' output channels are split: (groups, out / groups, in / groups, ...).
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

// Iterates over oneDNN's implementations of a problem. oneDNN needs the objects that created a descriptor to
// find the next one.
struct Implementations {
  MemoryDesc any[3];
  Attributes attributes = user_scratchpad();
  PrimitiveDesc hint;  // for the gradients: the forward convolution
  PrimitiveDesc desc;

  explicit Implementations(const ConvProblem &problem) {
    for (int role = 0; role < 3; ++role) any[role] = role_desc(problem, role, nullptr);
    PrimitiveDesc forward = forward_desc(problem, dnnl_forward_training, any, attributes);
    if (problem.direction == CONV_FORWARD) {
      desc = std::move(forward);
      return;
    }
    hint = std::move(forward);
    int64_t dilates[3];
    for (int i = 0; i < 3; ++i) dilates[i] = problem.geometry.dilation[i] - 1;
    dnnl_primitive_desc_t made;
    if (problem.direction == CONV_GRAD_INPUTS)
      DNNL_CHECK(dnnl_convolution_backward_data_primitive_desc_create(
          &made, cpu_engine(), dnnl_convolution_direct, any[IMAGE].get(), any[FILTERS].get(), any[TOP].get(),
          problem.geometry.stride, dilates, problem.geometry.pad_begin, problem.geometry.pad_end, hint.get(),
          attributes.get()));
    else
      DNNL_CHECK(dnnl_convolution_backward_weights_primitive_desc_create(
          &made, cpu_engine(), dnnl_convolution_direct, any[IMAGE].get(), any[FILTERS].get(), nullptr,
          any[TOP].get(), problem.geometry.stride, dilates, problem.geometry.pad_begin, problem.geometry.pad_end,
          hint.get(), attributes.get()));
    desc.reset(made);
  }

  // Moves to the next implementation. Returns false if there is none.
  bool next() {
    const dnnl_status_t status = dnnl_primitive_desc_next_impl(desc.get());
    if (status != dnnl_last_impl_reached) check_dnnl(status, "dnnl_primitive_desc_next_impl(desc.get())");
    return status == dnnl_success;
  }
};

std::string implementation_name(const PrimitiveDesc &desc) {
  const char *name = nullptr;
  DNNL_CHECK(dnnl_primitive_desc_query(desc.get(), dnnl_query_impl_info_str, 0, &name));
  return name;
}

// oneDNN computes correlations, so a convolution's filters are reversed first.
bool reverses_filters(const ConvProblem &problem) {
  return problem.geometry.filter_flip && element_count(problem.filters + 2, problem.geometry.spatial_ndim) > 1;
}

}  // namespace

ConvKey conv_key(const ConvProblem &problem, const dnnops_tensor *inputs, const dnnops_tensor &output,
                 const char *name) {
  const Roles roles = roles_of(problem.direction);
  const dnnops_tensor *tensors[3];
  tensors[roles.first] = &inputs[0];
  tensors[roles.second] = &inputs[1];
  tensors[roles.result] = &output;
  const bool flip = reverses_filters(problem);
  ConvKey key;
  std::memset(&key, 0, sizeof key);
  key.problem = problem;
  key.threads = thread_count();
  if (name) std::strncpy(key.name, name, sizeof key.name - 1);
  for (int role = 0; role < 3; ++role)
    if ((role == FILTERS && flip) || !addressable_strides(*tensors[role], key.strides[role]))
      std::memset(key.strides[role], 0, sizeof key.strides[role]);
  return key;
}

namespace {
std::mutex &primitive_cache_mutex() {
  static auto *mutex = new std::mutex;
  return *mutex;
}
}  // namespace

NoPrimitiveCache::NoPrimitiveCache() : lock_(primitive_cache_mutex()) {
  DNNL_CHECK(dnnl_get_primitive_cache_capacity(&capacity_));
  DNNL_CHECK(dnnl_set_primitive_cache_capacity(0));
}

NoPrimitiveCache::~NoPrimitiveCache() { dnnl_set_primitive_cache_capacity(capacity_); }

std::vector<std::string> conv_implementations(const ConvProblem &problem, const NoPrimitiveCache &) {
  std::vector<std::string> names, unique;
  Implementations found(problem);
  do {
    names.push_back(implementation_name(found.desc));
    const int64_t times = std::count(names.begin(), names.end(), names.back());
    unique.push_back(times > 1 ? names.back() + "#" + std::to_string(times) : names.back());
  } while (found.next());
  return unique;
}

std::shared_ptr<ConvEntry> make_conv_entry(const ConvKey &key, int64_t implementation) {
  const ConvProblem &problem = key.problem;
  const Roles roles = roles_of(problem.direction);
  auto entry = std::make_shared<ConvEntry>();
  Implementations found(problem);
  for (int64_t i = 0; i < implementation; ++i)
    if (!found.next()) fail(DNNOPS_NOT_SUPPORTED, "oneDNN only has %lld implementations", (long long)i + 1);
  const PrimitiveDesc &desc = found.desc;
  entry->name = implementation_name(desc);

  // The format that oneDNN chose for each role, by the names that each direction uses.
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
    entry->reordered[role] = buffers[role] != arrays[role];
  }
  const int *names = arguments[problem.direction];
  plan.add_primitive(desc, {{names[IMAGE], buffers[IMAGE]}, {names[FILTERS], buffers[FILTERS]}, {names[TOP], buffers[TOP]}});
  plan.finish_output(buffers[roles.result], arrays[roles.result]);
  return entry;
}

std::shared_ptr<ConvEntry> make_named_entry(const ConvKey &key, const std::string &name,
                                            const std::vector<std::string> &names) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    std::string others = own_names(key.problem);
    for (const std::string &other : names) others += (others.empty() ? "" : ", ") + other;
    fail(DNNOPS_VALUE_ERROR, "there is no plan %s for this convolution; there are: %s", name.c_str(), others.c_str());
  }
  auto entry = make_conv_entry(key, found - names.begin());
  entry->name = name;
  return entry;
}

std::shared_ptr<ConvEntry> make_wanted_entry(const ConvKey &key) {
  if (!key.name[0]) return make_conv_entry(key);
  const NoPrimitiveCache no_cache;
  return make_named_entry(key, key.name, conv_implementations(key.problem, no_cache));
}

void run_conv_entry(const ConvEntry &entry, PlanRun &run, const ConvProblem &problem, const dnnops_tensor *inputs,
                    const dnnops_tensor &output) {
  const Roles roles = roles_of(problem.direction);
  const dnnops_tensor *tensors[3];
  tensors[roles.first] = &inputs[0];
  tensors[roles.second] = &inputs[1];
  tensors[roles.result] = &output;
  const bool flip = reverses_filters(problem);
  char *scratch = thread_scratch(entry.plan.scratch_bytes());
  void *data[3];
  for (int role = 0; role < 3; ++role) {
    data[role] = entry.packed[role] ? scratch + entry.pack_offset[role] : tensors[role]->data;
    if (entry.packed[role] && role != roles.result) pack(*tensors[role], data[role], role == FILTERS && flip);
  }
  run({data[roles.first], data[roles.second], data[roles.result]}, scratch);
  if (entry.packed[roles.result]) unpack(data[roles.result], output, roles.result == FILTERS && flip);
}

}  // namespace dnnops
