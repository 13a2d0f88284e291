"""Sizes of pooling windows, as ints or as the symbolic sizes of a graph that is being traced."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from dnnops.nnet.pool.geometry import windows_shape

__all__ = ["divisor", "is_empty", "padding_after"]


def _axes(op: Any, shape: Sequence[int], sizes: Any) -> list[tuple[int, ...]]:
    """Return the image size, output size, window, stride and padding of each spatial axis."""
    ws, stride, pad = sizes
    out = windows_shape(shape, ws, stride, pad, op.ignore_border)
    return list(zip(shape[2:], out[2:], ws, stride, pad, strict=True))


def is_empty(op: Any, shape: Sequence[int], sizes: Any) -> bool:
    """Return whether there are no windows, or no elements in them."""
    ws, stride, pad = sizes
    return 0 in (*shape, *windows_shape(shape, ws, stride, pad, op.ignore_border))


def padding_after(op: Any, shape: Sequence[int], sizes: Any) -> list[int]:
    """Return the padding after the image, per spatial axis, that makes it contain all windows."""
    axes = _axes(op, shape, sizes)
    return [max((o - 1) * step + window - n - pad, 0) for n, o, window, step, pad in axes]


def divisor(lib: Any, op: Any, shape: Sequence[int], sizes: Any) -> Any:
    """Return the divisor of the sum over each window: a number, or an array with one per window."""
    if op.mode == "sum":
        return 1
    if op.mode == "average_inc_pad" and op.ignore_border:
        return prod(sizes[0])
    count: Any = 1
    for axis, (n, o, window, step, pad) in enumerate(_axes(op, shape, sizes)):
        begin = lib.arange(o) * step - pad
        inside = lib.clip(begin + window, 0, n) - lib.clip(begin, 0, n)
        count = count * inside.reshape([-1 if a == axis else 1 for a in range(op.ndim)])
    return count
