// Runs nodes whose calls dnnops/gpuarray/prepared/call.py prepares, without the interpreter.
//
// PyTensor's virtual machine calls a function with a struct whose first field is a list for an exception. A call
// reads the operands' addresses, shapes and strides. If they are like those of an earlier call, it allocates,
// launches and views what that call prepared; otherwise it asks Python once.
#include <Python.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "../../abi/dnnops_gpuarray.h"
#include "../../abi/dnnops_raise.h"
#include "../../abi/python/dnnops_cudnn.h"
#include "../../common/error.hpp"
#include "../kernels/kernel_launch.hpp"
#include "prepared_call.hpp"

namespace dnnops {

namespace {

// Calls that a node keeps. A node that sees more shapes prepares them again.
constexpr size_t KEPT_CALLS = 8;
// Packed kernels need addresses that are multiples of this.
constexpr uintptr_t ALIGNMENT = 16;

// What a call depends on of an operand: of an array, its layout; of a value on the host, its bytes; of a number, only
// whether it is on the host; of a constant, nothing.
enum Role : char { ARRAY = 'a', VALUE = 'v', NUMBER = 'n', CONSTANT = 'c' };

struct Operand {
  Reference cell;  // a list with the operand as its only item
  Role role = ARRAY;
};

struct PreparedThunk {
  PyObject *errors = nullptr;  // where PyTensor looks for an exception; the first field
  std::vector<Operand> operands;
  std::vector<Reference> outputs;
  Reference prepare, python;  // functions: of the operands; and of nothing, or of an exception that is the reason
  int64_t device = 0;
  // Whether results are views of the only operand that is not a constant, and may be kept with it.
  bool keeps_views = false;
  std::vector<std::unique_ptr<PreparedCall>> calls;  // the latest one is the last one
  PreparedCall *last = nullptr;
  void *kept_stream = nullptr;
  // Of the current call.
  std::vector<int64_t> key;
  std::vector<Reference> values;  // owned, since other code may replace a cell's value in the middle of a call
  std::vector<char *> addresses;  // of operands and new arrays
  bool is_running = false;
  ~PreparedThunk() { Py_XDECREF(errors); }
};

// A call in progress. What it has read is released at its end.
struct Running {
  explicit Running(PreparedThunk &thunk) : thunk(thunk) { thunk.is_running = true; }
  ~Running() {
    const std::vector<Reference> released = std::move(thunk.values);
    thunk.values.clear();
    thunk.is_running = false;
  }
  PreparedThunk &thunk;
};

// Thrown before anything was launched, with a Python exception set, if the node may run in Python nevertheless.
struct NotFromC {};

PyObject *value_of(const Operand &operand) { return PyList_GET_ITEM(operand.cell.get(), 0); }

bool is_device_array(PyObject *value) {
  return PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject *>(dnnops_py.ndarray));
}

// Appends the bytes of an array or a number on the host.
void append_value(std::vector<int64_t> &key, PyObject *value) {
  if (value == Py_None) return key.push_back(-1);
  if (PyLong_Check(value)) {
    const long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred()) throw NotFromC();
    key.push_back(-2);
    return key.push_back(number);
  }
  Py_buffer buffer;
  // With a copy in C order if it has gaps, as reversed arrays do.
  if (PyObject_GetBuffer(value, &buffer, PyBUF_STRIDED_RO) < 0) throw NotFromC();
  const size_t start = key.size() + 1;
  key.push_back(buffer.len);
  key.resize(start + (buffer.len + 7) / 8, 0);
  const int failed = buffer.len ? PyBuffer_ToContiguous(&key[start], &buffer, buffer.len, 'C') : 0;
  PyBuffer_Release(&buffer);
  if (failed < 0) throw NotFromC();
}

