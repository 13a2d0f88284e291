"""What the Ops on oneDNN share."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, ClassVar

from dnnops.errors import DnnUnavailableError
from dnnops.runtime.build import ONEDNN, RuntimeLibrary
from dnnops.runtime.op import RuntimeOp

__all__ = ["OneDnnOp", "cache_statistics", "clear_caches", "onednn_available"]

_CACHES = ("conv", "pool")


class OneDnnOp(RuntimeOp):
    """An Op that runs on oneDNN.

    A subclass usually derives from an abstract Op too, after this class: it takes its symbolic side
    from there.
    """

    library: ClassVar[RuntimeLibrary] = ONEDNN

    @classmethod
    def from_abstract(cls, op: Any) -> OneDnnOp:
        """Make the Op with the parameters of an abstract one."""
        return cls(**{name: getattr(op, name) for name in op.__props__})


@lru_cache(maxsize=1)
def onednn_available() -> tuple[bool, str]:
    """Say whether oneDNN can be used; the answer is remembered.

    Returns
    -------
    available : bool
        Whether the runtime library of oneDNN could be built and loaded.
    reason : str
        Why not; empty if it could.
    """
    try:
        ONEDNN.library  # noqa: B018
    except DnnUnavailableError as error:
        return False, str(error)
    return True, ""


def cache_statistics() -> dict[str, dict[str, int]]:
    """Statistics of the caches of oneDNN primitives.

    Returns
    -------
    dict
        For each kind of Op: ``size``, ``capacity``, ``hits``, ``misses``, ``evictions``.
    """
    names = ("size", "capacity", "hits", "misses", "evictions")
    statistics = {}
    for kind in _CACHES:
        numbers = (ctypes.c_int64 * len(names))()
        getattr(ONEDNN.library, f"dnnops_onednn_{kind}_cache")(numbers)
        statistics[kind] = dict(zip(names, numbers, strict=True))
    return statistics


def clear_caches() -> None:
    """Drop all cached oneDNN primitives."""
    for kind in _CACHES:
        getattr(ONEDNN.library, f"dnnops_onednn_{kind}_cache_clear")()
