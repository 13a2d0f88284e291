"""C code that PyTensor emits for every variable of `GpuArrayType`."""

from __future__ import annotations

import hashlib
from pathlib import Path

_C_CODE = Path(__file__).resolve().parent.parent / "c_code"

HEADER_DIRS: tuple[str, ...] = (str(_C_CODE / "abi"),)
HEADERS: tuple[str, ...] = ('"dnnops_gpuarray.h"',)


def _header_version() -> str:
    digest = hashlib.sha256()
    for header in ("dnnops_gpuarray.h", "dnnops_runtime.h"):
        digest.update((_C_CODE / "abi" / header).read_bytes())
    return digest.hexdigest()[:16]


#: Part of the C code's cache version: a module is recompiled when a header changes.
HEADER_VERSION: str = _header_version()


def c_declare(name: str) -> str:
    return f"PyObject *{name};"


def c_init(name: str) -> str:
    return f"{name} = NULL;"


def c_extract(name: str, fail: str) -> str:
    # An input's storage holds None until it has a value. Outputs of an Op go through
    # c_extract_out, which converts None to NULL.
    return f"""
    {name} = NULL;
    if (py_{name} == Py_None) {{
        PyErr_SetString(PyExc_ValueError, "expected a device array, not None");
        {fail}
    }}
    {name} = py_{name};
    Py_XINCREF({name});
    """


def c_sync(name: str) -> str:
    return f"""
    if (py_{name} != {name}) {{
        Py_XDECREF(py_{name});
        py_{name} = {name} ? {name} : Py_None;
        Py_INCREF(py_{name});
    }}
    """


def c_cleanup(name: str) -> str:
    return f"Py_XDECREF({name});"


#: C code of ``DeepCopyOp``: a copy that keeps the memory format.
DEEP_COPY = """
    Py_XDECREF(%(oname)s);
    %(oname)s = dnnops_gpuarray_copy(%(iname)s);
    if (%(oname)s == NULL) {
        %(fail)s
    }
"""

#: C code of ``ViewOp``.
VIEW = """
    Py_XDECREF(%(oname)s);
    %(oname)s = %(iname)s;
    Py_XINCREF(%(oname)s);
"""

#: C code of ``Shape``: an int64 vector.
SHAPE = """
    {
        npy_intp ndim = 0;
        int64_t lengths[DNNOPS_MAX_NDIM];
        if (dnnops_gpuarray_shape(%(iname)s, lengths, &ndim) < 0) {
            %(fail)s
        }
        if (%(oname)s == NULL || PyArray_DIMS(%(oname)s)[0] != ndim) {
            Py_XDECREF(%(oname)s);
            %(oname)s = (PyArrayObject *)PyArray_SimpleNew(1, &ndim, NPY_INT64);
            if (%(oname)s == NULL) {
                %(fail)s
            }
        }
        for (npy_intp axis = 0; axis < ndim; ++axis) {
            *(npy_int64 *)PyArray_GETPTR1(%(oname)s, axis) = lengths[axis];
        }
    }
"""

#: C code of ``Shape_i``: an int64 scalar.
SHAPE_I = """
    {
        npy_intp ndim = 0;
        int64_t lengths[DNNOPS_MAX_NDIM];
        if (dnnops_gpuarray_shape(%(iname)s, lengths, &ndim) < 0) {
            %(fail)s
        }
        if (%(i)s >= ndim) {
            PyErr_Format(PyExc_TypeError, "Shape_i: axis %%ld of an array of %%ld dimensions",
                         (long)%(i)s, (long)ndim);
            %(fail)s
        }
        if (%(oname)s == NULL) {
            %(oname)s = (PyArrayObject *)PyArray_SimpleNew(0, NULL, NPY_INT64);
            if (%(oname)s == NULL) {
                %(fail)s
            }
        }
        *(npy_int64 *)PyArray_DATA(%(oname)s) = lengths[%(i)s];
    }
"""
