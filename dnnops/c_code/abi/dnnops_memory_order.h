/* Orders of an array's axes in memory. dnnops_runtime.h has declarations only, which Python reads. */
#ifndef DNNOPS_MEMORY_ORDER_H
#define DNNOPS_MEMORY_ORDER_H

#include "dnnops_runtime.h"

/* Lists the axes of an array from the outermost to the innermost in memory. */
static inline void dnnops_memory_order(dnnops_memory_format format, int64_t ndim, int64_t *order) {
  for (int64_t i = 0; i < ndim; ++i) order[i] = i;
  if (format == DNNOPS_CHANNELS_LAST && ndim > 2) {
    for (int64_t i = 1; i < ndim - 1; ++i) order[i] = i + 1;
    order[ndim - 1] = 1;
  } else if (format == DNNOPS_BSHD) {
    order[1] = 2;
    order[2] = 1;
  }
}

#endif
