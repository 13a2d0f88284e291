"""Arrays as kernels see them: where they are, and their layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnops.gpuarray.prepared.call import ALIGNMENT, Address

__all__ = ["Placed", "contiguous_strides"]


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of a C-contiguous array."""
    strides, step = [], itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


@dataclass(frozen=True)
class Placed:
    """An array at a place of a prepared call.

    Attributes
    ----------
    address : Address
        Where its first element is.
    shape, strides : tuple of int
        Strides are in bytes.
    itemsize : int
    remainder : int
        Remainder of its address by `ALIGNMENT`.
    """

    address: Address
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    remainder: int = 0

    @classmethod
    def of(cls, array: Any, place: int) -> Placed:
        """Return the layout of a device array."""
        remainder = array.data.ptr % ALIGNMENT
        return cls(Address(place), array.shape, array.strides, array.itemsize, remainder)

    @classmethod
    def new(cls, shape: tuple[int, ...], dtype: np.dtype, place: int) -> Placed:
        """Return the layout of a new array, which starts at a multiple of `ALIGNMENT`."""
        strides = contiguous_strides(shape, dtype.itemsize)
        return cls(Address(place), shape, strides, dtype.itemsize)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def c_contiguous(self) -> bool:
        """Whether the elements are adjacent, in C order."""
        dense = contiguous_strides(self.shape, self.itemsize)
        return not self.size or all(
            length == 1 or step == wanted
            for length, step, wanted in zip(self.shape, self.strides, dense, strict=True)
        )

    @property
    def is_aligned(self) -> bool:
        """Whether all elements are at multiples of their size, as kernels need them."""
        steps = zip(self.shape, self.strides, strict=True)
        places = [self.remainder, *(step for length, step in steps if length != 1)]
        return not self.size or not any(place % self.itemsize for place in places)

    @property
    def flags(self) -> Placed:
        """The object with the attribute ``c_contiguous``, as device arrays have one."""
        return self

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def transpose(self, order: tuple[int, ...] | None) -> Placed:
        """Return the array with its axes in another order; None leaves them."""
        if order is None:
            return self
        shape = tuple(self.shape[axis] for axis in order)
        strides = tuple(self.strides[axis] for axis in order)
        return Placed(self.address, shape, strides, self.itemsize, self.remainder)

    def transposed(self) -> Placed:
        """Return the array with its last two axes exchanged."""
        first = range(self.ndim - 2)
        return self.transpose((*first, self.ndim - 1, self.ndim - 2))

    def as_column(self) -> Placed:
        """Return a vector as a matrix of one column."""
        shape, strides = (*self.shape, 1), (*self.strides, self.itemsize)
        return Placed(self.address, shape, strides, self.itemsize, self.remainder)

    def with_axes_before(self, ndim: int) -> Placed:
        """Return the array with axes of length 1 in front, up to `ndim` axes."""
        more = ndim - self.ndim
        shape, strides = (1,) * more + self.shape, (0,) * more + self.strides
        return Placed(self.address, shape, strides, self.itemsize, self.remainder)

    def part(self, axis: int, start: int, length: int) -> Placed:
        """Return `length` elements along an axis, from `start` on."""
        shape = (*self.shape[:axis], length, *self.shape[axis + 1 :])
        ahead = start * self.strides[axis]
        address = Address(self.address.place, self.address.offset + ahead)
        remainder = (self.remainder + ahead) % ALIGNMENT
        return Placed(address, shape, self.strides, self.itemsize, remainder)
