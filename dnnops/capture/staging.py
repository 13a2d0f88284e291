"""Page-locked memory through which host values are copied to the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from dnnops.errors import DnnError

__all__ = ["Staging"]


class Staging:
    """The host values that are copied to the device before each launch of a graph.

    Two buffers take turns, so that a launch need not wait for the copy of the one before it.

    Parameters
    ----------
    uploads : sequence of tuple
        Storage of each value, an array or a number, and a C-contiguous device array of its shape
        and dtype.
    block_of : callable
        Returns the block of device memory that an address is in. There is nothing but such arrays
        between two arrays of a block, which are therefore copied together.

    Attributes
    ----------
    copies : list of tuple
        Device address, addresses of both buffers and number of bytes of each copy.
    """

    def __init__(self, uploads: Sequence[tuple[list[Any], Any]], block_of: Callable[[int], int]):
        import cupy

        self.copies: list[tuple[int, tuple[int, int], int]] = []
        self._values: list[tuple[list[Any], Any, Any, list[np.ndarray]]] = []
        self._memory: list[Any] = []
        in_order = sorted(uploads, key=lambda upload: upload[1].data.ptr)
        for _, found in groupby(in_order, lambda upload: block_of(upload[1].data.ptr)):
            group = list(found)
            start, last = group[0][1].data.ptr, group[-1][1]
            size = last.data.ptr + last.nbytes - start
            buffers = [cupy.cuda.alloc_pinned_memory(max(size, 1)) for _ in range(2)]
            self._memory += buffers
            self.copies.append((start, (buffers[0].ptr, buffers[1].ptr), size))
            for cell, x in group:
                place = x.dtype, x.size, x.data.ptr - start
                arrays = [np.frombuffer(memory, *place).reshape(x.shape) for memory in buffers]
                self._values.append((cell, x.shape, x.dtype, arrays))

    def store(self, turn: int) -> None:
        """Store the values in one of the two buffers.

        Raises
        ------
        DnnError
            If a shape or a dtype is different.
        """
        for cell, shape, dtype, arrays in self._values:
            value = cell[0]
            if value.shape != shape or value.dtype != dtype:
                raise DnnError(
                    f"a captured {dtype} array had shape {shape}; it is a {value.dtype} array of"
                    f" shape {value.shape} now"
                )
            arrays[turn][...] = value