// Reads the operands: what the call depends on, and the addresses of arrays.
void read_operands(PreparedThunk &thunk) {
  thunk.key.clear();
  const size_t count = thunk.operands.size();
  thunk.values.clear();
  thunk.values.resize(count);
  thunk.addresses.assign(count, nullptr);
  for (size_t i = 0; i < count; ++i) {
    const Operand &operand = thunk.operands[i];
    PyObject *const value = value_of(operand);
    thunk.values[i] = Reference::to(value);
    if (operand.role == CONSTANT) continue;
    if (operand.role == VALUE) {
      append_value(thunk.key, value);
      continue;
    }
    if (operand.role == NUMBER) {
      const bool is_on_device = is_device_array(value);
      thunk.key.push_back(is_on_device);
      if (!is_on_device) continue;
    }
    dnnops_tensor tensor;
    if (value == Py_None) {
      PyErr_SetString(PyExc_ValueError, "expected a device array, not None");
      throw PythonError();
    }
    if (dnnops_gpuarray_read(value, 0, &tensor) < 0) throw NotFromC();
    thunk.addresses[i] = static_cast<char *>(tensor.data);
    thunk.key.push_back(reinterpret_cast<uintptr_t>(tensor.data) % ALIGNMENT);
    thunk.key.push_back(tensor.ndim);
    thunk.key.insert(thunk.key.end(), tensor.shape, tensor.shape + tensor.ndim);
    thunk.key.insert(thunk.key.end(), tensor.strides, tensor.strides + tensor.ndim);
  }
}

void forget_arrays(PreparedCall &call) {
  for (NewArray &array : call.arrays) array.kept = Reference();
  call.viewed = Reference();
  call.kept_views.clear();
}

// The operands that were read, to which the key belongs, as a list.
Reference values_of(const PreparedThunk &thunk) {
  Reference list(require(PyList_New(thunk.values.size())));
  for (size_t i = 0; i < thunk.values.size(); ++i)
    PyList_SET_ITEM(list.get(), i, Reference::to(thunk.values[i].get()).release());
  return list;
}

PreparedCall &find_call(PreparedThunk &thunk) {
  if (thunk.last && thunk.last->key == thunk.key) return *thunk.last;
  if (thunk.last) forget_arrays(*thunk.last);
  thunk.last = nullptr;
  const auto found = std::find_if(thunk.calls.begin(), thunk.calls.end(),
                                  [&](const std::unique_ptr<PreparedCall> &call) { return call->key == thunk.key; });
  if (found != thunk.calls.end()) {
    std::rotate(found, found + 1, thunk.calls.end());
    return *(thunk.last = thunk.calls.back().get());
  }
  const Reference encoded(require(PyObject_CallOneArg(thunk.prepare.get(), values_of(thunk).get())));
  if (thunk.calls.size() >= KEPT_CALLS) thunk.calls.erase(thunk.calls.begin());
  try {
    thunk.calls.push_back(read_prepared(encoded.get(), thunk.key));
  } catch (const PythonError &) {
    throw NotFromC();
  }
  return *(thunk.last = thunk.calls.back().get());
}

// Whether the node may keep results and views for its next call; see dnnops/runtime/keeping.py.
bool may_keep() { return !*dnnops_py.not_keeping; }

// The references to an array or a view that a call keeps, if nobody else holds it: those of the call, and of cells
// whose value it is.
Py_ssize_t own_references(const PreparedThunk &thunk, PyObject *kept) {
  Py_ssize_t references = 1;
  for (const Reference &cell : thunk.outputs) references += PyList_GET_ITEM(cell.get(), 0) == kept;
  return references;
}

bool is_free(const PreparedThunk &thunk, const NewArray &array) {
  PyObject *const kept = array.kept.get();
  return kept && dnnops_state_is_new(kept, own_references(thunk, kept), &array.state);
}

// Others may share a view's memory, which is the operand's. Who holds the view may have set its shape.
bool is_free(const PreparedThunk &thunk, const KeptView &kept) {
  PyObject *const view = kept.view.get();
  dnnops_state now;
  return Py_REFCNT(view) <= own_references(thunk, view) && dnnops_state_read(view, 0, &now) &&
         dnnops_same_layout(&now, &kept.state);
}

