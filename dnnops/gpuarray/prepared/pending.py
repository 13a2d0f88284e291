"""Arrays of a prepared call in the making, which stand for device arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any

from dnnops.gpuarray.prepared.builder import CallBuilder
from dnnops.gpuarray.prepared.call import Result, View
from dnnops.gpuarray.prepared.placed import Placed

__all__ = ["Pending"]


@dataclass(frozen=True)
class Pending:
    """An array that a call has, or will have allocated and computed.

    It has the attributes of a device array that say what to launch.

    Attributes
    ----------
    call : CallBuilder
    placed : Placed
        Where it is, and its layout.
    views : tuple of callable
        How it is made from the array at its place.
    """

    call: CallBuilder
    placed: Placed
    views: tuple[View, ...] = ()

    @classmethod
    def of(cls, array: Any) -> Pending:
        """Return the only operand of a new call."""
        call = CallBuilder((array,))
        return cls(call, call.operand(0))

    @property
    def device(self) -> int:
        """Number of the device of the call's first operand."""
        return self.call.inputs[0].data.device_id

    @property
    def result(self) -> Result:
        """The array as a result of the call."""
        return Result(self.placed.address.place, self.views)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.placed.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in bytes."""
        return self.placed.strides

    @property
    def itemsize(self) -> int:
        """Size of an element in bytes."""
        return self.placed.itemsize

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.itemsize

    @property
    def flags(self) -> Placed:
        """The object with the attribute ``c_contiguous``."""
        return self.placed

    def transpose(self, order: Sequence[int]) -> Pending:
        """Return a view with the axes in another order."""
        axes = tuple(order)
        views = (*self.views, methodcaller("transpose", axes))
        return replace(self, placed=self.placed.transpose(axes), views=views)
