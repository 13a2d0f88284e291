// oneDNN objects that free themselves, and Plan: one main primitive with the reorders around
// it, made once for a set of shapes and strides and run many times.
#ifndef DNNOPS_ONEDNN_PLAN_HPP
#define DNNOPS_ONEDNN_PLAN_HPP

#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.h>

#include "../common/error.hpp"
#include "../common/lru_cache.hpp"
#include "../common/shapes.hpp"
#include "pack.hpp"

namespace dnnops {

// Throws with the status' name and the call that returned it.
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
dnnl_stream_t cpu_stream();  // one a thread

// Attributes that make a primitive take its scratch memory from us, so that it can run in
// several threads at once.
Attributes user_scratchpad();

dnnl_data_type_t dnnl_dtype(int64_t dtype);

// float32 of this shape; with strides in elements, or (null) in the format oneDNN likes best.
MemoryDesc memory_desc(int64_t ndim, const int64_t *shape, const int64_t *strides);
void contiguous_strides(int64_t ndim, const int64_t *shape, int64_t *strides);

bool is_contiguous(const dnnops_tensor &tensor);

// Element strides that oneDNN can address, or false: then the array has to be packed.
bool addressable_strides(const dnnops_tensor &tensor, int64_t *strides);

// Whether each axis steps over all that the axes inside of it reach, as oneDNN wants it: there are
// views, overlapping or not, of which that isn't true.  Axes of length 1 get a stride that fits.
bool nest_strides(int64_t ndim, const int64_t *shape, int64_t *strides);

// How many threads a plan is made for.
int64_t thread_count();

// Scratch memory of this thread, aligned to 64 bytes, valid until it asks again or its call ends.
char *thread_scratch(size_t bytes);

class Plan {
 public:
  // Buffers: the caller's arrays come first and in the order of the pointers given to run().
  int add_array(MemoryDesc desc);
  int add_scratch(const_dnnl_memory_desc_t desc);
  size_t add_bytes(size_t bytes);  // offset of a piece of scratch memory for the caller

  // The buffer to read in the wanted format: the array itself, or a reordered copy.
  int reordered_input(int array, const_dnnl_memory_desc_t wanted);
  // The buffer to write in the wanted format; finish_output() brings it back into the array.
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
  // Before the last step, if that brings the result into its array: scratch memory past the limit that a thread keeps
  // is given back, but for the result.
  void drop_what_is_read(char *scratch) const;
  // The largest piece of scratch memory that can be in the array which the last step writes, and that array; or -1.
  std::pair<int, int> lodger() const;
  size_t scratch_bytes_ = 0;
  int last_read_ = -1;  // the buffer that the last step reads
};

// The memory objects of one node (they hold pointers, so threads can't share them).
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
