"""Collect the arrays, launches and results of a prepared call."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply

from dnnops.dtypes import numpy_dtype
from dnnops.gpuarray.layout import inverse
from dnnops.gpuarray.prepared.call import Address, NewArray, Number, PreparedCall, Result
from dnnops.gpuarray.prepared.placed import Placed

__all__ = ["CallBuilder", "number_at"]


def number_at(node: Apply, place: int, value: Any) -> Number | Address:
    """Return an operand that is one number, as an argument of a kernel.

    Parameters
    ----------
    node : Apply
    place : int
        Index of the operand.
    value : numpy.ndarray or cupy.ndarray
        Its value, which may be another one in the next call, on the same side.
    """
    if isinstance(value, np.ndarray | np.generic):
        return Number(place, numpy_dtype(node.inputs[place].type.dtype))
    return Address(place)


class CallBuilder:
    """A prepared call in the making.

    Parameters
    ----------
    inputs : sequence
        Values of the node's operands.
    """

    def __init__(self, inputs: Sequence[Any]):
        self.inputs = inputs
        self.arrays: list[NewArray] = []
        self.steps: list[Any] = []

    def operand(self, index: int) -> Placed:
        """Return the layout of an operand on the device."""
        return Placed.of(self.inputs[index], index)

    def new(self, shape: Sequence[int], dtype: np.dtype) -> Placed:
        """Allocate a C-contiguous array."""
        array = NewArray(tuple(map(int, shape)), np.dtype(dtype))
        self.arrays.append(array)
        place = len(self.inputs) + len(self.arrays) - 1
        return Placed.new(array.shape, array.dtype, place)

    def new_in_order(
        self, shape: Sequence[int], dtype: np.dtype, order: tuple[int, ...] | None
    ) -> tuple[Result, Placed]:
        """Allocate an array with its axes in an order in memory.

        Returns
        -------
        result : Result
            The array with its axes in logical order.
        memory : Placed
            The array with its axes in memory order.
        """
        if order is None:
            memory = self.new(shape, dtype)
            return Result(memory.address.place), memory
        memory = self.new([shape[axis] for axis in order], dtype)
        views = (methodcaller("transpose", inverse(order)),)
        return Result(memory.address.place, views), memory

    def call(self, *results: Result) -> PreparedCall:
        """Return the call with its results."""
        return PreparedCall(results, tuple(self.arrays), tuple(self.steps))
