"""Determine the order of an array's axes in memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

#: The memory formats that results can have.
MEMORY_FORMATS = ("contiguous", "channels_last")


@functools.lru_cache(maxsize=4096)
def _dense_order(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[int, ...] | None:
    # Axes of length 1 have arbitrary strides, so keep them in place where the others allow it.
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
    """Return the axes of an array, from the slowest-varying to the fastest-varying in memory.

    Parameters
    ----------
    array : cupy.ndarray

    Returns
    -------
    tuple of int or None
        Order for which ``array.transpose(order)`` is C-contiguous. None if `array` is already
        C-contiguous, or if no order exists because of gaps or overlaps in memory.
    """
    if array.flags.c_contiguous or array.size == 0:
        return None
    return _dense_order(array.shape, array.strides, array.itemsize)


def common_order(arrays: Iterable[Any], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the axis order for the result of an elementwise operation.

    The first dense operand of the full shape determines the order. A ``channels_last`` operand
    thus gives a ``channels_last`` result, and the kernel accesses its memory sequentially.

    Parameters
    ----------
    arrays : iterable of cupy.ndarray
        Operands.
    shape : tuple of int
        Shape of the result.

    Returns
    -------
    tuple of int or None
        Axes in memory order; None for C order.
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
