/* Helpers for the C code that Ops emit, for operands that are NumPy arrays. */
#ifndef DNNOPS_EMIT_H
#define DNNOPS_EMIT_H

#include <Python.h>
#include <numpy/arrayobject.h>

#include "dnnops_raise.h"
#include "dnnops_memory_order.h"
#include "dnnops_runtime.h"

/* The functions of a runtime library that an Op's code calls. */
typedef int (*dnnops_function)(const dnnops_context *, const int64_t *, const dnnops_tensor *, dnnops_tensor *);
typedef struct dnnops_entry {
  dnnops_function shape, run;
  const char *(*last_error)(void);
  void (*state_free)(void *);
} dnnops_entry;

/* Looks the functions up when a module is instantiated. A module linked with the library would
 * have to be recompiled whenever the library is. */
static inline int dnnops_find(const char *library, const char *function, dnnops_entry *entry) {
  PyObject *module = PyImport_ImportModule("dnnops.runtime.op");
  if (!module) return -1;
  PyObject *found = PyObject_CallMethod(module, "entry_addresses", "ss", library, function);
  Py_DECREF(module);
  if (!found) return -1;
  unsigned long long address[4];
  const int taken = PyArg_ParseTuple(found, "KKKK", &address[0], &address[1], &address[2], &address[3]);
  Py_DECREF(found);
  if (!taken) return -1;
  entry->shape = (dnnops_function)(uintptr_t)address[0];
  entry->run = (dnnops_function)(uintptr_t)address[1];
  entry->last_error = (const char *(*)(void))(uintptr_t)address[2];
  entry->state_free = (void (*)(void *))(uintptr_t)address[3];
  return 0;
}

/* The format of an array of (batch, head, sequence, depth) whose heads may be next to each other. */
static inline dnnops_memory_format dnnops_format_of_heads(const dnnops_tensor *t) {
  return t->ndim == 4 && t->shape[1] > 1 && t->shape[2] > 1 && t->strides[1] < t->strides[2] ? DNNOPS_BSHD
                                                                                             : DNNOPS_CONTIGUOUS;
}

static inline int dnnops_ndarray_read(PyArrayObject *array, int64_t dtype, dnnops_tensor *tensor) {
  if (PyArray_NDIM(array) > DNNOPS_MAX_NDIM) {
    PyErr_Format(PyExc_ValueError, "arrays of more than %d dimensions are not supported", DNNOPS_MAX_NDIM);
    return -1;
  }
  tensor->data = PyArray_DATA(array);
  tensor->dtype = dtype;
  tensor->ndim = PyArray_NDIM(array);
  for (int i = 0; i < PyArray_NDIM(array); ++i) {
    tensor->shape[i] = PyArray_DIM(array, i);
    tensor->strides[i] = PyArray_STRIDE(array, i);
  }
  return 0;
}

/* Makes *array an output of tensor's dtype, ndim and shape, reusing the existing array if it
 * fits, and fills in data and strides. */
static inline int dnnops_ndarray_prepare(PyArrayObject **array, dnnops_memory_format format, dnnops_tensor *tensor) {
#define DNNOPS_DTYPE_NPY(NAME, name, bytes, npy) NPY_##npy,
  static const int npy_types[] = {DNNOPS_DTYPES(DNNOPS_DTYPE_NPY)};
#undef DNNOPS_DTYPE_NPY
  const int type = npy_types[tensor->dtype], ndim = (int)tensor->ndim;
  npy_intp shape[DNNOPS_MAX_NDIM], strides[DNNOPS_MAX_NDIM];
  int64_t order[DNNOPS_MAX_NDIM];
  dnnops_memory_order(format, ndim, order);
  for (int i = 0; i < ndim; ++i) shape[i] = (npy_intp)tensor->shape[i];
  npy_intp step = dnnops_itemsizes[tensor->dtype];
  for (int i = ndim - 1; i >= 0; --i) {
    strides[order[i]] = step;
    step *= shape[order[i]] > 0 ? shape[order[i]] : 1;
  }
  int fits = *array && PyArray_TYPE(*array) == type && PyArray_NDIM(*array) == ndim &&
             PyArray_ISBEHAVED(*array);
  for (int i = 0; fits && i < ndim; ++i)
    fits = PyArray_DIM(*array, i) == shape[i] && (PyArray_STRIDE(*array, i) == strides[i] || shape[i] == 1);
  if (!fits) {
    Py_XDECREF(*array);
    if (format == DNNOPS_CONTIGUOUS) {
      *array = (PyArrayObject *)PyArray_EMPTY(ndim, shape, type, 0);
    } else {
      /* Allocate a contiguous array with the axes in memory order, then transpose it. */
      npy_intp permuted[DNNOPS_MAX_NDIM], back[DNNOPS_MAX_NDIM];
      for (int i = 0; i < ndim; ++i) {
        permuted[i] = shape[order[i]];
        back[order[i]] = i;
      }
      PyArrayObject *memory = (PyArrayObject *)PyArray_EMPTY(ndim, permuted, type, 0);
      PyArray_Dims axes = {back, ndim};
      *array = memory ? (PyArrayObject *)PyArray_Transpose(memory, &axes) : NULL;
      Py_XDECREF(memory);
    }
    if (!*array) return -1;
  }
  return dnnops_ndarray_read(*array, tensor->dtype, tensor);
}

#endif
