// Failures: thrown as dnnops::Error inside a library, reported as a status and a message outside it.
#ifndef DNNOPS_ERROR_HPP
#define DNNOPS_ERROR_HPP

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "../abi/dnnops_runtime.h"

#define DNNOPS_EXPORT extern "C" __attribute__((visibility("default")))

namespace dnnops {

struct Error : std::exception {
  int status;
  std::string message;
  Error(int status_, std::string message_) : status(status_), message(std::move(message_)) {}
  const char *what() const noexcept override { return message.c_str(); }
};

[[noreturn]] inline void fail(int status, const char *format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Error(status, text);
}

inline const char *dtype_name(int64_t dtype) {
  return dtype >= 0 && dtype < DNNOPS_DTYPE_COUNT ? dnnops_dtype_names[dtype] : "unknown dtype";
}

inline int64_t item_size(int64_t dtype) {
  if (dtype < 0 || dtype >= DNNOPS_DTYPE_COUNT) fail(DNNOPS_TYPE_ERROR, "unknown dtype code %lld", (long long)dtype);
  return dnnops_itemsizes[dtype];
}

inline int64_t element_count(const int64_t *shape, int64_t ndim) {
  int64_t count = 1;
  for (int64_t i = 0; i < ndim; ++i) count *= shape[i];
  return count;
}

inline std::string list_of(const int64_t *values, int64_t count) {
  std::string text = "(";
  for (int64_t i = 0; i < count; ++i) {
    if (i) text += ", ";
    text += std::to_string(values[i]);
  }
  return text + ")";
}

// Describes an operand in an error message: "float32(2, 3, 8, 8) strides (768, 256, 32, 4)".
inline std::string describe(const dnnops_tensor &tensor) {
  return std::string(dtype_name(tensor.dtype)) + list_of(tensor.shape, tensor.ndim) + " strides " +
         list_of(tensor.strides, tensor.ndim);
}

// Copies a small int64 host vector with any stride.
inline void read_vector(const char *name, const dnnops_tensor &vector, int64_t length, int64_t *target) {
  if (vector.dtype != DNNOPS_INT64 || vector.ndim != 1 || vector.shape[0] != length)
    fail(DNNOPS_VALUE_ERROR, "%s has to be an int64 vector of length %lld", name, (long long)length);
  for (int64_t i = 0; i < length; ++i)
    target[i] = *reinterpret_cast<const int64_t *>(static_cast<const char *>(vector.data) + i * vector.strides[0]);
}

inline std::string &last_error() {
  static thread_local std::string text;
  return text;
}

// The function to run when this thread's call ends, or null.
using AfterCall = void (*)() noexcept;
inline AfterCall &after_call() {
  static thread_local AfterCall action = nullptr;
  return action;
}

// Runs the body of an exported function. An exception becomes a status, and a message that names the Op and
// its operands.
template <class Body>
int guarded(const char *op, const dnnops_tensor *inputs, int input_count, Body &&body) noexcept {
  struct AtEnd {
    ~AtEnd() {
      const AfterCall action = after_call();
      after_call() = nullptr;
      if (action) action();
    }
  } at_end;
  int status = DNNOPS_LIBRARY_ERROR;
  std::string words;
  try {
    body();
    return DNNOPS_OK;
  } catch (const Error &error) {
    status = error.status;
    words = error.message;
  } catch (const std::bad_alloc &) {
    status = DNNOPS_OUT_OF_MEMORY;
    words = "out of host memory";
  } catch (const std::exception &error) {
    words = error.what();
  } catch (...) {
    words = "unknown failure";
  }
  try {
    last_error() = std::string(op) + ": " + words;
    for (int i = 0; i < input_count; ++i)
      last_error() += (i ? "; input " : "\n  operands: input ") + std::to_string(i) + " " + describe(inputs[i]);
  } catch (...) {
    last_error().clear();
  }
  return status;
}

// The object that a node's slot points to.
struct State {
  std::atomic_flag in_use = ATOMIC_FLAG_INIT;
  virtual ~State() = default;
};

// Holds a node's state for the duration of a call. The GIL is released while a function runs, so a second
// thread may call the same node; that call gets no state.
template <class NodeState>
class StateLease {
 public:
  explicit StateLease(void **slot) {
    if (!slot) return;
    void *found = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (!found) {
      State *made = new NodeState;
      if (__atomic_compare_exchange_n(slot, &found, static_cast<void *>(made), false, __ATOMIC_ACQ_REL,
                                      __ATOMIC_ACQUIRE))
        found = made;
      else
        delete made;
    }
    auto *state = static_cast<NodeState *>(static_cast<State *>(found));
    if (!state->in_use.test_and_set(std::memory_order_acquire)) state_ = state;
  }
  ~StateLease() {
    if (state_) state_->in_use.clear(std::memory_order_release);
  }
  StateLease(const StateLease &) = delete;
  StateLease &operator=(const StateLease &) = delete;
  NodeState *get() const { return state_; }  // null if there is no state or another thread holds it

 private:
  NodeState *state_ = nullptr;
};

}  // namespace dnnops
#endif
