"""Report errors found by kernels of the runtime library at a later transfer to the host."""

from __future__ import annotations

import ctypes

from dnnops.gpu.library import interrupt_later
from dnnops.runtime.build import CUDNN
from dnnops.runtime.headers import GPU, callback

__all__: list[str] = []


def _error_flag(message: bytes, number: ctypes._Pointer[ctypes.c_int64]) -> int | None:
    # Called from C, where None means that there is no flag.
    try:
        from dnnops.gpuarray.deferred import deferred_error

        address, number[0] = deferred_error(message.decode())
        return address
    except BaseException as error:  # if it escaped, C code would get an arbitrary address
        if isinstance(error, KeyboardInterrupt):
            interrupt_later()
        return None


def _register(library: ctypes.CDLL) -> None:
    library.dnnops_cudnn_set_error_flag(callback("dnnops_get_error_flag", GPU, _error_flag))


CUDNN.on_load.append(_register)
