"""Rewrites of PyTensor that change results, which the modes of dnnops leave out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import toposort
from pytensor.tensor.rewriting import special, subtensor, uncanonicalize

__all__ = ["faulty_rewrites"]


@cache
def faulty_rewrites() -> tuple[str, ...]:
    """Return the names of rewrites that are wrong in the PyTensor that runs.

    In PyTensor 3.0, ``local_add_of_sparse_write`` rewrites ``x + zeros[i].set(v)`` to
    ``x[i].inc(v)`` although the sum broadcasts ``zeros`` (pytensor #2349),
    ``local_dimshuffle_subtensor`` rewrites ``x[:0:-1].squeeze()`` to ``x[0]``, and
    ``local_softmax_stabilize`` takes ``e / e.sum(axis=1)``, for ``e = exp(x)``, for the softmax of
    the rows of a matrix, although it divides the columns by the sums of the rows.
    `dnnops.rewriting.recognize.softmax` recognizes the expressions of a softmax instead.

    Returns
    -------
    tuple of str
    """
    candidates = (
        (subtensor, "local_add_of_sparse_write", _broadcast_sum),
        (uncanonicalize, "local_dimshuffle_subtensor", _squeezed_element),
        (special, "local_softmax_stabilize", _exponentials_over_other_sums),
    )
    return tuple(
        name
        for module, name, make in candidates
        if _changes_result(getattr(module, name, None), make)
    )


def _changes_result(rewrite: Any, make: Callable[[Any], Any]) -> bool:
    if rewrite is None:
        return False
    x, value = pt.tensor(dtype="float64", shape=(2,)), np.arange(2.0)
    result = make(x)
    new = rewrite.transform(FunctionGraph([x], [result], clone=False), result.owner)
    if not new:
        return False
    return not np.array_equal(*(_value(z, {x: value}) for z in (result, new[0])))


def _value(z: Any, values: dict[Any, Any]) -> Any:
    """Return the value of a variable without compiling a function, which users would notice."""
    values = dict(values)
    for node in toposort([z], blockers=values):
        operands = [x.data if isinstance(x, Constant) else values[x] for x in node.inputs]
        if isinstance(node.op, OpFromGraph):  # its own `perform` compiles a function
            inner = dict(zip(node.op.inner_inputs, operands, strict=True))
            values |= {
                y: _value(inner_y, inner)
                for y, inner_y in zip(node.outputs, node.op.inner_outputs, strict=True)
            }
            continue
        results: list[list[Any]] = [[None] for _ in node.outputs]
        node.op.perform(node, operands, results)
        values |= {y: cell[0] for y, cell in zip(node.outputs, results, strict=True)}
    return values[z]


def _broadcast_sum(x: Any) -> Any:
    return x + pt.set_subtensor(pt.zeros(1)[:1], 1.0)


def _squeezed_element(x: Any) -> Any:
    return x[:0:-1].dimshuffle(())


def _exponentials_over_other_sums(x: Any) -> Any:
    exponentials = pt.exp(pt.stack([x, 2 * x]))
    return exponentials / exponentials.sum(axis=1)
