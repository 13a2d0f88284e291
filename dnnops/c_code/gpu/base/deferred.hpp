// Errors that kernels find: a kernel writes a number to a word that Python checks when it waits for the device.
#ifndef DNNOPS_CUDNN_DEFERRED_HPP
#define DNNOPS_CUDNN_DEFERRED_HPP

#include <string>

#include "check.hpp"

namespace dnnops {

struct ErrorFlag {
  void *address = nullptr;
  int64_t number = 0;  // the int that the kernel writes
};

// The flag of an error with this message.
ErrorFlag error_flag(const std::string &message);

}  // namespace dnnops
#endif
