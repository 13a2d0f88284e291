// Errors that a kernel finds: it writes a number to a word that Python looks at when it waits for the device.
#ifndef DNNOPS_CUDNN_DEFERRED_HPP
#define DNNOPS_CUDNN_DEFERRED_HPP

#include <string>

#include "check.hpp"

namespace dnnops {

struct ErrorFlag {
  void *address = nullptr;
  int64_t number = 0;  // to be written as an int
};

// Of an error that says this.
ErrorFlag error_flag(const std::string &message);

}  // namespace dnnops
#endif
