// oneDNN objects that free themselves, and Plan: one main primitive with the reorders around it, made once
// for a set of shapes and strides and run many times.
#ifndef DNNOPS_ONEDNN_PLAN_HPP
#define DNNOPS_ONEDNN_PLAN_HPP

#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.h>

#include "../../abi/python/dnnops_onednn.h"
#include "../../common/error.hpp"
#include "../../common/lru_cache.hpp"
#include "../../common/shapes.hpp"
#include "pack.hpp"

namespace dnnops {

// Throws an error that names the status and the call that returned it.
void check_dnnl(dnnl_status_t status, const char *call);
#define DNNL_CHECK(call) ::dnnops::check_dnnl((call), #call)

template <class Pointer, dnnl_status_t (*destroy)(Pointer)>
struct DnnlDeleter {
  using pointer = Pointer;
  void operator()(Pointer object) const { destroy(object); }
};
using MemoryDesc = std::unique_ptr<dnnl_memory_desc, DnnlDeleter<dnnl_memory_desc_t, dnnl_memory_desc_destroy>>;
using PrimitiveDesc =
    std::unique_ptr<dnnl_primitive_desc, DnnlDeleter<dnnl_primitive_desc_t, dnnl_primitive_desc_destroy>>;
using Primitive = std::unique_ptr<dnnl_primitive, DnnlDeleter<dnnl_primitive_t, dnnl_primitive_destroy>>;
using Attributes =
    std::unique_ptr<dnnl_primitive_attr, DnnlDeleter<dnnl_primitive_attr_t, dnnl_primitive_attr_destroy>>;
using Memory = std::unique_ptr<dnnl_memory, DnnlDeleter<dnnl_memory_t, dnnl_memory_destroy>>;

dnnl_engine_t cpu_engine();
dnnl_stream_t cpu_stream();  // one per thread

// Attributes for a primitive that takes its scratch memory from the caller, so that it can run in several
// threads at once.
Attributes user_scratchpad();

dnnl_data_type_t dnnl_dtype(int64_t dtype);

// A float32 descriptor of this shape, with strides in elements or (if null) in the format that oneDNN prefers.
MemoryDesc memory_desc(int64_t ndim, const int64_t *shape, const int64_t *strides);
void contiguous_strides(int64_t ndim, const int64_t *shape, int64_t *strides);

// Whether oneDNN only has a reference implementation, which is many times slower than dnnops loops.
bool is_reference(const_dnnl_primitive_desc_t desc);

// Gets element strides that oneDNN can address. Returns false if the array must be packed.
bool addressable_strides(const dnnops_tensor &tensor, int64_t *strides);

// Whether each axis steps over everything that the inner axes reach, as oneDNN requires. This is not true of
// all views, overlapping or not. Axes of length 1 get a stride that fits.
bool nest_strides(int64_t ndim, const int64_t *shape, int64_t *strides);

// The number of threads that a plan is made for.
int64_t thread_count();

// Scratch memory of this thread, aligned to 64 bytes, valid until its next request or the end of its call.
char *thread_scratch(size_t bytes);

class Plan {
 public:
  // Buffers: the caller's arrays come first, in the order of the pointers given to run().
  int add_array(MemoryDesc desc);
  int add_scratch(const_dnnl_memory_desc_t desc);
  size_t add_bytes(size_t bytes);  // returns the offset of a piece of scratch memory for the caller

  // The buffer to read in the wanted format: the array itself or a reordered copy.
  int reordered_input(int array, const_dnnl_memory_desc_t wanted);
  // The buffer to write in the wanted format. finish_output() reorders it into the array.
  int output_buffer(int array, const_dnnl_memory_desc_t wanted);
  void add_primitive(const PrimitiveDesc &desc, std::initializer_list<std::pair<int, int>> arguments);
  void finish_output(int buffer, int array);

  const_dnnl_memory_desc_t desc(int buffer) const { return buffers_[buffer].desc.get(); }
  size_t scratch_bytes() const { return scratch_bytes_; }
  size_t byte_offset(int buffer) const { return buffers_[buffer].offset; }

 private:
  friend class PlanRun;
  struct Buffer {
    MemoryDesc desc;
    bool is_array;
    size_t offset;
  };
  struct Step {
    Primitive primitive;
    std::vector<std::pair<int, int>> arguments;  // DNNL_ARG_..., buffer
  };
  void add_reorder(int from, int to);
  std::vector<Buffer> buffers_;
  std::vector<Step> steps_;
  // Returns scratch memory beyond the limit per thread, except the result, before a last step that copies the
  // result to its array.
  void drop_what_is_read(char *scratch) const;
  // The largest scratch buffer that can share memory with the array written by the last step, and that array;
  // -1 for both if there is none.
  std::pair<int, int> lodger() const;
  size_t scratch_bytes_ = 0;
  int last_read_ = -1;  // the buffer that the last step reads
};

// The memory objects of one node. They hold pointers, so threads cannot share them.
class PlanRun {
 public:
  explicit PlanRun(std::shared_ptr<const Plan> plan);
  void operator()(std::initializer_list<void *> arrays, char *scratch);
  const Plan &plan() const { return *plan_; }

 private:
  std::shared_ptr<const Plan> plan_;
  int lodger_, host_;
  std::vector<Memory> memories_;
  std::vector<std::vector<dnnl_exec_arg_t>> arguments_;
};

}  // namespace dnnops
#endif
