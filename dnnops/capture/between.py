"""Nodes that run by themselves between two CUDA graphs of one captured function.

cuDNN takes the lengths of sequences, for example, on the host. A graph that contained the node
could only repeat them. So the nodes before it are one graph, and those after it another. All of
them use the same arrays in each call: the node gets those that the first graph writes, and writes
to those that the second one reads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from dnnops.capture.memory import Pool
from dnnops.errors import DnnError
from dnnops.runtime.keeping import results_not_kept

__all__ = ["Between", "Place", "stand_ins"]

Cell = list[Any]


@dataclass(frozen=True)
class Place:
    """Where an array of a graph is, without a claim to its memory.

    Attributes
    ----------
    cell : list
        Storage of the variable.
    pointer : cupy.cuda.MemoryPointer
    shape, strides : tuple of int
    dtype : numpy.dtype
    """

    cell: Cell
    pointer: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any

    @classmethod
    def of(cls, cell: Cell, array: Any, pool: Pool) -> Place:
        """Return the place of an array, whose memory stays allocated as long as a pool."""
        from cupy.cuda import MemoryPointer, UnownedMemory

        memory = UnownedMemory(array.data.ptr, array.nbytes, pool, array.device.id)
        return cls(cell, MemoryPointer(memory, 0), array.shape, array.strides, array.dtype)

    def array(self) -> Any:
        """Return a new array there."""
        import cupy

        return cupy.ndarray(self.shape, self.dtype, self.pointer, self.strides)


@dataclass
class Between:
    """A node that is called between two graphs.

    Attributes
    ----------
    position : int
        Position of the node in the function.
    thunk : callable
        The function that runs it.
    operands : list of Place
        Operands that graphs, or other nodes between them, have written.
    replaced : list of Place
        Operands of which graphs read a copy instead of the function's argument.
    values : list of tuple
        Storage and value of operands on the host that depend on shapes only.
    results : list of Place
        Results that graphs read.
    passed : list
        Storage of operands that only nodes between graphs read, and that this one is the last to
        read. They are new arrays in each call.
    """

    position: int
    thunk: Any
    operands: list[Place]
    replaced: list[Place]
    values: list[tuple[Cell, Any]]
    results: list[Place]
    passed: list[Cell]

    def run(self) -> None:
        """Call the node with the arrays of the graphs.

        Raises
        ------
        DnnError
            If a result has another shape or dtype than in the capture.
        """
        former = [(place.cell, place.cell[0]) for place in self.replaced]
        for place in (*self.operands, *self.replaced):
            place.cell[0] = place.array()
        for cell, value in self.values:
            cell[0] = value
        for place in self.results:
            place.cell[0] = place.array()
        try:
            # The node writes to the arrays in its storage only if it has not kept others.
            with results_not_kept():
                self.thunk()
            for place in self.results:
                self._store(place)
        finally:
            for cell, value in former:
                cell[0] = value
            for place in (*self.operands, *self.results):
                place.cell[0] = None
            for cell in (*(cell for cell, _ in self.values), *self.passed):
                cell[0] = None

    def _store(self, place: Place) -> None:
        found = place.cell[0]
        if found.data.ptr == place.pointer.ptr and found.strides == place.strides:
            return
        if (found.shape, found.dtype) != (place.shape, place.dtype):
            raise DnnError(
                f"a result of shape {place.shape} and dtype {place.dtype} has shape {found.shape}"
                f" and dtype {found.dtype} in this call"
            )
        place.array()[...] = found


def stand_ins(arrays: Sequence[Any], operands: Collection[Any], pool: Pool) -> list[Any]:
    """Return arrays from a pool that are laid out as the given ones, except for operands.

    Parameters
    ----------
    arrays : sequence of cupy.ndarray
    operands : collection of cupy.ndarray
        Arrays that are returned themselves.
    pool : Pool
    """
    import cupy

    with pool.used():
        return [
            array if any(array is x for x in operands) else cupy.empty_like(array)
            for array in arrays
        ]
