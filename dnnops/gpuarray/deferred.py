"""Raise errors that kernels detect, such as an index out of bounds.

Waiting for each kernel to report an error would stall the stream at every such Op. Instead, the
kernel writes to a word of host memory that the device can access. Every transfer to the host, which
waits for the device anyway, reads that word and raises.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np

from dnnops.errors import DnnIndexError

__all__ = ["DnnIndexError", "check_indices", "check_kernel", "deferred_error", "raise_deferred"]


class _Flag:
    """A word of memory that kernels write and the host reads; its value identifies a message."""

    def __init__(self) -> None:
        import cupy

        # Page-locked memory has the same address on the host and on all devices.
        self.memory = cupy.cuda.alloc_pinned_memory(4)
        self.word = np.frombuffer(self.memory, dtype=np.int32, count=1)
        self.word[0] = 0
        self.messages: list[str] = []

    def number(self, message: str) -> int:
        """Return the number of a message, counted from 1."""
        if message not in self.messages:
            self.messages.append(message)
        return self.messages.index(message) + 1


_flag: _Flag | None = None
_lock = threading.Lock()


@functools.cache
def check_kernel(dtype: str) -> Any:
    """Return the kernel that compares indices of a dtype with the length of their axis."""
    import cupy

    return cupy.ElementwiseKernel(
        f"{dtype} index, int64 length, uint64 flag, int32 number",
        "",
        "if ((long long)index < -length || (long long)index >= length)"
        " *(volatile int *)flag = number",
        name="dnnops_check_index",
        no_return=True,
    )


def deferred_error(message: str) -> tuple[int, int]:
    """Return the address and the value that a kernel writes to report an error.

    :func:`raise_deferred` then raises the error.

    Parameters
    ----------
    message : str
        Message of the error.

    Returns
    -------
    address : int
        Address of an int32 that the device can access.
    number : int
        Value to write there.
    """
    global _flag
    with _lock:
        if _flag is None:
            _flag = _Flag()
        return _flag.memory.ptr, _flag.number(message)


def check_indices(indices: Any, length: int, message: str) -> None:
    """Launch a kernel that checks whether indices are in bounds.

    Parameters
    ----------
    indices : cupy.ndarray
        Indices of an integer dtype; negative indices count from the end.
    length : int
        Length of the axis that they index.
    message : str
        Message of the error.
    """
    address, number = deferred_error(message)
    check_kernel(indices.dtype.name)(indices, length, address, number)


def raise_deferred() -> None:
    """Raise the error that a kernel has reported, if any.

    Call this after synchronizing with the device.

    Raises
    ------
    DnnIndexError
        If a kernel has found an index out of bounds since the last call.
    """
    if _flag is None or not _flag.word[0]:
        return
    with _lock:
        number = int(_flag.word[0])
        _flag.word[0] = 0
    if number:
        raise DnnIndexError(_flag.messages[number - 1])
