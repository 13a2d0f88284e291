/* Helpers for the C code that the cuDNN Ops emit, for operands in device memory.
 *
 * RuntimeOp's code is the same for every backend. CudnnOp wraps it in a block that declares the
 * variables device and stream and, for each device operand, a new reference arrayN.
 */
#ifndef DNNOPS_CUDNN_EMIT_H
#define DNNOPS_CUDNN_EMIT_H

#include "dnnops_emit.h"
#include "dnnops_gpuarray.h"

/* Operand layouts that are accepted without a copy. CudnnOp uses the same numbers. */
enum {
  DNNOPS_TAKE_CONTIGUOUS = 1,
  DNNOPS_TAKE_CHANNELS_LAST = 2,
  DNNOPS_TAKE_GAPS = 4, /* either of them, with a larger stride along the first axis */
  DNNOPS_TAKE_ROWS = 8, /* any positive strides, if the last axis is dense */
  DNNOPS_TAKE_MATRIX = 16, /* a matrix whose rows or columns are dense and do not overlap */
  DNNOPS_TAKE_PIXELS = 64, /* a part of the channels of a channels-last image */
  DNNOPS_ONLY_ALIGNED = 32 /* of all these, only arrays that start at a multiple of 16 bytes */
};

/* Whether an array is dense in a memory format, optionally with gaps along its first axis. */
static inline int dnnops_cudnn_is_dense(const dnnops_tensor *t, dnnops_memory_format format, int gaps) {
  int64_t strides[DNNOPS_MAX_NDIM];
  dnnops_dense_strides(t, format, strides);
  for (int64_t axis = 0; axis < t->ndim; ++axis)
    if (t->shape[axis] == 0) return 1;
  for (int64_t axis = 1; axis < t->ndim; ++axis)
    if (t->shape[axis] != 1 && t->strides[axis] != strides[axis]) return 0;
  return t->ndim < 1 || t->shape[0] == 1 || t->strides[0] == strides[0] || (gaps && t->strides[0] > strides[0]);
}

/* Whether the last axis is dense and all other strides are positive. */
static inline int dnnops_cudnn_has_rows(const dnnops_tensor *t) {
  for (int64_t axis = 0; axis < t->ndim; ++axis)
    if (t->shape[axis] > 1 && t->strides[axis] <= 0) return 0;
  return t->ndim < 1 || t->shape[t->ndim - 1] <= 1 || t->strides[t->ndim - 1] == dnnops_itemsizes[t->dtype];
}

/* Whether an axis of a matrix is dense, and its vectors along the other axis do not overlap. */
static inline int dnnops_cudnn_is_dense_along(const dnnops_tensor *t, int axis) {
  const int64_t size = dnnops_itemsizes[t->dtype], length = t->shape[axis], other = t->shape[1 - axis];
  return (length == 1 || t->strides[axis] == size) && (other == 1 || t->strides[1 - axis] >= length * size);
}

/* Whether channels are adjacent and all pixels have the same distance, also across rows and images. */
static inline int dnnops_cudnn_has_pixels(const dnnops_tensor *t) {
  const int64_t pixel = t->ndim > 1 ? t->shape[1] * dnnops_itemsizes[t->dtype] : 0;
  int64_t expected = 0;
  if (t->ndim < 3 || (t->shape[1] > 1 && t->strides[1] != dnnops_itemsizes[t->dtype])) return 0;
  for (int64_t axis = t->ndim - 1; axis >= 0; --axis) {
    if (axis == 1 || t->shape[axis] == 1) continue;
    if (expected ? t->strides[axis] != expected : t->strides[axis] < pixel) return 0;
    expected = t->strides[axis] * t->shape[axis];
  }
  return 1;
}

/* Replaces an operand by the result of a Python function for a memory format, and reads that. */
static inline int dnnops_cudnn_replace(PyObject **array, int64_t dtype, dnnops_memory_format format, dnnops_tensor *t,
                                       const char *function) {
  PyObject *make = dnnops_import("dnnops.gpu.base", function);
  if (make == NULL) return -1;
  PyObject *copy =
      PyObject_CallFunction(make, "Os", *array, format == DNNOPS_CONTIGUOUS ? "contiguous" : "channels_last");
  Py_DECREF(make);
  if (copy == NULL) return -1;
  Py_DECREF(*array);
  *array = copy;
  return dnnops_gpuarray_read(copy, dtype, t);
}

/* Replaces an operand by a dense copy and reads that. */
static inline int dnnops_cudnn_copy(PyObject **array, int64_t dtype, dnnops_memory_format format, dnnops_tensor *t) {
  return dnnops_cudnn_replace(array, dtype, format, t, "as_dense");
}

/* Reads an operand. If cuDNN does not support its layout, or only with slow kernels, the operand
 * is replaced by a copy: channels-last if its channels are adjacent, otherwise contiguous. */
static inline int dnnops_cudnn_read_layout(PyObject **array, int64_t dtype, int layouts, dnnops_tensor *t) {
  if (dnnops_gpuarray_read(*array, dtype, t) < 0) return -1;
  const int gaps = layouts & DNNOPS_TAKE_GAPS;
  const int last = layouts & DNNOPS_TAKE_CHANNELS_LAST;
  if ((layouts & DNNOPS_TAKE_CONTIGUOUS) && dnnops_cudnn_is_dense(t, DNNOPS_CONTIGUOUS, gaps)) return 0;
  if (last && dnnops_cudnn_is_dense(t, DNNOPS_CHANNELS_LAST, gaps)) return 0;
  if ((layouts & DNNOPS_TAKE_ROWS) && dnnops_cudnn_has_rows(t)) return 0;
  if ((layouts & DNNOPS_TAKE_PIXELS) && dnnops_cudnn_has_pixels(t)) return 0;
  if ((layouts & DNNOPS_TAKE_MATRIX) && t->ndim == 2 &&
      (dnnops_cudnn_is_dense_along(t, 1) || dnnops_cudnn_is_dense_along(t, 0)))
    return 0;
  const int adjacent = t->ndim > 2 && t->shape[1] > 1 && t->strides[1] == dnnops_itemsizes[t->dtype];
  const int only = !(layouts & DNNOPS_TAKE_CONTIGUOUS);
  return dnnops_cudnn_copy(array, dtype, last && (adjacent || only) ? DNNOPS_CHANNELS_LAST : DNNOPS_CONTIGUOUS, t);
}

/* The memory format of a dense operand: contiguous if both formats match. */
static inline dnnops_memory_format dnnops_cudnn_format(const dnnops_tensor *t) {
  return dnnops_cudnn_is_dense(t, DNNOPS_CONTIGUOUS, 0) ? DNNOPS_CONTIGUOUS : DNNOPS_CHANNELS_LAST;
}

/* The same for an operand that may have to be aligned. */
static inline int dnnops_cudnn_read(PyObject **array, int64_t dtype, int layouts, dnnops_tensor *t) {
  if (dnnops_cudnn_read_layout(array, dtype, layouts, t) < 0) return -1;
  if (!(layouts & DNNOPS_ONLY_ALIGNED) || ((uintptr_t)t->data & 15) == 0) return 0;
  return dnnops_cudnn_replace(array, dtype, dnnops_cudnn_format(t), t, "dense_copy");
}

/* Replaces an operand by a copy unless it is dense in a memory format. */
static inline int dnnops_cudnn_match(PyObject **array, int64_t dtype, dnnops_memory_format format, dnnops_tensor *t) {
  return dnnops_cudnn_is_dense(t, format, 0) ? 0 : dnnops_cudnn_copy(array, dtype, format, t);
}

#endif
