#include "plan.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include <omp.h>
#include <pthread.h>
#include <sys/mman.h>

#include "../../common/error.hpp"

namespace dnnops {

void check_dnnl(dnnl_status_t status, const char *call) {
  if (status == dnnl_success) return;
  int kind = status == dnnl_out_of_memory  ? DNNOPS_OUT_OF_MEMORY
             : status == dnnl_unimplemented ? DNNOPS_NOT_SUPPORTED
                                            : DNNOPS_LIBRARY_ERROR;
  static const char *const names[] = {"dnnl_success",        "dnnl_out_of_memory", "dnnl_invalid_arguments",
                                      "dnnl_unimplemented",  "dnnl_last_impl_reached", "dnnl_runtime_error",
                                      "dnnl_not_required",   "dnnl_invalid_graph", "dnnl_invalid_graph_op",
                                      "dnnl_invalid_shape",  "dnnl_invalid_data_type"};
  const char *name = status >= 0 && status < 11 ? names[status] : "unknown status";
  fail(kind, "oneDNN returned %s from %.200s", name, call);
}

dnnl_engine_t cpu_engine() {
  // Never destroyed, because primitives in other static objects may outlive it.
  static dnnl_engine_t engine = [] {
    dnnl_engine_t made;
    DNNL_CHECK(dnnl_engine_create(&made, dnnl_cpu, 0));
    return made;
  }();
  return engine;
}

namespace {
// A forked child has none of its parent's OpenMP threads and would wait for them forever.
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] { omp_set_num_threads(1); });

struct Stream {
  dnnl_stream_t stream = nullptr;
  ~Stream() {
    if (stream) dnnl_stream_destroy(stream);
  }
};
}  // namespace

dnnl_stream_t cpu_stream() {
  static thread_local Stream own;
  if (!own.stream) DNNL_CHECK(dnnl_stream_create(&own.stream, cpu_engine(), dnnl_stream_default_flags));
  return own.stream;
}

Attributes user_scratchpad() {
  dnnl_primitive_attr_t attributes;
  DNNL_CHECK(dnnl_primitive_attr_create(&attributes));
  Attributes owned(attributes);
  DNNL_CHECK(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user));
  return owned;
}

dnnl_data_type_t dnnl_dtype(int64_t dtype) {
  if (dtype == DNNOPS_FLOAT32) return dnnl_f32;
  fail(DNNOPS_TYPE_ERROR, "oneDNN only supports this in float32, got %s", dtype_name(dtype));
}

namespace {
// Whether strides agree, apart from those of axes of length 1.
bool address_the_same(int64_t ndim, const int64_t *shape, const int64_t *a, const int64_t *b) {
  for (int64_t i = 0; i < ndim; ++i)
    if (shape[i] != 1 && a[i] != b[i]) return false;
  return true;
}

void channels_last_strides(int64_t ndim, const int64_t *shape, int64_t *strides) {
  contiguous_strides(ndim, shape, strides);
  strides[1] = 1;
  for (int64_t i = 2; i < ndim; ++i) strides[i] *= std::max<int64_t>(shape[1], 1);
}
}  // namespace

MemoryDesc memory_desc(int64_t ndim, const int64_t *shape, const int64_t *strides) {
  dnnl_memory_desc_t desc;
  if (strides) {
    // To recognize a format, oneDNN also compares the strides of axes of length 1, which address nothing. In a format
    // that it does not know, some primitives only have a reference implementation.
    int64_t contiguous[DNNL_MAX_NDIMS], last[DNNL_MAX_NDIMS];
    contiguous_strides(ndim, shape, contiguous);
    if (ndim > 2) channels_last_strides(ndim, shape, last);
    if (address_the_same(ndim, shape, strides, contiguous))
      strides = contiguous;
    else if (ndim > 2 && address_the_same(ndim, shape, strides, last))
      strides = last;
    DNNL_CHECK(dnnl_memory_desc_create_with_strides(&desc, (int)ndim, shape, dnnl_f32, strides));
  } else {
    DNNL_CHECK(dnnl_memory_desc_create_with_tag(&desc, (int)ndim, shape, dnnl_f32, dnnl_format_tag_any));
  }
  return MemoryDesc(desc);
}

bool is_reference(const_dnnl_primitive_desc_t desc) {
  const char *name = nullptr;
  DNNL_CHECK(dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name));
  return std::strncmp(name, "ref", 3) == 0;
}

