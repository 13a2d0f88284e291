"""Bounds of operand values, which `perform` checks but a compiled graph can't always check."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from dnnops.errors import DnnError, DnnIndexError, DnnValueError
from dnnops.nnet import CrossEntropyGrad, Dropout, DropoutGrad
from dnnops.nnet.attention.op import AttentionBase
from dnnops.nnet.loss.cross_entropy import CrossEntropyBase
from dnnops.nnet.norm.batchnorm_base import BatchNormBase
from dnnops.nnet.rnn.op import RNNBase

__all__ = ["Bounds", "bounds_of"]


@dataclass(frozen=True)
class Bounds:
    """Bounds that all entries of an operand must satisfy.

    Parameters
    ----------
    problem : str
        Error message, to which the offending number is appended.
    least, most : number
        Minimum and maximum, both inclusive unless `below` is True.
    below : bool
        Whether `most` is an exclusive bound.
    error : type
        Exception to raise.
    makes_nan : bool
        Whether all results become NaN where an exception can't be raised. If False, the conversion
        of the Op decides which results become NaN.
    """

    problem: str
    least: Any
    most: Any
    below: bool = False
    error: type[DnnError] = DnnValueError
    makes_nan: bool = True

    def fits(self, x: Any) -> Any:
        """Return whether each entry of an array is within the bounds; False for NaN."""
        return (x >= self.least) & ((x < self.most) if self.below else (x <= self.most))

    def require(self, x: Any) -> None:
        """Raise `error` unless all entries of a NumPy array are within the bounds."""
        wrong = x[~self.fits(x)]
        if wrong.size:
            raise self.error(f"{self.problem}, got {wrong[0]}")


def bounds_of(op: Any, shapes: list[Any]) -> dict[int, Bounds]:
    """Return the bounds of an Op's operands by operand index.

    Parameters
    ----------
    op : Op
    shapes : list of sequence of int or None
        Shapes of the operands. Bounds that depend on an unknown size are omitted.

    Returns
    -------
    dict of int to Bounds
    """
    where = type(op).__name__
    if isinstance(op, Dropout | DropoutGrad):
        return {1: Bounds(f"{where}: p must be at least 0 and at most 1", 0, 1)}
    if isinstance(op, BatchNormBase):
        return {op.operands.index(name): _of_scalar(op, name) for name in op.scalars}
    if isinstance(op, CrossEntropyBase):
        x = 1 if isinstance(op, CrossEntropyGrad) else 0
        classes = shapes[x][1]
        problem = f"{where}: labels must be in bounds for the classes of x"
        bounds = Bounds(problem, -(classes or 0), classes, True, DnnIndexError, makes_nan=False)
        return {} if classes is None else {x + 1: bounds}
    if isinstance(op, AttentionBase):
        of, axis, least = {"query_lengths": "query", "key_lengths": "key"}, 2, 0
    elif isinstance(op, RNNBase):
        of, axis, least = {"lengths": "x"}, 0, 1
    else:
        return {}
    names = getattr(op, "all_operands", op.operands)
    found = {}
    for name in [name for name in of if name in names]:
        most = shapes[names.index(of[name])][axis]
        if most is not None:
            problem = f"{where}: {name} must be at least {least} and at most the size of {of[name]}"
            found[names.index(name)] = Bounds(problem, least, most)
    return found


def _of_scalar(op: BatchNormBase, name: str) -> Bounds:
    least, most = op.scalars[name]
    end = "finite" if most == inf else f"at most {most:g}"
    problem = f"{type(op).__name__}: {name} must be at least {least:g} and {end}"
    return Bounds(problem, least, most, below=most == inf)
