/* Device arrays (cupy.ndarray) as emitted C sees them.
 *
 * A variable of GpuArrayType is a PyObject * in an Op's C code. CuPy has no C headers, so its
 * arrays are read through attributes. The attribute names are interned once; reading address,
 * shape and strides takes about 0.2 us. All functions need the GIL. Those that return int
 * return 0, or -1 with a Python exception set.
 */
#ifndef DNNOPS_GPUARRAY_H
#define DNNOPS_GPUARRAY_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "dnnops_memory_order.h"
#include "dnnops_runtime.h"

/* References to an Op's output that only the Op's thunk holds: its storage, and the two that
 * PyTensor's generated code takes. If there are more, the array is used elsewhere. */
#define DNNOPS_THUNK_REFERENCES 3

/* Python objects that every call needs, looked up once and kept. */
typedef struct dnnops_python {
  PyObject *data, *mem, *ptr, *shape, *strides, *dtype, *device, *id; /* attribute names */
  PyObject *order_k;                                            /* {"order": "K"} */
  PyObject *ndarray, *copy; /* the class cupy.ndarray and its method */
  PyObject *get_device, *set_device;
  intptr_t (*current_stream)(void); /* if NULL, ask Python */
  PyObject *dtypes[DNNOPS_DTYPE_COUNT];
  const int *not_keeping; /* nodes keep no results while it is not 0; see runtime/keeping.py */
  int ready;
} dnnops_python;

static dnnops_python dnnops_py; /* zero-initialized, since it is static; one per module, guarded by the GIL */

static inline PyObject *dnnops_import(const char *module, const char *attribute) {
  PyObject *imported = PyImport_ImportModule(module);
  if (imported == NULL) return NULL;
  PyObject *found = PyObject_GetAttrString(imported, attribute);
  Py_DECREF(imported);
  return found;
}

/* Finds CuPy's own C function for the current stream in the table that Cython exports. The
 * capsule's name is its signature; if it differs, the slower way through Python is used. */
static inline void dnnops_find_current_stream(dnnops_python *py) {
  PyObject *table = dnnops_import("cupy.cuda.stream", "__pyx_capi__");
  PyObject *capsule =
      table && PyDict_Check(table) ? PyDict_GetItemString(table, "get_current_stream_ptr") : NULL;
  if (capsule && PyCapsule_IsValid(capsule, "intptr_t (void)"))
    py->current_stream = (intptr_t (*)(void))PyCapsule_GetPointer(capsule, "intptr_t (void)");
  Py_XDECREF(table);
  PyErr_Clear();
}

static inline int dnnops_find_not_keeping(dnnops_python *py) {
  PyObject *address = dnnops_import("dnnops.runtime.keeping", "blocks_address");
  if (address == NULL) return -1;
  py->not_keeping = (const int *)PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return py->not_keeping == NULL ? -1 : 0;
}

static inline int dnnops_python_init(void) {
  dnnops_python *py = &dnnops_py;
  if (py->ready) return 0;
  /* A failed attempt keeps what it has found; the next one fills in the rest. */
#define DNNOPS_KEEP(pointer, expression) \
  if ((pointer) == NULL && ((pointer) = (expression)) == NULL) return -1
  DNNOPS_KEEP(py->data, PyUnicode_InternFromString("data"));
  DNNOPS_KEEP(py->mem, PyUnicode_InternFromString("mem"));
  DNNOPS_KEEP(py->ptr, PyUnicode_InternFromString("ptr"));
  DNNOPS_KEEP(py->shape, PyUnicode_InternFromString("shape"));
  DNNOPS_KEEP(py->strides, PyUnicode_InternFromString("strides"));
  DNNOPS_KEEP(py->dtype, PyUnicode_InternFromString("dtype"));
  DNNOPS_KEEP(py->device, PyUnicode_InternFromString("device"));
  DNNOPS_KEEP(py->id, PyUnicode_InternFromString("id"));
  DNNOPS_KEEP(py->order_k, Py_BuildValue("{s:s}", "order", "K"));
  DNNOPS_KEEP(py->ndarray, dnnops_import("cupy", "ndarray"));
  DNNOPS_KEEP(py->copy, PyObject_GetAttrString(py->ndarray, "copy"));
  DNNOPS_KEEP(py->get_device, dnnops_import("cupy_backends.cuda.api.runtime", "getDevice"));
  DNNOPS_KEEP(py->set_device, dnnops_import("cupy_backends.cuda.api.runtime", "setDevice"));
#undef DNNOPS_KEEP
  if (dnnops_find_not_keeping(py) < 0) return -1;
  dnnops_find_current_stream(py);
  py->ready = 1;
  return 0;
}

