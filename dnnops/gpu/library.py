"""The runtime library on cuDNN: its workspaces, its version, and where it works."""

from __future__ import annotations

import _thread
import atexit
import ctypes
import threading
from contextlib import suppress
from functools import cache
from typing import Any

from dnnops.config import flag_value
from dnnops.errors import DnnError, DnnUnavailableError
from dnnops.gpuarray.device import on_device
from dnnops.runtime.build import CUDNN
from dnnops.runtime.headers import GPU, callback
from dnnops.runtime.implementations import Backend
from dnnops.runtime.op import raise_status

__all__ = [
    "GPU_CUDNN",
    "GPU_CUPY",
    "GPU_KERNELS",
    "GPU_PRODUCTS",
    "GPU_TILES",
    "StreamAddress",
    "check_cudnn",
    "cudnn_status",
    "cudnn_usable",
    "cudnn_version",
    "free_workspaces",
    "interrupt_later",
    "kernels_usable",
    "tensor_cores_usable",
    "version_to_rewrite_for",
]

_workspaces: dict[int, Any] = {}


class StreamAddress:
    """A stream's address, wrapped in the CUDA stream protocol."""

    def __init__(self, address: int):
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def interrupt_later() -> None:
    """Re-raise a KeyboardInterrupt caught in a callback from C code, after a short delay.

    Raising it at once would interrupt the callback itself, and ctypes would then return an
    undefined value.
    """
    threading.Timer(_INTERRUPT_DELAY, _thread.interrupt_main).start()


_INTERRUPT_DELAY = 0.05  # seconds


def _allocate(size: int, device: int, stream: int | None) -> int | None:
    # Called from C, where None means that no memory could be allocated.
    try:
        import cupy

        null = cupy.cuda.Stream.null
        on_stream = cupy.cuda.Stream.from_external(StreamAddress(stream)) if stream else null
        with cupy.cuda.Device(device), on_stream:
            memory = cupy.cuda.alloc(size)
        _workspaces[memory.ptr] = memory
        return memory.ptr
    except BaseException as error:  # if it escaped, C code would get an arbitrary address
        if isinstance(error, KeyboardInterrupt):
            interrupt_later()
        return None


def _free(pointer: int) -> None:
    _workspaces.pop(pointer, None)


def _register(library: ctypes.CDLL) -> None:
    """Set CuPy's pool as allocator and register the shutdown."""
    library.dnnops_cudnn_set_allocator(
        callback("dnnops_allocate", GPU, _allocate), callback("dnnops_free", GPU, _free)
    )
    atexit.register(library.dnnops_cudnn_shutdown)
    # The runtime library loads cuBLASLt by its bare name, but does not search the directory of its
    # wheel for CUDA 12, so load it here. Without it, fewer plans are available.
    with suppress(Exception):
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib("cublasLt")


CUDNN.on_load.append(_register)


def free_workspaces() -> None:
    """Give unused workspaces back to CuPy's memory pool."""
    CUDNN.library.dnnops_cudnn_free_workspaces()


def cudnn_version() -> int:
    """Return the version of the loaded cuDNN in cuDNN's own encoding: 92800 is 9.28.0.

    Raises
    ------
    DnnUnavailableError
        If cuDNN isn't installed or can't be loaded.
    """
    return CUDNN.library.dnnops_cudnn_version()


def version_to_rewrite_for() -> int | None:
    """Return the cuDNN version to rewrite graphs for; None means the newest.

    With ``dnn.enabled=no_check``, graphs are rewritten even if cuDNN isn't installed; the result is
    then None.
    """
    try:
        return cudnn_version()
    except DnnUnavailableError:
        return None


@cache
def cudnn_status(device: int = 0) -> str:
    """Check whether cuDNN works on a device, and cache the answer.

    Parameters
    ----------
    device : int
        Number of the CUDA device.

    Returns
    -------
    str
        Reason why cuDNN can't be used there; empty if it can.
    """
    try:
        with on_device(device):
            library = CUDNN.library
            built, loaded = library.dnnops_cudnn_header_version(), cudnn_version()
            if loaded // 10000 != built // 10000:
                return f"cuDNN's headers have version {built}, but the library has {loaded}"
            raise_status(CUDNN, library.dnnops_cudnn_probe(device))
    except DnnError as error:
        return str(error)
    except Exception as error:  # a half-installed CuPy can raise anything
        return f"{type(error).__name__}: {error}"
    return ""


def cudnn_usable(device: int = 0) -> tuple[bool, str]:
    """Return whether to use cuDNN Ops on a device, according to the flag ``dnn.enabled``.

    Parameters
    ----------
    device : int
        Number of the CUDA device.

    Returns
    -------
    usable : bool
    reason : str
        Reason why the Ops aren't used; empty if they are used.

    Raises
    ------
    DnnUnavailableError
        If the flag is True but cuDNN doesn't work.
    """
    enabled = flag_value("dnn.enabled")
    if enabled == "False":
        return False, "disabled by the flag dnn.enabled=False"
    if enabled == "no_check":
        return True, ""
    reason = cudnn_status(device)
    if reason and enabled == "True":
        raise DnnUnavailableError(f"dnn.enabled=True, but cuDNN cannot be used: {reason}")
    return not reason, reason


def kernels_usable(device: int = 0) -> bool:
    """Return whether dnnops kernels can be used on a device, even with ``dnn.enabled=False``.

    They need the runtime library, which is linked with cuDNN.
    """
    return flag_value("dnn.enabled") == "no_check" or not cudnn_status(device)


def tensor_cores_usable(device: int = 0) -> bool:
    """Return whether dnnops kernels can multiply TF32 numbers on a device.

    That requires compute capability 8.0.
    """
    if flag_value("dnn.enabled") == "no_check":
        return True
    if not kernels_usable(device):
        return False
    import cupy

    return int(cupy.cuda.Device(device).compute_capability) >= 80


#: Backend of the Ops that call cuDNN.
GPU_CUDNN = Backend("gpu", ("cudnn",), 10, lambda device: cudnn_usable(device)[0])
#: Backend of dnnops kernels in the library that is linked with cuDNN. They do not call it, so modes
#: that exclude ``cudnn`` use them, too.
GPU_KERNELS = Backend("gpu", (), 10, lambda device: kernels_usable(device))
#: Backend of dnnops kernels that multiply float32 numbers on tensor cores, for what the two above
#: do not support.
GPU_TILES = Backend("gpu", (), 7, lambda device: tensor_cores_usable(device))
#: Backend of matrix products with dnnops kernels, for what the three above do not support.
GPU_PRODUCTS = Backend("gpu", (), 5, lambda device: kernels_usable(device))
#: Backend of kernels that CuPy compiles, for what the others do not support.
GPU_CUPY = Backend("gpu")


def check_cudnn(device: int = 0) -> None:
    """Raise `DnnUnavailableError` if cuDNN is disabled or doesn't work on a device."""
    usable, reason = cudnn_usable(device)
    if not usable:
        raise DnnUnavailableError(f"cuDNN cannot be used on cuda{device}: {reason}")
