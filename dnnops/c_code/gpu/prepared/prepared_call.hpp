// What a node does for operands of certain shapes: the arrays that it allocates, its launches and its results.
// dnnops/gpuarray/prepared/call.py makes it once; prepared_thunk.cpp runs it in each call.
#ifndef DNNOPS_GPU_PREPARED_CALL_HPP
#define DNNOPS_GPU_PREPARED_CALL_HPP

#include <Python.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "../../abi/dnnops_gpuarray.h"

namespace dnnops {

// An owned reference.
class Reference {
 public:
  explicit Reference(PyObject *owned = nullptr) : object_(owned) {}
  static Reference to(PyObject *borrowed) {
    Py_XINCREF(borrowed);
    return Reference(borrowed);
  }
  Reference(Reference &&other) noexcept : object_(other.release()) {}
  Reference &operator=(Reference &&other) noexcept {
    PyObject *const old = object_;
    object_ = other.release();
    Py_XDECREF(old);
    return *this;
  }
  ~Reference() { Py_XDECREF(object_); }
  PyObject *get() const { return object_; }
  PyObject *release() {
    PyObject *const object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_; }

 private:
  PyObject *object_;
};

// Thrown when a Python exception is set.
struct PythonError {};

inline PyObject *require(PyObject *object) {
  if (!object) throw PythonError();
  return object;
}

// The places of a call are its operands, and then the arrays that it allocates.

struct NewArray {
  Reference shape, dtype;  // the arguments of cupy.ndarray
  int64_t bytes = 0;
  // A small array is kept for the next call, if nobody else uses its memory then.
  Reference kept;
  dnnops_state state = {};
};

// An operand or a new array, or a view of it that callables make one after the other.
struct Result {
  int64_t place = 0;
  std::vector<Reference> views;
};

// Bytes of a kernel's arguments that depend on the call: an address, or the value of a number on the host.
struct Patch {
  int64_t at, place, offset, bytes;  // an address if `bytes` is 0
};

struct KernelStep {
  void *function = nullptr;
  int64_t blocks = 0, threads = 0;
  std::vector<char> arguments;
  std::vector<void *> pointers;  // to each argument
  std::vector<Patch> patches;
};

struct ProductStep {
  int64_t settings = 0;  // a sum of dnnops_product_setting
  double alpha = 1, beta = 0;
  int64_t alpha_place = -1, beta_place = -1;  // the operand on the host that is the factor in each call, or -1
  int64_t places[3], offsets[3];
  dnnops_tensor tensors[3];  // without addresses
};

struct Step {
  bool is_product = false;
  KernelStep kernel;
  ProductStep product;
};

// A view of an operand, with the layout that it was made with.
struct KeptView {
  Reference view;
  dnnops_state state;
};

struct PreparedCall {
  std::vector<int64_t> key;
  bool runs_in_python = false;
  std::vector<NewArray> arrays;
  std::vector<Step> steps;
  std::vector<Result> results;
  Reference source;  // the tuple that this was read from; it holds the kernels
  // The array that the results are views of, if they are kept.
  Reference viewed;
  std::vector<KeptView> kept_views;
};

// Reads what PreparedCall.encoded() of dnnops/gpuarray/prepared/call.py returns; None stands for a call in Python.
std::unique_ptr<PreparedCall> read_prepared(PyObject *encoded, std::vector<int64_t> key);

}  // namespace dnnops
#endif