/* The NumPy dtype object for a code: a borrowed reference. */
static inline PyObject *dnnops_numpy_dtype(int64_t code) {
  if (code < 0 || code >= DNNOPS_DTYPE_COUNT) {
    PyErr_Format(PyExc_SystemError, "dnnops: no dtype has the code %lld", (long long)code);
    return NULL;
  }
  PyObject **slot = &dnnops_py.dtypes[code];
  if (*slot == NULL) {
    PyObject *dtype = dnnops_import("numpy", "dtype");
    if (dtype == NULL) return NULL;
    PyObject *argument = code == DNNOPS_BFLOAT16 ? dnnops_import("ml_dtypes", "bfloat16")
                                                 : PyUnicode_FromString(dnnops_dtype_names[code]);
    if (argument != NULL) {
      *slot = PyObject_CallFunctionObjArgs(dtype, argument, NULL);
      Py_DECREF(argument);
    }
    Py_DECREF(dtype);
  }
  return *slot;
}

/* Copies a tuple of ints, a shape or strides. Returns its length, or -1. */
static inline Py_ssize_t dnnops_read_lengths(PyObject *array, PyObject *name, int64_t *lengths) {
  PyObject *tuple = PyObject_GetAttr(array, name);
  if (tuple == NULL) return -1;
  Py_ssize_t ndim = -1;
  if (!PyTuple_Check(tuple)) {
    PyErr_Format(PyExc_TypeError, "%S of %.100s isn't a tuple", name, Py_TYPE(array)->tp_name);
  } else if (PyTuple_GET_SIZE(tuple) > DNNOPS_MAX_NDIM) {
    PyErr_Format(PyExc_ValueError, "an array of %zd dimensions; at most %d are supported",
                 PyTuple_GET_SIZE(tuple), DNNOPS_MAX_NDIM);
  } else {
    ndim = PyTuple_GET_SIZE(tuple);
    for (Py_ssize_t axis = 0; axis < ndim; ++axis) {
      lengths[axis] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, axis));
      if (lengths[axis] == -1 && PyErr_Occurred()) {
        ndim = -1;
        break;
      }
    }
  }
  Py_DECREF(tuple);
  return ndim;
}

/* Describes an array. dtype_code comes from the variable's type and is not read again. */
static inline int dnnops_gpuarray_read(PyObject *array, int64_t dtype_code, dnnops_tensor *t) {
  if (array == NULL) {
    PyErr_SetString(PyExc_ValueError, "dnnops: an operand has no value");
    return -1;
  }
  if (dnnops_python_init() < 0) return -1;
  PyObject *memory = PyObject_GetAttr(array, dnnops_py.data);
  if (memory == NULL) return -1;
  PyObject *address = PyObject_GetAttr(memory, dnnops_py.ptr);
  Py_DECREF(memory);
  if (address == NULL) return -1;
  t->data = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  if (t->data == NULL && PyErr_Occurred()) return -1;
  t->dtype = dtype_code;
  Py_ssize_t ndim = dnnops_read_lengths(array, dnnops_py.shape, t->shape);
  if (ndim < 0 || dnnops_read_lengths(array, dnnops_py.strides, t->strides) < 0) return -1;
  t->ndim = ndim;
  return 0;
}

/* Computes the strides in bytes of a dense array. */
static inline void dnnops_dense_strides(const dnnops_tensor *t, dnnops_memory_format format,
                                 int64_t *strides) {
  int64_t step = dnnops_itemsizes[t->dtype], order[DNNOPS_MAX_NDIM];
  dnnops_memory_order(format, t->ndim, order);
  for (int64_t i = t->ndim - 1; i >= 0; --i) {
    strides[order[i]] = step;
    step *= t->shape[order[i]];
  }
}

/* Whether strides are those of a dense array. The strides of axes of length 1 and of empty
 * arrays do not matter. */
static inline int dnnops_has_strides(const dnnops_tensor *t, const int64_t *strides) {
  for (int64_t axis = 0; axis < t->ndim; ++axis)
    if (t->shape[axis] == 0) return 1;
  for (int64_t axis = 0; axis < t->ndim; ++axis)
    if (t->shape[axis] != 1 && t->strides[axis] != strides[axis]) return 0;
  return 1;
}

