"""What a node allocates, launches and returns, prepared once for operands of the same shapes.

An Op's ``prepare`` method returns a `PreparedCall`. It is data: new arrays, kernels with their
arguments, matrix products and views. C code repeats it without the interpreter as long as the
operands have the same shapes, strides and alignment (``c_code/gpu/prepared``), and
`PreparedCall.run` does the same in Python.

Arrays have *places*: first those of the node's operands, then those of the new arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

__all__ = [
    "ALIGNMENT",
    "Address",
    "KernelStep",
    "NewArray",
    "Number",
    "PreparedCall",
    "Result",
    "Step",
]

#: The address of an operand may be of another remainder by this number only in another call.
ALIGNMENT = 16

View = Callable[[Any], Any]


class NewArray(NamedTuple):
    """A C-contiguous array to allocate: a result, or memory for intermediate results.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Return the size of the array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class Result(NamedTuple):
    """A result of a node.

    Attributes
    ----------
    place : int
        Place of an array.
    views : tuple of callable
        Functions that are applied to the array, one after the other, such as
        ``operator.methodcaller("transpose", (1, 0))``. Each returns a view.
    """

    place: int
    views: tuple[View, ...] = ()


class Address(NamedTuple):
    """An argument of a kernel: the address of an array, plus an offset in bytes."""

    place: int
    offset: int = 0


class Number(NamedTuple):
    """An argument of a kernel: the value of an operand on the host, of a dtype."""

    place: int
    dtype: np.dtype


@dataclass(frozen=True)
class KernelStep:
    """The launch of a kernel.

    Attributes
    ----------
    function : cupy.RawKernel
    blocks, threads : int
        Number of blocks, and of threads in each.
    arguments : list
        Each is an `Address`, a `Number`, or a NumPy scalar or array without axes.
    """

    function: Any
    blocks: int
    threads: int
    arguments: Sequence[Any]

    def run(self, arrays: Sequence[Any]) -> None:
        """Launch the kernel; `arrays` are the values of all places."""
        given = [_given(argument, arrays) for argument in self.arguments]
        self.function((self.blocks,), (self.threads,), tuple(given))

    def encoded(self) -> tuple[Any, ...]:
        """Return the step for C."""
        block, offsets = bytearray(), []
        patches: list[tuple[int, int, int, int]] = []
        for argument in self.arguments:
            value, alignment = _bytes(argument)
            block += bytes(-len(block) % alignment)
            at = len(block)
            offsets.append(at)
            block += value
            if isinstance(argument, Address):
                patches.append((at, *argument, 0))
            elif isinstance(argument, Number):
                patches.append((at, argument.place, 0, argument.dtype.itemsize))
        # The function on the current device, which keeps its module loaded.
        function = self.function.kernel
        launch = (function.ptr, self.blocks, self.threads)
        return 0, (*launch, bytes(block), tuple(offsets), tuple(patches), function)


class Step(Protocol):
    """What a prepared call launches: a `KernelStep`, or a matrix product."""

    def run(self, arrays: Sequence[Any]) -> None:
        """Launch it; `arrays` are the values of all places."""

    def encoded(self) -> tuple[Any, ...]:
        """Return the step for C: its kind, and what that kind needs."""


@dataclass(frozen=True)
class PreparedCall:
    """What a node does for operands of certain shapes.

    Attributes
    ----------
    results : sequence of Result
    arrays : sequence of NewArray
    steps : sequence of Step
        In the order in which they are launched.
    """

    results: Sequence[Result]
    arrays: Sequence[NewArray] = ()
    steps: Sequence[Step] = ()

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Allocate, launch and view, and return the values of the results.

        Parameters
        ----------
        inputs : sequence
            Values of the operands.

        Returns
        -------
        tuple of cupy.ndarray
        """
        import cupy

        arrays = [*inputs, *(cupy.ndarray(new.shape, new.dtype) for new in self.arrays)]
        for step in self.steps:
            step.run(arrays)
        results = []
        for result in self.results:
            value = arrays[result.place]
            for view in result.views:
                value = view(value)
            results.append(value)
        return tuple(results)

    def encoded(self) -> tuple[Any, ...]:
        """Return the call for C, as ``c_code/gpu/prepared/prepared_call.cpp`` reads it."""
        # C code has the addresses of the kernels, which this tuple keeps loaded.
        return (
            tuple((new.shape, new.dtype, new.nbytes) for new in self.arrays),
            tuple(step.encoded() for step in self.steps),
            tuple((result.place, tuple(result.views)) for result in self.results),
            self,
        )


def _given(argument: Any, arrays: Sequence[Any]) -> Any:
    """Return an argument as CuPy takes it."""
    if isinstance(argument, Address):
        return np.uint64(arrays[argument.place].data.ptr + argument.offset)
    if isinstance(argument, Number):
        return np.asarray(arrays[argument.place], argument.dtype)[()]
    return argument


def _bytes(argument: Any) -> tuple[bytes, int]:
    """Return the bytes of an argument, and what its offset is a multiple of."""
    if isinstance(argument, Address):
        return bytes(8), 8
    if isinstance(argument, Number):
        return bytes(argument.dtype.itemsize), argument.dtype.itemsize
    value = np.asarray(argument)
    return value.tobytes(), value.dtype.alignment
