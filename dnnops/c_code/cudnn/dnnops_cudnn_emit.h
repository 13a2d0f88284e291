/* What the C code of the Ops on cuDNN adds for operands in device memory.
 *
 * RuntimeOp's code is the same for every backend.  CudnnOp puts a block around it that declares,
 * for each device operand, a reference of its own, and the variables device, stream and accepted.
 */
#ifndef DNNOPS_CUDNN_EMIT_H
#define DNNOPS_CUDNN_EMIT_H

#include "dnnops_gpuarray.h"

/* Whether an array is dense in a memory format; its first axis may have any larger stride. */
static inline int dnnops_cudnn_is_dense(const dnnops_tensor *t, dnnops_memory_format format) {
  int64_t strides[DNNOPS_MAX_NDIM];
  dnnops_dense_strides(t, format, strides);
  for (int64_t axis = 0; axis < t->ndim; ++axis)
    if (t->shape[axis] == 0) return 1;
  for (int64_t axis = 1; axis < t->ndim; ++axis)
    if (t->shape[axis] != 1 && t->strides[axis] != strides[axis]) return 0;
  return t->ndim < 2 || t->shape[0] == 1 || t->strides[0] >= strides[0];
}

/* Reads an operand; one that cuDNN would not take, or only with slow kernels, is replaced by a
 * contiguous copy.  accepted tells which formats are taken as they are: bit 0 contiguous with any
 * stride of the first axis, bit 1 channels last likewise; 0: contiguous only. */
static inline int dnnops_cudnn_read_dense(PyObject **array, int64_t dtype, int accepted, dnnops_tensor *t) {
  if (dnnops_gpuarray_read(*array, dtype, t) < 0) return -1;
  if ((accepted & 1) && dnnops_cudnn_is_dense(t, DNNOPS_CONTIGUOUS)) return 0;
  if ((accepted & 2) && dnnops_cudnn_is_dense(t, DNNOPS_CHANNELS_LAST)) return 0;
  if (!accepted) {
    int64_t strides[DNNOPS_MAX_NDIM];
    dnnops_dense_strides(t, DNNOPS_CONTIGUOUS, strides);
    if (dnnops_has_strides(t, strides)) return 0;
  }
  PyObject *make = dnnops_import("cupy", "ascontiguousarray");
  if (make == NULL) return -1;
  PyObject *copy = PyObject_CallFunctionObjArgs(make, *array, NULL);
  Py_DECREF(make);
  if (copy == NULL) return -1;
  Py_DECREF(*array);
  *array = copy;
  return dnnops_gpuarray_read(copy, dtype, t);
}

/* After the functions above, since it has macros of the memory formats' names. */
#include "dnnops_emit.h"

/* The names that RuntimeOp's code calls. */
#define dnnops_cudnn_read(array, dtype, tensor) dnnops_cudnn_read_dense(&(array), dtype, accepted, tensor)
#define dnnops_cudnn_prepare(array, format, tensor) \
  dnnops_gpuarray_prepare(array, tensor, (dnnops_memory_format)(format), device)

#endif
