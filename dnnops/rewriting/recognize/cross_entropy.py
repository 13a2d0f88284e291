"""Recognize the cross-entropy of a softmax with labels, and its gradient.

``-log_softmax(x)[arange(n), labels]`` and similar expressions of a matrix `x` become
`CrossEntropy`. Otherwise the logarithms of all classes would be written to memory although only one
per row is read. The gradient is written out as the gradient of the log-softmax, applied to an array
that is zero except at the labels. It becomes `CrossEntropyGrad`, which does not need that array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable, equal_computations
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.tensor.basic import Alloc, ARange, cast, constant
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import neg, sub
from pytensor.tensor.special import LogSoftmax
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from dnnops.compat import inferred_size
from dnnops.nnet.activation.softmax import LogSoftmaxGrad
from dnnops.nnet.loss.cross_entropy import LABEL_DTYPES, CrossEntropy, CrossEntropyGrad
from dnnops.rewriting.recognize.softmax import LocalSoftmaxGrad
from dnnops.rewriting.recognize.views import size_of, without_casts

__all__ = ["FuseCrossEntropy"]


@dataclass(frozen=True)
class _Place:
    """The element of each row of a log-softmax that is read, or whose gradient is set."""

    x: Variable
    labels: Variable
    every_row: bool
    #: Whether the indices are columns, as in ``take_along_axis``.
    is_column: bool


@dataclass(frozen=True)
class _Gradient:
    node: Apply
    place: _Place
    #: The gradient with respect to the logarithms at the labels.
    g: Variable


def _owner(x: Variable, kind: type) -> Apply | None:
    return x.owner if x.owner is not None and isinstance(x.owner.op, kind) else None


def _scores(logs: Variable) -> Variable | None:
    """Return the matrix of scores of a log-softmax over rows, or None."""
    node = logs.owner
    if node is None or type(node.op) is not LogSoftmax or logs.type.ndim != 2:
        return None
    return node.inputs[0] if node.op.axis in (1, -1, (1,), (-1,)) else None


def _without_columns(index: Variable) -> Variable | None:
    """Return the vector that an index of shape (n, 1) was made from, or None."""
    node = _owner(index, DimShuffle)
    return node.inputs[0] if node is not None and node.op.new_order == (0, "x") else None


def _is_length_of(fgraph: FunctionGraph, size: Variable, x: Any) -> bool:
    """Return whether a symbolic size is the length of the first axis of `x`."""
    size = without_casts(size)
    known = x.type.shape[0]
    if isinstance(size, Constant):
        return known is not None and known == int(size.data)
    if size_of(size) == (x, 0):
        return True
    found = inferred_size(fgraph, x, 0)
    return found is not None and equal_computations([size], [without_casts(found)])


def _covers(fgraph: FunctionGraph, rows: Variable, x: Any, labels: Any) -> bool | None:
    """Determine whether an index counts rows like ``arange``.

    Return True if it counts the rows of `x`, False if it counts the labels, and None otherwise.
    """
    if isinstance(rows, Constant):
        count = rows.data.shape[0] if rows.data.ndim == 1 else -1
        if count < 0 or not np.array_equal(rows.data, np.arange(count)):
            return None
        if x.type.shape[0] == count:
            return True
        return False if labels.type.shape[0] == count else None
    node = _owner(rows, ARange)
    if node is None:
        return None
    start, stop, step = node.inputs
    bounds = [without_casts(v) for v in (start, step)]
    if not all(isinstance(v, Constant) for v in bounds):
        return None
    if [int(v.data) for v in bounds] != [0, 1]:
        return None
    if _is_length_of(fgraph, stop, x):
        return True
    return False if _is_length_of(fgraph, stop, labels) else None


def _place(fgraph: FunctionGraph, x: Any, idx_list: Any, indices: list[Variable]) -> _Place | None:
    if tuple(idx_list) != (0, 1) or len(indices) != 2:
        return None
    rows, labels = indices
    is_column = rows.type.ndim == labels.type.ndim == 2
    if is_column:
        if not labels.type.broadcastable[1]:
            return None
        if isinstance(rows, Constant) and rows.data.shape[1] == 1:
            rows = constant(rows.data[:, 0])
        else:
            rows = _without_columns(rows)
        vector = _without_columns(labels)
        labels = labels.dimshuffle(0) if vector is None else vector
    if rows is None or rows.type.ndim != 1 or labels.type.ndim != 1:
        return None
    if labels.type.dtype not in LABEL_DTYPES:
        return None
    every_row = _covers(fgraph, rows, x, labels)
    if every_row and x.type.shape[0] == 1 != labels.type.shape[0]:
        return None  # the only row is read at each of the labels
    return None if every_row is None else _Place(x, labels, every_row, is_column)


def _picked(fgraph: FunctionGraph, node: Apply) -> _Place | None:
    """Return the place where a node reads a log-softmax, or None."""
    if type(node.op) is not AdvancedSubtensor:
        return None
    x = _scores(node.inputs[0])
    return None if x is None else _place(fgraph, x, node.op.idx_list, node.inputs[1:])


def _is_zeros(x: Variable) -> bool:
    node = _owner(x, Alloc)
    value = x if node is None else node.inputs[0]
    return isinstance(value, Constant) and not np.any(value.data)


class FuseCrossEntropy(GraphRewriter):
    """Replace written-out cross-entropies with `CrossEntropy`, together with their gradients.

    Parameters
    ----------
    takes_dtype : callable
        Function that takes a dtype and returns whether to replace cross-entropies of that dtype.
    """

    def __init__(self, takes_dtype: Callable[[str], bool]):
        super().__init__()
        self.takes_dtype = takes_dtype
        self._softmax_grad = LocalSoftmaxGrad(takes_dtype)

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        order = fgraph.toposort()
        picks = {
            node: place
            for node in order
            if (place := _picked(fgraph, node)) is not None and self.takes_dtype(place.x.type.dtype)
        }
        gradients = [g for node in order if (g := self._gradient(fgraph, node)) is not None]
        known = {*picks, *(g.node for g in gradients)}
        kept = set(self._kept(fgraph, order, known))
        ops: dict[_Place, list[Variable]] = {}
        for node, place in picks.items():
            if place.x in kept:
                continue
            costs, _ = self._op(ops, place)
            result = neg(costs.dimshuffle(0, "x") if place.is_column else costs)
            self._replace(fgraph, node, result)
        for gradient in gradients:
            place = gradient.place
            if place.x in kept:
                continue
            g = _vector(gradient.g, place)
            if g is None:
                continue
            _, statistics = self._op(ops, place)
            op = CrossEntropyGrad(place.every_row, one_for_all=place.every_row)
            result = op(cast(neg(g), place.x.type.dtype), place.x, place.labels, statistics)
            self._replace(fgraph, gradient.node, result)

    @staticmethod
    def _kept(fgraph: FunctionGraph, order: list[Apply], known: set[Apply]) -> Iterator[Variable]:
        """Yield the scores whose log-softmax has other uses, so that indexing it costs nothing."""
        for node in order:
            x = _scores(node.outputs[0])
            if x is not None and any(c not in known for c, _ in fgraph.clients[node.outputs[0]]):
                yield x

    @staticmethod
    def _op(ops: dict[_Place, list[Variable]], place: _Place) -> list[Variable]:
        # Places that differ only in the form of the indices share one Op.
        key = _Place(place.x, place.labels, place.every_row, False)
        if key not in ops:
            ops[key] = (
                CrossEntropy(place.every_row, one_for_all=place.every_row)
                .make_node(place.x, place.labels)
                .outputs
            )
        return ops[key]

    @staticmethod
    def _replace(fgraph: FunctionGraph, node: Apply, result: Any) -> None:
        (old,) = node.outputs
        if result.type.dtype != old.type.dtype or result.type.ndim != old.type.ndim:
            return
        copy_stack_trace(old, result)
        fgraph.replace_validate(old, result, reason="fuse_cross_entropy", import_missing=True)

    def _gradient(self, fgraph: FunctionGraph, node: Apply) -> _Gradient | None:
        """Read a node as the gradient of a log-softmax at labels, or return None."""
        found = node
        if node.op == sub:
            # In dtypes that no library supports, the softmax gradient is still written out.
            new = self._softmax_grad.transform(fgraph, node)
            if not new or new[0].owner is None:
                return None
            found = new[0].owner
        if not isinstance(found.op, LogSoftmaxGrad):
            return None
        gz, logs = found.inputs
        x = _scores(logs)
        put = _owner(gz, AdvancedIncSubtensor)
        if x is None or put is None or not self.takes_dtype(x.type.dtype):
            return None
        base, value, *indices = put.inputs
        if not _is_zeros(base):
            return None
        place = _place(fgraph, x, put.op.idx_list, indices)
        return None if place is None else _Gradient(node, place, value)


def _vector(g: Any, place: _Place) -> Any:
    """Return a gradient with respect to the logarithms as a vector or a single element, or None."""
    ndim = g.type.ndim
    if ndim == 0:
        return g.dimshuffle("x")
    if not place.is_column:
        return g if ndim == 1 else None
    if ndim == 2:
        return g.dimshuffle(0) if g.type.broadcastable[1] else None
    return g if g.type.broadcastable[0] else None