// Allocates the new arrays of a call, or takes those of the last call.
std::vector<Reference> allocate(PreparedThunk &thunk, PreparedCall &call, void *stream) {
  std::vector<Reference> arrays;
  arrays.reserve(call.arrays.size());
  // On another stream, work that reads an array may not have finished.
  if (stream != thunk.kept_stream) forget_arrays(call);
  const bool keeps = may_keep();
  thunk.kept_stream = stream;
  for (size_t i = 0; i < call.arrays.size(); ++i) {
    NewArray &array = call.arrays[i];
    if (is_free(thunk, array)) {
      arrays.push_back(Reference::to(array.kept.get()));
      thunk.addresses.push_back(static_cast<char *>(array.state.tensor.data));
      continue;
    }
    array.kept = Reference();
    arrays.emplace_back(
        require(PyObject_CallFunctionObjArgs(dnnops_py.ndarray, array.shape.get(), array.dtype.get(), nullptr)));
    dnnops_tensor tensor;
    if (dnnops_gpuarray_read(arrays.back().get(), 0, &tensor) < 0) throw NotFromC();
    thunk.addresses.push_back(static_cast<char *>(tensor.data));
    if (keeps && array.bytes <= DNNOPS_KEPT_BYTES && dnnops_state_read(arrays.back().get(), 0, &array.state))
      array.kept = Reference::to(arrays.back().get());
  }
  return arrays;
}

void fill_in(const PreparedThunk &thunk, KernelStep &step) {
  for (const Patch &patch : step.patches) {
    char *const at = step.arguments.data() + patch.at;
    if (!patch.bytes) {
      const char *const address = thunk.addresses[patch.place] + patch.offset;
      std::memcpy(at, &address, sizeof address);
      continue;
    }
    Py_buffer buffer;
    if (PyObject_GetBuffer(thunk.values[patch.place].get(), &buffer, PyBUF_SIMPLE) < 0) throw NotFromC();
    const bool fits = buffer.len == patch.bytes;
    if (fits) std::memcpy(at, buffer.buf, buffer.len);
    PyBuffer_Release(&buffer);
    if (!fits) {
      PyErr_Format(PyExc_TypeError, "a number of %lld bytes was expected, not one of %zd", (long long)patch.bytes,
                   buffer.len);
      throw NotFromC();
    }
  }
}

// Reads a factor of a product, if it is an operand.
void read_factor(const PreparedThunk &thunk, int64_t place, double &factor) {
  if (place < 0) return;
  factor = PyFloat_AsDouble(thunk.values[place].get());
  if (factor == -1 && PyErr_Occurred()) throw NotFromC();
}

void fill_in(const PreparedThunk &thunk, ProductStep &step) {
  read_factor(thunk, step.alpha_place, step.alpha);
  read_factor(thunk, step.beta_place, step.beta);
}

int run_product(const PreparedThunk &thunk, const ProductStep &step, void *stream) {
  dnnops_tensor tensors[3];
  std::memcpy(tensors, step.tensors, sizeof tensors);
  for (int k = 0; k < 3; ++k) tensors[k].data = thunk.addresses[step.places[k]] + step.offsets[k];
  const dnnops_context context = {nullptr, stream, thunk.device};
  return dnnops_cudnn_product(&context, step.settings, step.alpha, step.beta, tensors, &tensors[2]);
}

int run_kernel(KernelStep &step, void *stream) {
  return guarded("a kernel", nullptr, 0, [&] {
    launch_kernel({step.function, false}, static_cast<unsigned>(step.blocks), static_cast<unsigned>(step.threads), 0,
                  stream, step.pointers.data());
  });
}

void launch(PreparedThunk &thunk, PreparedCall &call, void *stream) {
  if (call.steps.empty()) return;
  for (Step &step : call.steps) {
    if (step.is_product)
      fill_in(thunk, step.product);
    else
      fill_in(thunk, step.kernel);
  }
  int status = 0;
  size_t launched = 0;
  // A product may wait for a lock whose holder waits for the interpreter.
  Py_BEGIN_ALLOW_THREADS
  for (; launched < call.steps.size(); ++launched) {
    Step &step = call.steps[launched];
    status = step.is_product ? run_product(thunk, step.product, stream) : run_kernel(step.kernel, stream);
    if (status) break;
  }
  Py_END_ALLOW_THREADS
  if (!status) return;
  dnnops_raise(status, dnnops_last_error());
  const bool has_started = launched || call.steps[launched].is_product;
  if (has_started || status != DNNOPS_NOT_SUPPORTED) throw PythonError();
  // CuPy launches kernels in another way, which may work. Errors in a capture are no reason to do so from now on.
  if (may_keep()) call.runs_in_python = true;
  throw NotFromC();
}