void contiguous_strides(int64_t ndim, const int64_t *shape, int64_t *strides) {
  int64_t step = 1;
  for (int64_t i = ndim - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
}

bool nest_strides(int64_t ndim, const int64_t *shape, int64_t *strides) {
  int64_t order[DNNOPS_MAX_NDIM], count = 0;
  for (int64_t i = 0; i < ndim; ++i)
    if (shape[i] != 1) order[count++] = i;
  std::sort(order, order + count, [&](int64_t a, int64_t b) { return strides[a] < strides[b]; });
  int64_t reach = 1;
  for (int64_t i = 0; i < count; ++i) {
    if (strides[order[i]] < reach) return false;
    reach = strides[order[i]] * shape[order[i]];
  }
  for (int64_t i = 0; i < ndim; ++i)
    if (shape[i] == 1) strides[i] = reach;
  return true;
}

bool addressable_strides(const dnnops_tensor &tensor, int64_t *strides) {
  const int64_t size = item_size(tensor.dtype);
  for (int64_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] != 1 && (tensor.strides[i] <= 0 || tensor.strides[i] % size)) return false;
    strides[i] = tensor.strides[i] / size;
  }
  return reinterpret_cast<uintptr_t>(tensor.data) % size == 0 && nest_strides(tensor.ndim, tensor.shape, strides);
}

int64_t thread_count() { return omp_get_max_threads(); }

namespace {

// A thread keeps at most this much from one call to the next.
std::atomic<int64_t> scratch_limit{int64_t(64) << 20};

struct Scratch {
  char *data = nullptr;
  size_t size = 0;
  void give_back() noexcept {
    std::free(data);
    data = nullptr;
    size = 0;
  }
  ~Scratch() { give_back(); }
};

Scratch &own_scratch() {
  static thread_local Scratch own;
  return own;
}

void give_scratch_back() noexcept { own_scratch().give_back(); }

}  // namespace

char *thread_scratch(size_t bytes) {
  Scratch &own = own_scratch();
  if (bytes > own.size) {
    own.give_back();
    void *data = nullptr;
    if (posix_memalign(&data, 64, bytes))
      fail(DNNOPS_OUT_OF_MEMORY, "cannot allocate %zu bytes of scratch memory", bytes);
    own.data = static_cast<char *>(data);
    own.size = bytes;
  }
  if ((int64_t)own.size > scratch_limit) after_call() = give_scratch_back;
  return own.data;
}

int Plan::add_array(MemoryDesc desc) {
  buffers_.push_back({std::move(desc), true, 0});
  return (int)buffers_.size() - 1;
}

size_t Plan::add_bytes(size_t bytes) {
  size_t offset = scratch_bytes_;
  scratch_bytes_ += (bytes + 63) / 64 * 64;
  return offset;
}

int Plan::add_scratch(const_dnnl_memory_desc_t desc) {
  dnnl_memory_desc_t copy;
  DNNL_CHECK(dnnl_memory_desc_clone(&copy, desc));
  MemoryDesc owned(copy);
  size_t offset = add_bytes(dnnl_memory_desc_get_size(desc));
  buffers_.push_back({std::move(owned), false, offset});
  return (int)buffers_.size() - 1;
}

