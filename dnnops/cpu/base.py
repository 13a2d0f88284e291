"""Base class of the CPU Ops, and functions for the oneDNN library and its caches."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import ClassVar

from dnnops.errors import DnnUnavailableError
from dnnops.runtime.build import ONEDNN, RuntimeLibrary
from dnnops.runtime.implementations import Backend
from dnnops.runtime.op import RuntimeOp

__all__ = ["CPU", "OneDnnOp", "cache_statistics", "clear_caches", "onednn_available"]

#: Backend of the Ops in this folder.
CPU = Backend("cpu")


class OneDnnOp(RuntimeOp):
    """Base class of Ops that run on the CPU through the oneDNN runtime library.

    A subclass usually also derives from an abstract Op, listed after this class, from which it
    inherits its symbolic methods.
    """

    library: ClassVar[RuntimeLibrary] = ONEDNN


@lru_cache(maxsize=1)
def onednn_available() -> tuple[bool, str]:
    """Return whether oneDNN can be used; the answer is cached.

    Returns
    -------
    available : bool
        Whether the oneDNN runtime library could be built and loaded.
    reason : str
        Reason why the library is not available; empty if it is.
    """
    try:
        ONEDNN.library  # noqa: B018
    except DnnUnavailableError as error:
        return False, str(error)
    return True, ""


def cache_statistics() -> dict[str, dict[str, int]]:
    """Return statistics of the oneDNN primitive caches.

    Returns
    -------
    dict
        For each kind of Op, a dict with ``size``, ``capacity``, ``hits``, ``misses`` and
        ``evictions``.
    """
    names = ("size", "capacity", "hits", "misses", "evictions")
    numbers = (ctypes.c_int64 * len(names))()
    statistics: dict[str, dict[str, int]] = {}
    while kind := ONEDNN.library.dnnops_onednn_cache(len(statistics), numbers):
        statistics[kind.decode()] = dict(zip(names, numbers, strict=True))
    return statistics


def clear_caches() -> None:
    """Drop all cached oneDNN primitives."""
    ONEDNN.library.dnnops_onednn_clear_caches()
