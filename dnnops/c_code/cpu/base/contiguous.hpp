// Inputs whose elements have to be adjacent in memory.
#ifndef DNNOPS_CPU_CONTIGUOUS_HPP
#define DNNOPS_CPU_CONTIGUOUS_HPP

#include "../../abi/dnnops_runtime.h"

namespace dnnops {

// Sets data[i] to the elements of input i: in place or, if they are not contiguous, to a copy in scratch memory
// of this thread. The copies are valid until its next request for scratch memory.
void contiguous_inputs(const dnnops_tensor *inputs, int64_t count, const void **data);

}  // namespace dnnops
#endif
