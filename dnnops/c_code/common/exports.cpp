// Functions that every runtime library exports in addition to those of its Ops.
#include "error.hpp"

DNNOPS_EXPORT const char *dnnops_last_error(void) { return dnnops::last_error().c_str(); }

DNNOPS_EXPORT void dnnops_state_free(void *state) { delete static_cast<dnnops::State *>(state); }
