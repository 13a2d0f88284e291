"""Compile dnnops CUDA kernels with CuPy when the runtime library asks for one.

CuPy caches compiled kernels on disk, so later processes only load them. A kernel's configuration
(dtype, filter size, tile sizes) is passed through compiler options.
"""

from __future__ import annotations

import ctypes
import hashlib
from functools import cache
from typing import Any

from dnnops.errors import DnnError
from dnnops.gpu.library import interrupt_later
from dnnops.runtime.build import CUDNN, c_code_dir
from dnnops.runtime.headers import GPU, callback

__all__ = ["kernel_source", "kernels_version"]

_ATTENTION_TILES = (
    "gpu/attention/attention_tiles_params.hpp",
    "gpu/kernels/kernel.cuh",
    "gpu/kernels/numbers.cuh",
    "gpu/kernels/tensor_cores.cuh",
    "gpu/attention/attention_tiles.cuh",
    "gpu/attention/attention_tiles_mask.cuh",
)

_POOL_CELLS = (
    "gpu/pool/pool_cells_params.hpp",
    "gpu/kernels/kernel.cuh",
    "gpu/kernels/numbers.cuh",
    "gpu/pool/pool_cells.cuh",
)

#: Files of each program, relative to ``c_code``.
_PROGRAMS = {
    "activation_grad": (
        "gpu/activation/activation_grad_params.hpp",
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/activation/activation_grad.cuh",
    ),
    "depthwise": (
        "gpu/depthwise/depthwise_params.hpp",
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/depthwise/depthwise.cuh",
        "gpu/depthwise/depthwise_data.cuh",
        "gpu/depthwise/depthwise_filter.cuh",
    ),
    "ctc": (
        "gpu/loss/ctc_params.hpp",
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/loss/ctc.cuh",
    ),
    "sampler": (
        "gpu/resample/sampler_params.hpp",
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/resample/sampler.cuh",
    ),
    "batchnorm": (
        "gpu/norm/batchnorm_params.hpp",
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/kernels/bulk_copy.cuh",
        "gpu/norm/batchnorm.cuh",
        "gpu/norm/batchnorm_rows.cuh",
        "gpu/norm/batchnorm_warps.cuh",
        "gpu/norm/batchnorm_held.cuh",
        "gpu/norm/batchnorm_short.cuh",
        "gpu/norm/batchnorm_kernel.cuh",
    ),
    "attention": ("gpu/kernels/kernel.cuh", "gpu/attention/attention.cuh"),
    "attention_grad": (
        "gpu/attention/attention_grad_params.hpp",
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/kernels/tensor_cores.cuh",
        "gpu/attention/attention_grad.cuh",
    ),
    "attention_large": (
        "gpu/attention/large/attention_large_params.hpp",
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/attention/large/attention_large.cuh",
    ),
    "attention_weights": (
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/attention/attention_weights.cuh",
    ),
    "attention_out": (*_ATTENTION_TILES, "gpu/attention/attention_tiles_out.cuh"),
    "attention_dquery": (*_ATTENTION_TILES, "gpu/attention/attention_tiles_dquery.cuh"),
    "attention_dkey": (*_ATTENTION_TILES, "gpu/attention/attention_tiles_dkey.cuh"),
    "cache": ("gpu/kernels/kernel.cuh", "gpu/kernels/cache.cuh"),
    "cross_entropy": (
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/loss/cross_entropy.cuh",
    ),
    "dense": (
        "gpu/products/dense_params.hpp",
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/products/dense.cuh",
    ),
    "conv_epilogue": (
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/conv/epilogue.cuh",
    ),
    "dropout": (
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/regularization/dropout.cuh",
    ),
    "fill": (
        "gpu/kernels/fill_params.hpp",
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/fill.cuh",
    ),
    "fold_batchnorm": (
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/norm/fold_batchnorm.cuh",
    ),
    "graph_copies": (
        "gpu/kernels/graph_copies_params.hpp",
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/graph_copies.cuh",
    ),
    "pool": (
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/pool/pool_kernels.cuh",
    ),
    "pool_cells_forward": (
        *_POOL_CELLS,
        "gpu/pool/pool_lanes.cuh",
        "gpu/pool/pool_cells_forward.cuh",
    ),
    "pool_cells_grad": (
        *_POOL_CELLS,
        "gpu/pool/pool_cells_addend.cuh",
        "gpu/pool/pool_cells_grad.cuh",
    ),
    "pool_cells_overlap": (
        *_POOL_CELLS,
        "gpu/pool/pool_lanes.cuh",
        "gpu/pool/pool_cells_addend.cuh",
        "gpu/pool/pool_cells_overlap.cuh",
    ),
    "pool_windows": (
        "gpu/pool/pool_windows_params.hpp",
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/pool/pool_windows.cuh",
    ),
    "reduction": (
        "gpu/kernels/kernel.cuh",
        "gpu/kernels/numbers.cuh",
        "gpu/reduction/reduction.cuh",
    ),
    "transpose": ("gpu/kernels/kernel.cuh", "gpu/copy/transpose.cuh"),
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
_OF_PLANS = ("cache", "conv_epilogue", "depthwise", "transpose")


@cache
def kernels_version() -> str:
    """Return a hash of the kernels' sources; timings of other sources are no longer valid."""
    sources = "".join(map(kernel_source, _OF_PLANS))
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


# The library keeps the addresses, so keep the modules loaded even after cupy.clear_memo().
_functions: list[Any] = []


def _get_kernel(
    program: bytes, name: bytes, options: bytes, device: int, reason: int, capacity: int
) -> int | None:
    # Called from C, which gets any error as a text in `reason`.
    try:
        import cupy

        from dnnops.gpuarray.compiling import compiled_kernel

        with cupy.cuda.Device(device):
            source, given = kernel_source(program.decode()), tuple(options.decode().split())
            function = compiled_kernel(source, name.decode(), given).kernel
            _functions.append(function)
            return function.ptr
    except BaseException as error:  # if it escaped, C code would get an arbitrary address
        if isinstance(error, KeyboardInterrupt):
            interrupt_later()
        text = str(error) if isinstance(error, DnnError) else f"{type(error).__name__}: {error}"
        # A character of several bytes is left out rather than cut.
        words = text.encode()[: capacity - 1].decode(errors="ignore").encode()
        ctypes.memmove(reason, words + b"\0", len(words) + 1)
        return None


def _register(library: ctypes.CDLL) -> None:
    library.dnnops_cudnn_set_kernel_compiler(callback("dnnops_get_kernel", GPU, _get_kernel))


CUDNN.on_load.append(_register)
