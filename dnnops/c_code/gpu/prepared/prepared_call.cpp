// Reads prepared calls from Python's tuples.
#include "prepared_call.hpp"

#include <cstring>

namespace dnnops {

namespace {

PyObject *item(PyObject *tuple, Py_ssize_t index) {
  PyObject *const found = PyTuple_GetItem(tuple, index);  // borrowed
  return require(found);
}

Py_ssize_t length(PyObject *tuple) {
  const Py_ssize_t size = PyTuple_Size(tuple);
  if (size < 0) throw PythonError();
  return size;
}

int64_t integer(PyObject *tuple, Py_ssize_t index) {
  const long long value = PyLong_AsLongLong(item(tuple, index));
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  return value;
}

double real(PyObject *tuple, Py_ssize_t index) {
  const double value = PyFloat_AsDouble(item(tuple, index));
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  return value;
}

// (shape, dtype, bytes)
NewArray read_array(PyObject *tuple) {
  NewArray array;
  array.shape = Reference::to(item(tuple, 0));
  array.dtype = Reference::to(item(tuple, 1));
  array.bytes = integer(tuple, 2);
  return array;
}

// (place, views)
Result read_result(PyObject *tuple) {
  Result result;
  result.place = integer(tuple, 0);
  PyObject *const views = item(tuple, 1);
  for (Py_ssize_t i = 0; i < length(views); ++i) result.views.push_back(Reference::to(item(views, i)));
  return result;
}

// (function, blocks, threads, arguments, offsets, patches, what keeps the function loaded)
void read_kernel(PyObject *tuple, KernelStep &step) {
  step.function = PyLong_AsVoidPtr(item(tuple, 0));
  if (!step.function && PyErr_Occurred()) throw PythonError();
  step.blocks = integer(tuple, 1);
  step.threads = integer(tuple, 2);
  char *bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(item(tuple, 3), &bytes, &size) < 0) throw PythonError();
  step.arguments.assign(bytes, bytes + size);
  PyObject *const offsets = item(tuple, 4), *const patches = item(tuple, 5);
  for (Py_ssize_t i = 0; i < length(offsets); ++i)
    step.pointers.push_back(step.arguments.data() + integer(offsets, i));
  for (Py_ssize_t i = 0; i < length(patches); ++i) {
    PyObject *const patch = item(patches, i);
    step.patches.push_back({integer(patch, 0), integer(patch, 1), integer(patch, 2), integer(patch, 3)});
  }
}

// (settings, alpha, alpha_place, beta, beta_place, three of (place, offset, dtype, shape, strides))
void read_product(PyObject *tuple, ProductStep &step) {
  step.settings = integer(tuple, 0);
  step.alpha = real(tuple, 1);
  step.alpha_place = integer(tuple, 2);
  step.beta = real(tuple, 3);
  step.beta_place = integer(tuple, 4);
  std::memset(step.tensors, 0, sizeof step.tensors);
  for (int k = 0; k < 3; ++k) {
    PyObject *const given = item(tuple, 5 + k), *const shape = item(given, 3), *const strides = item(given, 4);
    step.places[k] = integer(given, 0);
    step.offsets[k] = integer(given, 1);
    step.tensors[k].dtype = integer(given, 2);
    step.tensors[k].ndim = 3;
    for (int axis = 0; axis < 3; ++axis) {
      step.tensors[k].shape[axis] = integer(shape, axis);
      step.tensors[k].strides[axis] = integer(strides, axis);
    }
  }
}

}  // namespace

std::unique_ptr<PreparedCall> read_prepared(PyObject *encoded, std::vector<int64_t> key) {
  std::unique_ptr<PreparedCall> call(new PreparedCall);
  call->key = std::move(key);
  call->source = Reference::to(encoded);
  call->runs_in_python = encoded == Py_None;
  if (call->runs_in_python) return call;
  PyObject *const arrays = item(encoded, 0), *const steps = item(encoded, 1), *const results = item(encoded, 2);
  for (Py_ssize_t i = 0; i < length(arrays); ++i) call->arrays.push_back(read_array(item(arrays, i)));
  call->steps.reserve(length(steps));
  for (Py_ssize_t i = 0; i < length(steps); ++i) {
    PyObject *const given = item(steps, i);
    call->steps.emplace_back();
    Step &step = call->steps.back();
    step.is_product = integer(given, 0);
    if (step.is_product)
      read_product(item(given, 1), step.product);
    else
      read_kernel(item(given, 1), step.kernel);
  }
  for (Py_ssize_t i = 0; i < length(results); ++i) call->results.push_back(read_result(item(results, i)));
  return call;
}

}  // namespace dnnops
