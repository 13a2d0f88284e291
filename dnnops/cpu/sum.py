"""Sums over some axes in the threads of the other CPU Ops."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from dnnops.compat import shape_inference
from dnnops.cpu.base import OneDnnOp
from dnnops.errors import DnnTypeError, DnnValueError

__all__ = ["CpuSum", "kept_axes"]


def kept_axes(ndim: int, axis: tuple[int, ...] | None) -> tuple[int, int] | None:
    """Return the axes that a sum keeps, if they are adjacent.

    Parameters
    ----------
    ndim : int
        Number of axes of the array.
    axis : tuple of int or None
        Axes that are added up; None for all.

    Returns
    -------
    tuple of int or None
        First axis that is kept, and the one after the last; None if there are others in between.
    """
    summed = set(range(ndim) if axis is None else axis)
    kept = [i for i in range(ndim) if i not in summed]
    if not kept:
        return 0, 0
    return (kept[0], kept[-1] + 1) if kept[-1] - kept[0] < len(kept) else None


class CpuSum(OneDnnOp):
    """Sum of a float32 array, accumulated in float64: ``CpuSum(first, last)(x)``.

    Parameters
    ----------
    first, last : int
        The axes from `first` to the one before `last` are kept. The sum is over the others.
    """

    __props__ = ("first", "last")
    function = "dnnops_onednn_sum"
    calls_library = False

    def __init__(self, first: int, last: int):
        if not 0 <= first <= last:
            raise DnnValueError(f"CpuSum: expected 0 <= first <= last, got {first} and {last}")
        self.first, self.last = first, last

    def parameters(self) -> list[int]:
        return [self.first, self.last]

    def make_node(self, x: Any) -> Apply:
        x = pt.as_tensor_variable(x)
        if x.type.ndim < self.last or x.type.dtype != "float32":
            raise DnnTypeError(
                f"CpuSum: expected a float32 array of at least {self.last} axes, got {x.type}"
            )
        shape = x.type.shape[self.first : self.last]
        return Apply(self, [x], [pt.tensor(dtype="float32", shape=shape)])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: list[Any]) -> list[Any]:
        return [tuple(shapes[0][self.first : self.last])]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        (x,), (g,) = inputs, cotangents
        before, after = self.first, x.type.ndim - self.last
        kept = range(self.last - self.first)
        return [pt.broadcast_to(g.dimshuffle(*"x" * before, *kept, *"x" * after), x.shape)]