void Plan::add_reorder(int from, int to) {
  Attributes attributes = user_scratchpad();
  dnnl_primitive_desc_t desc;
  DNNL_CHECK(dnnl_reorder_primitive_desc_create(&desc, buffers_[from].desc.get(), cpu_engine(),
                                                buffers_[to].desc.get(), cpu_engine(), attributes.get()));
  add_primitive(PrimitiveDesc(desc), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

int Plan::reordered_input(int array, const_dnnl_memory_desc_t wanted) {
  if (dnnl_memory_desc_equal(desc(array), wanted)) return array;
  int copy = add_scratch(wanted);
  add_reorder(array, copy);
  return copy;
}

int Plan::output_buffer(int array, const_dnnl_memory_desc_t wanted) {
  return dnnl_memory_desc_equal(desc(array), wanted) ? array : add_scratch(wanted);
}

void Plan::finish_output(int buffer, int array) {
  if (buffer == array) return;
  add_reorder(buffer, array);
  last_read_ = buffer;
}

void Plan::add_primitive(const PrimitiveDesc &desc, std::initializer_list<std::pair<int, int>> arguments) {
  dnnl_primitive_t primitive;
  DNNL_CHECK(dnnl_primitive_create(&primitive, desc.get()));
  Step step{Primitive(primitive), arguments};
  const_dnnl_memory_desc_t scratchpad =
      dnnl_primitive_desc_query_md(desc.get(), dnnl_query_scratchpad_md, 0);
  if (scratchpad && dnnl_memory_desc_get_size(scratchpad) > 0)
    step.arguments.emplace_back(DNNL_ARG_SCRATCHPAD, add_scratch(scratchpad));
  steps_.push_back(std::move(step));
}

namespace {
// Returns the whole pages of unused scratch memory to the system.
void drop_pages(char *begin, char *end) {
#ifdef MADV_DONTNEED
  const uintptr_t page = 4096, first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / page * page;
  if (first < last) madvise(reinterpret_cast<void *>(first), last - first, MADV_DONTNEED);
#endif
}
}  // namespace

void Plan::drop_what_is_read(char *scratch) const {
  if (last_read_ < 0 || (int64_t)scratch_bytes_ <= scratch_limit) return;
  char *const begin = scratch + buffers_[last_read_].offset;
  drop_pages(scratch, begin);
  drop_pages(begin + dnnl_memory_desc_get_size(desc(last_read_)), scratch + scratch_bytes_);
}

std::pair<int, int> Plan::lodger() const {
  if (last_read_ < 0) return {-1, -1};
  const auto uses = [&](const Step &step, int buffer) {
    return std::any_of(step.arguments.begin(), step.arguments.end(),
                       [&](const auto &argument) { return argument.second == buffer; });
  };
  const Step &last = steps_.back();
  int host = -1;
  for (auto [argument, buffer] : last.arguments)
    if (argument == DNNL_ARG_TO && buffers_[buffer].is_array) host = buffer;
  if (host < 0 || std::any_of(steps_.begin(), steps_.end() - 1, [&](const Step &step) { return uses(step, host); }))
    return {-1, -1};
  // The gaps in a view may hold elements of other views.
  int ndims;
  dnnl_dims_t *dims;
  DNNL_CHECK(dnnl_memory_desc_query(desc(host), dnnl_query_ndims_s32, &ndims));
  DNNL_CHECK(dnnl_memory_desc_query(desc(host), dnnl_query_dims, &dims));
  size_t room = sizeof(float);
  for (int i = 0; i < ndims; ++i) room *= (*dims)[i];
  if (dnnl_memory_desc_get_size(desc(host)) != room) return {-1, -1};
  int found = -1;
  size_t most = 0;
  for (int i = 0; i < (int)buffers_.size(); ++i) {
    const size_t bytes = dnnl_memory_desc_get_size(desc(i));
    if (buffers_[i].is_array || uses(last, i) || bytes > room || bytes <= most) continue;
    found = i;
    most = bytes;
  }
  return {found, host};
}

PlanRun::PlanRun(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {
  std::tie(lodger_, host_) = plan_->lodger();
  for (const Plan::Buffer &buffer : plan_->buffers_) {
    dnnl_memory_t memory;
    DNNL_CHECK(dnnl_memory_create(&memory, buffer.desc.get(), cpu_engine(), DNNL_MEMORY_NONE));
    memories_.emplace_back(memory);
  }
  for (const Plan::Step &step : plan_->steps_) {
    std::vector<dnnl_exec_arg_t> list;
    for (auto [argument, buffer] : step.arguments) list.push_back({argument, memories_[buffer].get()});
    arguments_.push_back(std::move(list));
  }
}

void PlanRun::operator()(std::initializer_list<void *> arrays, char *scratch) {
  // The caller's arrays are the first buffers. If the host is also an operand, its contents are still needed.
  void *host = lodger_ < 0 ? nullptr : arrays.begin()[host_];
  if (std::count(arrays.begin(), arrays.end(), host) > 1) host = nullptr;
  auto array = arrays.begin();
  for (int i = 0; i < (int)memories_.size(); ++i) {
    const Plan::Buffer &buffer = plan_->buffers_[i];
    void *data = buffer.is_array ? *array++ : i == lodger_ && host ? host : scratch + buffer.offset;
    DNNL_CHECK(dnnl_memory_set_data_handle(memories_[i].get(), data));
  }
  dnnl_stream_t stream = cpu_stream();
  for (size_t i = 0; i < arguments_.size(); ++i) {
    // Before the output is written, so that there are at most two copies of large operands at a time.
    if (i > 0 && i + 1 == arguments_.size()) plan_->drop_what_is_read(scratch);
    DNNL_CHECK(dnnl_primitive_execute(plan_->steps_[i].primitive.get(), stream, (int)arguments_[i].size(),
                                      arguments_[i].data()));
  }
  DNNL_CHECK(dnnl_stream_wait(stream));
}

}  // namespace dnnops

// Sets the limit from the flag onednn.scratch_limit, in bytes.
DNNOPS_EXPORT void dnnops_onednn_set_scratch_limit(int64_t bytes) { dnnops::scratch_limit = bytes; }

// The amount of scratch memory that this thread keeps, in bytes.
DNNOPS_EXPORT int64_t dnnops_onednn_kept_scratch(void) { return (int64_t)dnnops::own_scratch().size; }