/* The number of an array's device, or -1. */
static inline int64_t dnnops_device_of(PyObject *array) {
  PyObject *owner = PyObject_GetAttr(array, dnnops_py.device);
  if (owner == NULL) return -1;
  PyObject *id = PyObject_GetAttr(owner, dnnops_py.id);
  Py_DECREF(owner);
  if (id == NULL) return -1;
  int64_t number = PyLong_AsLongLong(id);
  Py_DECREF(id);
  return number;
}

static inline int dnnops_on_device(PyObject *array, int64_t device) {
  int64_t number = dnnops_device_of(array);
  return number < 0 ? -1 : number == device;
}

/* Whether an array's reference count shows who uses its memory. An array in another format than
 * contiguous is a transposed view, and views of it refer to its base instead. */
static inline int dnnops_counts_references(const dnnops_tensor *t, dnnops_memory_format format) {
  return format == DNNOPS_CONTIGUOUS || t->ndim < 3;
}

/* Whether *out can hold the result: 1, 0, or -1 for an error. */
static inline int dnnops_gpuarray_reusable(PyObject *out, const dnnops_tensor *want,
                                    const int64_t *strides, int64_t device, dnnops_tensor *have) {
  if (out == NULL || out == Py_None || Py_REFCNT(out) > DNNOPS_THUNK_REFERENCES) return 0;
  if (dnnops_gpuarray_read(out, want->dtype, have) < 0) return -1;
  if (have->ndim != want->ndim ||
      memcmp(have->shape, want->shape, (size_t)want->ndim * sizeof(int64_t)) != 0 ||
      !dnnops_has_strides(have, strides))
    return 0;
  PyObject *dtype = PyObject_GetAttr(out, dnnops_py.dtype);
  if (dtype == NULL) return -1;
  int same = dtype == dnnops_numpy_dtype(want->dtype);
  Py_DECREF(dtype);
  if (!same) return PyErr_Occurred() ? -1 : 0;
  return dnnops_on_device(out, device);
}

/* A new array from CuPy's pool, on the current device. If it is not contiguous, it is a transposed view. */
static inline PyObject *dnnops_gpuarray_new(const dnnops_tensor *want, dnnops_memory_format format) {
  PyObject *dtype = dnnops_numpy_dtype(want->dtype);
  if (dtype == NULL) return NULL;
  int permuted = format != DNNOPS_CONTIGUOUS && want->ndim > 2;
  int64_t ndim = want->ndim, order[DNNOPS_MAX_NDIM], places[DNNOPS_MAX_NDIM];
  dnnops_memory_order(format, ndim, order);
  for (int64_t i = 0; i < ndim; ++i) places[order[i]] = i;
  PyObject *shape = PyTuple_New(ndim);
  if (shape == NULL) return NULL;
  for (int64_t axis = 0; axis < ndim; ++axis) {
    PyObject *length = PyLong_FromLongLong(want->shape[order[axis]]);
    if (length == NULL) {
      Py_DECREF(shape);
      return NULL;
    }
    PyTuple_SET_ITEM(shape, axis, length);
  }
  PyObject *array = PyObject_CallFunctionObjArgs(dnnops_py.ndarray, shape, dtype, NULL);
  Py_DECREF(shape);
  if (array == NULL || !permuted) return array;
  PyObject *inverse = PyTuple_New(ndim);
  PyObject *view = NULL;
  if (inverse != NULL) {
    for (int64_t axis = 0; axis < ndim; ++axis)
      PyTuple_SET_ITEM(inverse, axis, PyLong_FromLongLong(places[axis])); /* small: never fails */
    view = PyObject_CallMethod(array, "transpose", "O", inverse);
    Py_DECREF(inverse);
  }
  Py_DECREF(array);
  return view;
}

/* Makes *out an array for the result that t describes: dtype, ndim and shape are given; the
 * address and strides are filled in. *out is kept if it fits and nothing else uses it. device
 * must be the current one. */
