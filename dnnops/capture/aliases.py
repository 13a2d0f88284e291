"""Whether arrays on a device share memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dnnops.errors import DnnNotSupportedError

__all__ = ["is_same", "overlaps", "require_apart"]


def _span(array: Any) -> tuple[int, int]:
    """Return the addresses of an array's first byte, and of the byte after its last."""
    import cupy

    low, high = cupy.byte_bounds(array)
    return int(low), int(high)


def is_same(array: Any, other: Any) -> bool:
    """Return whether two arrays have the same elements in the same memory."""
    return array is other or (
        array.data.ptr == other.data.ptr
        and (array.shape, array.strides, array.dtype) == (other.shape, other.strides, other.dtype)
    )


def require_apart(arrays: Sequence[Any]) -> None:
    """Raise `DnnNotSupportedError` if two of the arrays share memory."""
    spans = sorted(_span(array) for array in arrays if array.size)
    for (_, end), (start, _) in pairwise(spans):
        if start < end:
            raise DnnNotSupportedError("two shared variables share memory")


def overlaps(array: Any, others: Sequence[Any]) -> bool:
    """Return whether an array shares memory with one of the others."""
    if not array.size:
        return False
    low, high = _span(array)
    return any(low < end and start < high for start, end in map(_span, others))
