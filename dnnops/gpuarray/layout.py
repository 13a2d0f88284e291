"""The order in which an array's axes lie in memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

#: The memory formats that results may have.
MEMORY_FORMATS = ("contiguous", "channels_last")


@functools.lru_cache(maxsize=4096)
def _dense_order(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[int, ...] | None:
    # Axes of length 1 have arbitrary strides: they stay in place where the others allow it.
    order = sorted(
        (axis for axis, length in enumerate(shape) if length != 1), key=lambda axis: -strides[axis]
    )
    step = itemsize
    for axis in reversed(order):
        if strides[axis] != step:
            return None
        step *= shape[axis]
    ones = [axis for axis, length in enumerate(shape) if length == 1]
    for axis in ones:
        order.insert(axis, axis)
    return tuple(order)


def dense_order(array: Any) -> tuple[int, ...] | None:
    """Give the axes of an array from the slowest to the fastest one in memory.

    Parameters
    ----------
    array : cupy.ndarray

    Returns
    -------
    tuple of int or None
        ``array.transpose(order)`` is C-contiguous. None for an array that is already so, and
        for one with gaps or overlaps in memory, which has no such order.
    """
    if array.flags.c_contiguous or array.size == 0:
        return None
    return _dense_order(array.shape, array.strides, array.itemsize)


def common_order(arrays: Iterable[Any], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Give the axis order for the result of an elementwise operation.

    The first operand of the full shape that is dense decides: so a ``channels_last`` array
    stays one, and the kernel runs through its memory in one go.

    Parameters
    ----------
    arrays : iterable of cupy.ndarray
        The operands.
    shape : tuple of int
        Of the result.

    Returns
    -------
    tuple of int or None
        None for C order.
    """
    for array in arrays:
        if array.shape == shape:
            if array.flags.c_contiguous:
                return None
            order = dense_order(array)
            if order is not None:
                return order
    return None


@functools.lru_cache(maxsize=4096)
def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """Invert a permutation of axes."""
    places = [0] * len(order)
    for place, axis in enumerate(order):
        places[axis] = place
    return tuple(places)