static inline int dnnops_gpuarray_prepare(PyObject **out, dnnops_tensor *t, dnnops_memory_format format,
                                   int64_t device) {
  if (dnnops_python_init() < 0) return -1;
  if (t->ndim < 0 || t->ndim > DNNOPS_MAX_NDIM) {
    PyErr_Format(PyExc_SystemError, "dnnops: an output of %lld dimensions", (long long)t->ndim);
    return -1;
  }
  if (dnnops_numpy_dtype(t->dtype) == NULL) return -1;
  int64_t strides[DNNOPS_MAX_NDIM];
  dnnops_dense_strides(t, format, strides);
  dnnops_tensor have;
  int reusable =
      dnnops_counts_references(t, format) ? dnnops_gpuarray_reusable(*out, t, strides, device, &have) : 0;
  if (reusable < 0) return -1;
  if (!reusable) {
    Py_XDECREF(*out);
    *out = dnnops_gpuarray_new(t, format);
    if (*out == NULL) return -1;
    return dnnops_gpuarray_read(*out, t->dtype, t);
  }
  *t = have;
  return 0;
}

/* An output that a node keeps for its next call. PyTensor releases intermediate results after
 * each call, and creating a small array costs more than calling a library. Larger arrays are not
 * kept: their memory matters, and their kernels take longer than the allocation. */
#define DNNOPS_KEPT_BYTES ((int64_t)1 << 20)

/* What a kept array was like when it was new, and how many references there were to CuPy's objects
 * for its memory. Views refer to the array. Arrays that as_strided or cupy.ndarray(..., memptr=x.data)
 * makes do not: they refer to its MemoryPointer, or to the memory behind that. The counts are compared
 * with those of the new array, because other versions of CuPy may hold further references. */
typedef struct dnnops_state {
  dnnops_tensor tensor;
  Py_ssize_t pointer_references, memory_references;
} dnnops_state;

/* Returns 1; or 0 without an exception if the array cannot be described, and so must not be kept. */
static inline int dnnops_state_read(PyObject *array, int64_t dtype_code, dnnops_state *state) {
  PyObject *memory = NULL, *pointer = NULL;
  if (dnnops_gpuarray_read(array, dtype_code, &state->tensor) == 0) {
    pointer = PyObject_GetAttr(array, dnnops_py.data);
    if (pointer != NULL) memory = PyObject_GetAttr(pointer, dnnops_py.mem);
  }
  const int known = memory != NULL;
  if (known) {
    state->pointer_references = Py_REFCNT(pointer);
    state->memory_references = Py_REFCNT(memory);
  } else {
    PyErr_Clear();
  }
  Py_XDECREF(memory);
  Py_XDECREF(pointer);
  return known;
}

/* Whether an array has the layout that it had. Its shape can be set. */
static inline int dnnops_same_layout(const dnnops_state *now, const dnnops_state *then) {
  const dnnops_tensor *a = &now->tensor, *b = &then->tensor;
  const size_t bytes = (size_t)b->ndim * sizeof(int64_t);
  return a->data == b->data && a->ndim == b->ndim && memcmp(a->shape, b->shape, bytes) == 0 &&
         memcmp(a->strides, b->strides, bytes) == 0;
}

/* Whether a kept array is as it was when it was new, and nothing else uses its memory. Its holders
 * have `references` to it. */
static inline int dnnops_state_is_new(PyObject *array, Py_ssize_t references, const dnnops_state *then) {
  dnnops_state now;
  if (Py_REFCNT(array) > references || !dnnops_state_read(array, then->tensor.dtype, &now)) return 0;
  return dnnops_same_layout(&now, then) && now.pointer_references <= then->pointer_references &&
         now.memory_references <= then->memory_references;
}

typedef struct dnnops_kept {
  PyObject *array; /* an owned reference, or NULL */
  dnnops_state state;
  dnnops_memory_format format;
  int64_t device;
  void *stream;
} dnnops_kept;

static inline void dnnops_kept_clear(dnnops_kept *kept) {
  Py_CLEAR(kept->array);
}

/* Like dnnops_gpuarray_prepare, but takes the kept array if nothing else holds it, unless a CUDA
 * graph is captured. The stream
 * must be the same: on another stream, work that reads the array may not have finished. */
