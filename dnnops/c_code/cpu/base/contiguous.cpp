#include "contiguous.hpp"

#include "pack.hpp"
#include "plan.hpp"

namespace dnnops {

void contiguous_inputs(const dnnops_tensor *inputs, int64_t count, const void **data) {
  const auto padded_size = [](const dnnops_tensor &input) {
    return (element_count(input.shape, input.ndim) * item_size(input.dtype) + 63) / 64 * 64;
  };
  size_t bytes = 0;
  for (int64_t i = 0; i < count; ++i) bytes += is_contiguous(inputs[i]) ? 0 : padded_size(inputs[i]);
  char *next = bytes ? thread_scratch(bytes) : nullptr;
  for (int64_t i = 0; i < count; ++i) {
    data[i] = inputs[i].data;
    if (is_contiguous(inputs[i])) continue;
    pack(inputs[i], next, false);
    data[i] = next;
    next += padded_size(inputs[i]);
  }
}

}  // namespace dnnops
