/* Python exceptions for the statuses of the runtime libraries. */
#ifndef DNNOPS_RAISE_H
#define DNNOPS_RAISE_H

#include <Python.h>

/* Sets the Python exception for a failed call's status. */
static inline void dnnops_raise(int status, const char *message) {
  PyObject *module = PyImport_ImportModule("dnnops.errors");
  if (!module) return;
  PyObject *error = PyObject_CallMethod(module, "error_from_status", "is", status, message);
  Py_DECREF(module);
  if (!error) return;
  PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  Py_DECREF(error);
}

#endif