static inline int dnnops_gpuarray_prepare_kept(PyObject **out, dnnops_tensor *t, dnnops_memory_format format,
                                               int64_t device, void *stream, dnnops_kept *kept) {
  if (dnnops_python_init() < 0) return -1;
  if (*dnnops_py.not_keeping) {
    dnnops_kept_clear(kept);
    return dnnops_gpuarray_prepare(out, t, format, device);
  }
  if (kept->array != NULL) {
    const Py_ssize_t references = *out == kept->array ? DNNOPS_THUNK_REFERENCES + 1 : 1;
    const dnnops_tensor *have = &kept->state.tensor;
    if (kept->format == format && kept->device == device && kept->stream == stream &&
        have->dtype == t->dtype && have->ndim == t->ndim &&
        memcmp(have->shape, t->shape, (size_t)t->ndim * sizeof(int64_t)) == 0 &&
        dnnops_state_is_new(kept->array, references, &kept->state)) {
      if (*out != kept->array) {
        Py_XDECREF(*out);
        Py_INCREF(kept->array);
        *out = kept->array;
      }
      *t = *have;
      return 0;
    }
    if (*out == kept->array) Py_CLEAR(*out); /* its reference count does not show all users */
    dnnops_kept_clear(kept);
  }
  const PyObject *const before = *out;
  if (dnnops_gpuarray_prepare(out, t, format, device) < 0) return -1;
  int64_t bytes = dnnops_itemsizes[t->dtype];
  for (int64_t axis = 0; axis < t->ndim; ++axis) bytes *= t->shape[axis];
  /* Who used an older array's memory when it was new is not known. */
  const int is_new = *out != before;
  if (is_new && bytes <= DNNOPS_KEPT_BYTES && dnnops_counts_references(t, format) &&
      dnnops_state_read(*out, t->dtype, &kept->state)) {
    Py_INCREF(*out);
    kept->array = *out;
    kept->format = format;
    kept->device = device;
    kept->stream = stream;
  }
  return 0;
}

/* Reads only the shape; ndim is an npy_intp. */
static inline int dnnops_gpuarray_shape(PyObject *array, int64_t *lengths, Py_ssize_t *ndim) {
  if (dnnops_python_init() < 0) return -1;
  *ndim = dnnops_read_lengths(array, dnnops_py.shape, lengths);
  return *ndim < 0 ? -1 : 0;
}

/* The stream that CuPy currently uses in this thread on the current device. NULL is the default
 * stream, so check PyErr_Occurred() for errors. */
static inline void *dnnops_gpuarray_stream(void) {
  if (dnnops_python_init() < 0) return NULL;
  if (dnnops_py.current_stream != NULL) return (void *)dnnops_py.current_stream();
  PyObject *get = dnnops_import("cupy.cuda", "get_current_stream");
  if (get == NULL) return NULL;
  PyObject *stream = PyObject_CallNoArgs(get);
  Py_DECREF(get);
  if (stream == NULL) return NULL;
  PyObject *address = PyObject_GetAttr(stream, dnnops_py.ptr);
  Py_DECREF(stream);
  if (address == NULL) return NULL;
  void *found = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return found;
}

static inline int dnnops_set_device(int64_t device) {
  PyObject *number = PyLong_FromLongLong(device);
  if (number == NULL) return -1;
  PyObject *done = PyObject_CallFunctionObjArgs(dnnops_py.set_device, number, NULL);
  Py_DECREF(number);
  Py_XDECREF(done);
  return done == NULL ? -1 : 0;
}

/* Makes device current. Returns the previous one for dnnops_gpuarray_leave_device, or -1. */
static inline int64_t dnnops_gpuarray_enter_device(int64_t device) {
  if (dnnops_python_init() < 0) return -1;
  PyObject *number = PyObject_CallNoArgs(dnnops_py.get_device);
  if (number == NULL) return -1;
  int64_t previous = PyLong_AsLongLong(number);
  Py_DECREF(number);
  if (previous == -1 && PyErr_Occurred()) return -1;
  if (previous != device && dnnops_set_device(device) < 0) return -1;
  return previous;
}

/* Preserves an exception that is already set. */
static inline int dnnops_gpuarray_leave_device(int64_t previous, int64_t device) {
  if (previous < 0 || previous == device) return 0;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  int failed = dnnops_set_device(previous);
  if (type != NULL) PyErr_Restore(type, value, traceback);
  return failed;
}

/* A copy on the array's device that keeps the memory format, as a new reference. CuPy would copy to the
 * current device. */
static inline PyObject *dnnops_gpuarray_copy(PyObject *array) {
  if (dnnops_python_init() < 0) return NULL;
  int64_t device = dnnops_device_of(array);
  if (device < 0) return NULL;
  int64_t previous = dnnops_gpuarray_enter_device(device);
  if (previous < 0) return NULL;
  PyObject *arguments = PyTuple_Pack(1, array);
  PyObject *copied = arguments == NULL ? NULL : PyObject_Call(dnnops_py.copy, arguments, dnnops_py.order_k);
  Py_XDECREF(arguments);
  if (dnnops_gpuarray_leave_device(previous, device) < 0) Py_CLEAR(copied);
  return copied;
}

#endif