Reference result_of(const PreparedThunk &thunk, const Result &result, const std::vector<Reference> &arrays) {
  const size_t count = thunk.operands.size(), place = static_cast<size_t>(result.place);
  Reference found = Reference::to(place < count ? thunk.values[place].get() : arrays[place - count].get());
  for (const Reference &view : result.views)
    found = Reference(require(PyObject_CallOneArg(view.get(), found.get())));
  return found;
}

void store_all(const PreparedThunk &thunk, std::vector<Reference> &results) {
  for (size_t i = 0; i < results.size(); ++i)
    if (PyList_SetItem(thunk.outputs[i].get(), 0, results[i].release()) < 0) throw PythonError();
}

// The views of the last call, if the operand is still the same array, with the layout that the key contains.
std::vector<Reference> kept_views(const PreparedThunk &thunk, const PreparedCall &call) {
  std::vector<Reference> found;
  if (!call.viewed) return found;
  for (size_t i = 0; i < thunk.operands.size(); ++i)
    if (thunk.operands[i].role == ARRAY && thunk.values[i].get() != call.viewed.get()) return found;
  for (const KeptView &kept : call.kept_views)
    if (!is_free(thunk, kept)) return found;
  for (const KeptView &kept : call.kept_views) found.push_back(Reference::to(kept.view.get()));
  return found;
}

// Whether the memory that an array keeps allocated is small. It may be part of a larger one.
bool is_small(PyObject *array) {
  try {
    const Reference pointer(require(PyObject_GetAttr(array, dnnops_py.data)));
    const Reference memory(require(PyObject_GetAttr(pointer.get(), dnnops_py.mem)));
    const Reference bytes(require(PyObject_GetAttrString(memory.get(), "size")));
    const long long count = PyLong_AsLongLong(bytes.get());
    if (count == -1 && PyErr_Occurred()) throw PythonError();
    return count <= DNNOPS_KEPT_BYTES;
  } catch (const PythonError &) {
    PyErr_Clear();
    return false;
  }
}

// Whether an array uses the memory of another one. A reshape that copies would be out of date in the next call.
bool is_view_of(PyObject *array, PyObject *operand) {
  const Reference base(require(PyObject_GetAttrString(array, "base")));
  if (base.get() == operand) return true;
  const Reference owner(require(PyObject_GetAttrString(operand, "base")));
  return base.get() != Py_None && base.get() == owner.get();
}

void keep_views(const PreparedThunk &thunk, PreparedCall &call, const std::vector<Reference> &results) {
  call.viewed = Reference();
  call.kept_views.clear();
  if (!thunk.keeps_views || !may_keep() || !call.arrays.empty() || !call.steps.empty()) return;
  PyObject *operand = nullptr;
  for (size_t i = 0; i < thunk.operands.size(); ++i)
    if (thunk.operands[i].role == ARRAY) operand = thunk.values[i].get();
  if (!operand) return;
  // To return the operand itself takes no time.
  for (const Reference &result : results)
    if (result.get() == operand || !is_view_of(result.get(), operand)) return;
  // A larger array would take memory that its owner believes to have freed.
  if (!is_small(operand)) return;
  std::vector<KeptView> views;
  for (const Reference &result : results) {
    views.push_back({Reference::to(result.get()), {}});
    if (!dnnops_state_read(result.get(), 0, &views.back().state)) return;
  }
  call.viewed = Reference::to(operand);
  call.kept_views = std::move(views);
}

void run_in_python(const PreparedThunk &thunk) {
  const Reference done(require(PyObject_CallNoArgs(thunk.python.get())));
}

// Runs a node in Python because of the exception that is set.
void fall_back(const PreparedThunk &thunk) {
  // An interrupt is no reason.
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw PythonError();
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const Reference owned_type(type), error(value), owned_traceback(traceback);
  const Reference done(require(PyObject_CallOneArg(thunk.python.get(), error.get())));
}

