#include "deferred.hpp"

#include <atomic>

namespace dnnops {

namespace {

std::atomic<dnnops_get_error_flag> get_flag{nullptr};

}  // namespace

ErrorFlag error_flag(const std::string &message) {
  ErrorFlag flag;
  // No lock is held, because this has to wait for the GIL.
  if (get_flag) flag.address = get_flag.load()(message.c_str(), &flag.number);
  if (!flag.address) fail(DNNOPS_LIBRARY_ERROR, "there is no memory for a kernel's error flag");
  return flag;
}

}  // namespace dnnops

DNNOPS_EXPORT void dnnops_cudnn_set_error_flag(dnnops_get_error_flag function) { dnnops::get_flag = function; }
