"""Whether nodes keep small results for their next call.

A kept result stays allocated between calls. Within a CUDA graph, that would only keep later nodes
from using its memory, and the next graph of the function would write into the memory of this one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

__all__ = ["blocks_address", "results_not_kept"]

_lock = Lock()
_blocks = ctypes.c_int(0)
#: Address of the number of running blocks, an ``int``. ``dnnops_gpuarray.h`` reads it.
blocks_address = ctypes.addressof(_blocks)


@contextmanager
def results_not_kept() -> Iterator[None]:
    """Let no node keep a result that it computes within a ``with`` block, in any thread."""
    with _lock:
        _blocks.value += 1
    try:
        yield
    finally:
        with _lock:
            _blocks.value -= 1
