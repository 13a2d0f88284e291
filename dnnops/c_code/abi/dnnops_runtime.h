/* The plain C interface between Ops and the runtime libraries.
 *
 * Every function that an Op calls has one of two signatures:
 *
 *   int dnnops_X_shape(const dnnops_context *, const int64_t *params,
 *                      const dnnops_tensor *inputs, dnnops_tensor *outputs);
 *   int dnnops_X(const dnnops_context *, const int64_t *params,
 *                const dnnops_tensor *inputs, dnnops_tensor *outputs);
 *
 * The first checks the operands and fills in the dtype, ndim and shape of each output. The
 * second computes into outputs that the caller has allocated. Both return DNNOPS_OK or another
 * dnnops_status; dnnops_last_error() then gives the reason. With this interface, one piece of
 * emitted C, one ctypes call and one Numba dispatch serve every Op.
 */
#ifndef DNNOPS_RUNTIME_H
#define DNNOPS_RUNTIME_H

#include <stdint.h>

#include "dnnops_dtypes.h"

#define DNNOPS_MAX_NDIM 8

#ifdef __cplusplus
extern "C" {
#endif

/* Only 8-byte fields, so that an int64 array of DNNOPS_TENSOR_WORDS elements can stand in for
 * it. */
typedef struct dnnops_tensor {
  void *data;
  int64_t dtype; /* a dnnops_dtype */
  int64_t ndim;
  int64_t shape[DNNOPS_MAX_NDIM];
  int64_t strides[DNNOPS_MAX_NDIM]; /* in bytes, of either sign, as in NumPy */
} dnnops_tensor;

#define DNNOPS_TENSOR_WORDS (3 + 2 * DNNOPS_MAX_NDIM)

/* The order of an array's axes in memory. The shape is (batch, channel, spatial...) or, in attention,
 * (batch, head, sequence, depth) in any format. */
typedef enum dnnops_memory_format {
  DNNOPS_CONTIGUOUS = 0,
  DNNOPS_CHANNELS_LAST = 1, /* batch, spatial..., channel */
  DNNOPS_BSHD = 2           /* batch, sequence, head, depth; for arrays of 4 axes */
} dnnops_memory_format;

typedef enum dnnops_status {
  DNNOPS_OK = 0,
  DNNOPS_VALUE_ERROR = 1,   /* invalid operands: shapes, parameters */
  DNNOPS_TYPE_ERROR = 2,    /* a dtype or rank that the function does not support */
  DNNOPS_NOT_SUPPORTED = 3, /* valid, but the library cannot run it */
  DNNOPS_LIBRARY_ERROR = 4, /* the library failed; the message holds its status and error text */
  DNNOPS_OUT_OF_MEMORY = 5,
  DNNOPS_INDEX_ERROR = 6 /* an index, such as a label, is out of bounds */
} dnnops_status;

/* What a call needs in addition to its operands. */
typedef struct dnnops_context {
  /* A slot of the calling node, NULL at first, in which the function may keep what it prepared
   * for the last operands. If there is no slot (state is NULL), nothing is kept. */
  void **state;
  void *stream;   /* the CUDA stream; NULL on the CPU */
  int64_t device; /* the number of the CUDA device; 0 on the CPU */
} dnnops_context;

/* The message of this thread's last failure, valid until its next failure. */
const char *dnnops_last_error(void);

/* Frees what a node's slot holds. */
void dnnops_state_free(void *state);

#ifdef __cplusplus
}
#endif
#endif
