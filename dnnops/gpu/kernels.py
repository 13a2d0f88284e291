"""Compile dnnops CUDA kernels with CuPy when the runtime library asks for one.

CuPy caches compiled kernels on disk, so later processes only load them. A kernel's configuration
(dtype, filter size, tile sizes) is passed through compiler options.
"""

from __future__ import annotations

import ctypes
import hashlib
from functools import cache
from typing import Any

from dnnops.gpu.base import interrupt_later
from dnnops.runtime.build import CUDNN, c_code_dir

__all__ = ["kernel_source", "kernels_version"]

#: Files of each program, relative to ``c_code``.
_PROGRAMS = {
    "depthwise": (
        "runtime/cudnn/depthwise_params.hpp",
        "cudnn/kernel.cuh",
        "cudnn/numbers.cuh",
        "cudnn/depthwise.cuh",
        "cudnn/depthwise_data.cuh",
        "cudnn/depthwise_filter.cuh",
    ),
    "ctc": (
        "runtime/cudnn/ctc_params.hpp",
        "cudnn/kernel.cuh",
        "cudnn/numbers.cuh",
        "cudnn/ctc.cuh",
    ),
    "sampler": (
        "runtime/cudnn/sampler_params.hpp",
        "cudnn/kernel.cuh",
        "cudnn/numbers.cuh",
        "cudnn/sampler.cuh",
    ),
    "batchnorm": (
        "runtime/cudnn/batchnorm_params.hpp",
        "cudnn/kernel.cuh",
        "cudnn/numbers.cuh",
        "cudnn/bulk_copy.cuh",
        "cudnn/batchnorm.cuh",
        "cudnn/batchnorm_rows.cuh",
        "cudnn/batchnorm_warps.cuh",
        "cudnn/batchnorm_held.cuh",
        "cudnn/batchnorm_kernel.cuh",
    ),
    "attention": ("cudnn/kernel.cuh", "cudnn/attention.cuh"),
    "attention_grad": (
        "runtime/cudnn/attention_grad_params.hpp",
        "cudnn/kernel.cuh",
        "cudnn/numbers.cuh",
        "cudnn/tensor_cores.cuh",
        "cudnn/attention_grad.cuh",
    ),
    "cache": ("cudnn/kernel.cuh", "cudnn/cache.cuh"),
    "cross_entropy": ("cudnn/kernel.cuh", "cudnn/numbers.cuh", "cudnn/cross_entropy.cuh"),
    "dropout": ("cudnn/kernel.cuh", "cudnn/numbers.cuh", "cudnn/dropout.cuh"),
    "reduction": ("cudnn/kernel.cuh", "cudnn/numbers.cuh", "cudnn/reduction.cuh"),
    "transpose": ("cudnn/kernel.cuh", "cudnn/transpose.cuh"),
}


@cache
def kernel_source(program: str) -> str:
    """Return the CUDA source of a program.

    Parameters
    ----------
    program : str
        Name of the program in the runtime library.

    Returns
    -------
    str
    """
    files = (c_code_dir() / file for file in _PROGRAMS[program])
    return "".join(file.read_text(encoding="utf-8") for file in files)


#: Programs that convolution plans consist of or are timed with.
_OF_PLANS = ("cache", "depthwise", "transpose")


@cache
def kernels_version() -> str:
    """Return a hash of the kernels' sources; timings with other sources are no longer valid."""
    sources = "".join(map(kernel_source, _OF_PLANS))
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


@cache
def _module(program: str, options: str) -> Any:
    import cupy

    return cupy.RawModule(
        code=kernel_source(program), options=tuple(options.split()), backend="nvrtc"
    )


# The library keeps the addresses, so keep the modules loaded even after cupy.clear_memo().
_functions: list[Any] = []

_GET_KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
)


@_GET_KERNEL
def _get_kernel(
    program: bytes, name: bytes, options: bytes, device: int, reason: int, capacity: int
) -> int | None:
    # Called from C, which gets any error as a text in `reason`.
    try:
        import cupy

        with cupy.cuda.Device(device):
            kernel = _module(program.decode(), options.decode()).get_function(name.decode())
            function = kernel.kernel
            _functions.append(function)
            return function.ptr
    except BaseException as error:  # if it escaped, C code would get an arbitrary address
        if isinstance(error, KeyboardInterrupt):
            interrupt_later()
        text = f"{type(error).__name__}: {error}".encode()[: capacity - 1]
        ctypes.memmove(reason, text + b"\0", len(text) + 1)
        return None


def _register(library: ctypes.CDLL) -> None:
    library.dnnops_cudnn_set_kernel_compiler(_get_kernel)


CUDNN.on_load.append(_register)
