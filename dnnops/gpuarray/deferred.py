"""Errors that a kernel finds: an index out of bounds.

Waiting for a kernel to tell whether it found one would stop the stream at each such Op. So the
kernel writes a word of host memory that the device can reach, and whoever waits for the device
anyway, which is every transfer to the host, looks at it and raises.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np

from dnnops.errors import DnnIndexError

__all__ = ["DnnIndexError", "check_indices", "check_kernel", "deferred_error", "raise_deferred"]


class _Flag:
    """A word that kernels write and the host reads; its value is the number of a message."""

    def __init__(self) -> None:
        import cupy

        # Page-locked memory has one address for the host and for all devices.
        self.memory = cupy.cuda.alloc_pinned_memory(4)
        self.word = np.frombuffer(self.memory, dtype=np.int32, count=1)
        self.word[0] = 0
        self.messages: list[str] = []

    def number(self, message: str) -> int:
        """Give the number, from 1 on, that stands for a message."""
        if message not in self.messages:
            self.messages.append(message)
        return self.messages.index(message) + 1


_flag: _Flag | None = None
_lock = threading.Lock()


@functools.cache
def check_kernel(dtype: str) -> Any:
    """Make the kernel that compares indices of a dtype with the length of their axis."""
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
    """Give what a kernel writes, and where to, for `raise_deferred` to raise an error.

    Parameters
    ----------
    message : str
        What the error is to say.

    Returns
    -------
    address : int
        Of an int32 that the device can reach.
    number : int
        What it is to become.
    """
    global _flag
    with _lock:
        if _flag is None:
            _flag = _Flag()
        return _flag.memory.ptr, _flag.number(message)


def check_indices(indices: Any, length: int, message: str) -> None:
    """Let the device check that indices are in bounds.

    Parameters
    ----------
    indices : cupy.ndarray
        Of an integer dtype; negative ones count from the end.
    length : int
        The length of the axis that they index.
    message : str
        What the error is to say.
    """
    address, number = deferred_error(message)
    check_kernel(indices.dtype.name)(indices, length, address, number)


def raise_deferred() -> None:
    """Raise what a kernel found; to be called when the device has been waited for.

    Raises
    ------
    DnnIndexError
        If an index was out of bounds since the last call.
    """
    if _flag is None or not _flag.word[0]:
        return
    with _lock:
        number = int(_flag.word[0])
        _flag.word[0] = 0
    if number:
        raise DnnIndexError(_flag.messages[number - 1])
