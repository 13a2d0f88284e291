"""Determine the order of an array's axes in memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

#: The memory formats that results can have.
MEMORY_FORMATS = ("contiguous", "channels_last")


@functools.lru_cache(maxsize=4096)
def _memory_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    # Axes of length 1 have arbitrary strides, so keep them in place where the others allow it.
    order = sorted(
        (axis for axis, length in enumerate(shape) if length != 1), key=lambda axis: -strides[axis]
    )
    ones = [axis for axis, length in enumerate(shape) if length == 1]
    for axis in ones:
        order.insert(axis, axis)
    return tuple(order)


@functools.lru_cache(maxsize=4096)
def _dense_order(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[int, ...] | None:
    order = _memory_order(shape, strides)
    step = itemsize
    for axis in reversed(order):
        if shape[axis] == 1:
            continue
        if strides[axis] != step:
            return None
        step *= shape[axis]
    return order


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

    The first dense operand of the full shape determines the order, or the first one of the full
    shape if none is dense. A ``channels_last`` operand thus gives a ``channels_last`` result, and
    the kernel accesses its memory sequentially.

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
    strided = None
    for array in arrays:
        if array.shape == shape:
            if array.flags.c_contiguous:
                return None
            order = dense_order(array)
            if order is not None:
                return order
            strided = array if strided is None else strided
    if strided is None or min(strided.strides, default=0) < 0:
        return None
    order = _memory_order(strided.shape, strided.strides)
    return None if order == tuple(range(len(order))) else order


def empty_in_order(
    shape: Sequence[int], dtype: Any, order: tuple[int, ...] | None
) -> tuple[Any, Any]:
    """Allocate an uninitialized array.

    Parameters
    ----------
    shape : sequence of int
    dtype : numpy.dtype
    order : tuple of int or None
        Axes in memory order; None for C order.

    Returns
    -------
    array, memory : cupy.ndarray
        The array with its axes in logical and in memory order.
    """
    import cupy

    if order is None:
        array = cupy.ndarray(tuple(shape), dtype)
        return array, array
    memory = cupy.ndarray(tuple(shape[axis] for axis in order), dtype)
    return memory.transpose(inverse(order)), memory


@functools.lru_cache(maxsize=4096)
def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """Invert a permutation of axes."""
    places = [0] * len(order)
    for place, axis in enumerate(order):
        places[axis] = place
    return tuple(places)


def is_reshaped_view(
    shape: tuple[int, ...], strides: tuple[int, ...], new_shape: tuple[int, ...]
) -> bool:
    """Return whether an array can be reshaped without a copy.

    Parameters
    ----------
    shape, strides : tuple of int
        Layout of the array.
    new_shape : tuple of int
        Shape of the same number of elements.
    """
    if 0 in shape:
        return True
    axes = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
    lengths = [n for n in new_shape if n != 1]
    old = new = 0
    while old < len(axes) and new < len(lengths):
        # The shortest runs of old and new axes with as many elements.
        first, old_size, new_size = old, axes[old][0], lengths[new]
        while old_size != new_size:
            if old_size < new_size:
                old += 1
                old_size *= axes[old][0]
            else:
                new += 1
                new_size *= lengths[new]
        run = axes[first : old + 1]
        if any(a[1] != b[0] * b[1] for a, b in pairwise(run)):
            return False
        old, new = old + 1, new + 1
    return True