void run(PreparedThunk &thunk) {
  read_operands(thunk);
  PreparedCall &call = find_call(thunk);
  if (call.runs_in_python) return run_in_python(thunk);
  if (!may_keep()) forget_arrays(call);
  std::vector<Reference> arrays, results = kept_views(thunk, call);
  if (!results.empty()) return store_all(thunk, results);
  if (!call.steps.empty() || !call.arrays.empty()) {
    void *const stream = dnnops_gpuarray_stream();
    if (!stream && PyErr_Occurred()) throw NotFromC();
    arrays = allocate(thunk, call, stream);
    launch(thunk, call, stream);
  }
  results.reserve(call.results.size());
  for (const Result &result : call.results) results.push_back(result_of(thunk, result, arrays));
  keep_views(thunk, call, results);
  store_all(thunk, results);
}

// Moves the exception into the list in which PyTensor looks for it.
void store_exception(PreparedThunk &thunk) {
  PyObject *found[3];
  PyErr_Fetch(&found[0], &found[1], &found[2]);
  if (!found[0]) {
    PyErr_SetString(PyExc_SystemError, "dnnops: a node failed without an exception");
    PyErr_Fetch(&found[0], &found[1], &found[2]);
  }
  PyErr_NormalizeException(&found[0], &found[1], &found[2]);
  for (int i = 0; i < 3; ++i) {
    if (!found[i]) Py_INCREF(found[i] = Py_None);
    PyList_SetItem(thunk.errors, i, found[i]);
  }
}

// Returns 0, or -1 with a Python exception set.
int call(PreparedThunk &thunk) {
  const int64_t previous = dnnops_gpuarray_enter_device(thunk.device);
  if (previous < 0) return -1;
  int status = -1;
  try {
    if (thunk.is_running) {
      // Another thread runs this node, or code that the node runs calls its function.
      run_in_python(thunk);
    } else {
      const Running running(thunk);
      try {
        run(thunk);
      } catch (const NotFromC &) {
        if (thunk.last) forget_arrays(*thunk.last);
        fall_back(thunk);
      }
    }
    status = 0;
  } catch (const PythonError &) {
  } catch (const std::bad_alloc &) {
    PyErr_NoMemory();
  }
  if (dnnops_gpuarray_leave_device(previous, thunk.device) < 0) status = -1;
  return status;
}

// What PyTensor's virtual machine calls.
int call_from_c(void *data) {
  PreparedThunk &thunk = *static_cast<PreparedThunk *>(data);
  if (!call(thunk)) return 0;
  store_exception(thunk);
  return 1;
}

void destroy(PyObject *capsule) { delete static_cast<PreparedThunk *>(PyCapsule_GetContext(capsule)); }

}  // namespace

}  // namespace dnnops

DNNOPS_EXPORT PyObject *dnnops_prepared_thunk(PyObject *cells, const char *roles, PyObject *outputs, PyObject *prepare,
                                              PyObject *python, int64_t device, int64_t keeps_views) {
  using namespace dnnops;
  if (dnnops_python_init() < 0) return nullptr;
  std::unique_ptr<PreparedThunk> thunk(new PreparedThunk);
  thunk->errors = PyList_New(3);
  if (!thunk->errors) return nullptr;
  for (int i = 0; i < 3; ++i) {
    Py_INCREF(Py_None);
    PyList_SET_ITEM(thunk->errors, i, Py_None);
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(cells); ++i) {
    thunk->operands.emplace_back();
    thunk->operands.back().cell = Reference::to(PyList_GET_ITEM(cells, i));
    thunk->operands.back().role = static_cast<Role>(roles[i]);
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outputs); ++i)
    thunk->outputs.push_back(Reference::to(PyList_GET_ITEM(outputs, i)));
  thunk->prepare = Reference::to(prepare);
  thunk->python = Reference::to(python);
  thunk->device = device;
  thunk->keeps_views = keeps_views;
  PyObject *const capsule = PyCapsule_New(reinterpret_cast<void *>(call_from_c), nullptr, destroy);
  if (!capsule) return nullptr;
  PyCapsule_SetContext(capsule, thunk.release());
  return capsule;
}

// Calls a thunk from Python.
DNNOPS_EXPORT PyObject *dnnops_prepared_run(PyObject *capsule) {
  void *const thunk = PyCapsule_GetContext(capsule);
  if (!thunk || dnnops::call(*static_cast<dnnops::PreparedThunk *>(thunk)) < 0) return nullptr;
  Py_RETURN_NONE;
}
