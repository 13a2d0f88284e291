"""Host values that each launch of a CUDA graph copies to the device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from dnnops.errors import DnnError

__all__ = ["Buffers", "Upload", "uploads_of"]


class Upload(NamedTuple):
    """Values that are copied at once.

    Attributes
    ----------
    to : int
        Device address.
    nbytes : int
        Number of bytes, of gaps between the values, too.
    values : list of tuple
        Storage of each value, an array or a number, its shape, its dtype and its offset in bytes.
    """

    to: int
    nbytes: int
    values: list[tuple[list[Any], tuple[int, ...], np.dtype, int]]


def uploads_of(
    values: Iterable[tuple[list[Any], Any]], block_of: Callable[[int], int]
) -> list[Upload]:
    """Return which host values are copied at once.

    Parameters
    ----------
    values : iterable of tuple
        Storage of each value, and a C-contiguous device array of its shape and dtype.
    block_of : callable
        Returns the block of device memory that an address is in. There is nothing but such arrays
        between two arrays of a block, which are therefore copied together.
    """
    found = []
    in_order = sorted(values, key=lambda value: value[1].data.ptr)
    for _, group in groupby(in_order, lambda value: block_of(value[1].data.ptr)):
        members = list(group)
        start, last = members[0][1].data.ptr, members[-1][1]
        placed = [(cell, x.shape, x.dtype, x.data.ptr - start) for cell, x in members]
        found.append(Upload(start, last.data.ptr + last.nbytes - start, placed))
    return found


class Buffers:
    """Page-locked memory for the values of an upload. Launches use one buffer after the other.

    Parameters
    ----------
    upload : Upload
    address : int
        Address of the first buffer.
    stride : int
        Bytes between the starts of two buffers.
    number : int
        Number of buffers.
    owner : object
        What keeps the memory allocated.
    """

    def __init__(self, upload: Upload, address: int, stride: int, number: int, owner: Any):
        self._address, self._stride, self._owner = address, stride, owner
        size = stride * (number - 1) + upload.nbytes
        memory = (ctypes.c_uint8 * size).from_address(address)
        # One array for all buffers, since there may be many of these and of the values.
        self._values = [
            (cell, shape, dtype, _in_all(memory, number, stride, shape, dtype, offset))
            for cell, shape, dtype, offset in upload.values
        ]

    def store(self, number: int) -> int:
        """Store the values in a buffer, and return its address.

        Raises
        ------
        DnnError
            If a shape or a dtype is different.
        """
        for cell, shape, dtype, in_all in self._values:
            value = cell[0]
            if value.shape != shape or value.dtype != dtype:
                raise DnnError(
                    f"a captured {dtype} array had shape {shape}; it is a {value.dtype} array of"
                    f" shape {value.shape} now"
                )
            in_all[number] = value
        return self._address + number * self._stride


def _in_all(
    memory: Any, number: int, stride: int, shape: tuple[int, ...], dtype: np.dtype, offset: int
) -> np.ndarray:
    """Return an array whose items along the first axis are a value's places in the buffers."""
    strides = np.empty(shape, dtype).strides
    return np.ndarray((number, *shape), dtype, memory, offset, (stride, *strides))
