"""Stabilize logarithms of softmaxes and their gradients, before anything else is rewritten.

Where a softmax underflows to zero, its logarithm is infinite, and the gradient of that divides by
the softmax. PyTensor replaces the logarithm, and its canonicalization cancels the divisor, if the
gradient of the softmax is that of its logarithm alone, or a sum that can be multiplied out.
Elements that are read by an index, as in ``log(softmax(x)[arange(n), labels])``, hide the quotient
from it. A softmax of constants has been computed before it looks.

Here, the expressions are as the user and PyTensor's gradients wrote them. The gradient `g` with
respect to the softmax `sm` is split into ``u / sm + rest``, and the gradient with respect to the
scores is ``m - sm * sum(m)`` of ``m = u + rest * sm``, which divides by nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import (
    GraphRewriter,
    copy_stack_trace,
    dfs_rewriter,
    node_rewriter,
)
from pytensor.scalar.basic import Cast, Log, Log2, Log10, Mul
from pytensor.tensor.basic import cast, constant
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import mul, sub
from pytensor.tensor.shape import Reshape
from pytensor.tensor.special import LogSoftmax, Softmax

from dnnops.rewriting.recognize.matching import Slot, match
from dnnops.rewriting.recognize.quotients import READS, as_large_as, quotient_of, uncast
from dnnops.rewriting.recognize.views import View, inputs_of, is_sum, kept_sum_of, kind_of

__all__ = ["StableLogSoftmax", "logarithm_of"]

#: Natural logarithms of the bases of logarithms.
_LOGARITHMS: dict[type, float] = {Log: 1.0, Log2: np.log(2.0), Log10: np.log(10.0)}


def _is_softmax(view: View) -> bool:
    node = view.variable.owner
    return view.is_whole and node is not None and type(node.op) is Softmax


#: As PyTensor writes the gradient of a softmax.
_GRADIENT = Slot("product") - Slot("softmax", _is_softmax) * Slot("sum", is_sum)


@node_rewriter([sub])
def local_softmax_gradient(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Cancel the softmax in the gradient of a softmax and its logarithm."""
    (old,) = node.outputs
    found = match(_GRADIENT, old)
    if found is None:
        return None
    product, sm = node.inputs[0], found["softmax"].variable
    factors = inputs_of(product, Mul) or []
    summand, axes = kept_sum_of(found["sum"]) or (None, ())
    own = sm.owner.op.axis
    axes_of_softmax = range(sm.type.ndim) if own is None else {a % sm.type.ndim for a in own}
    if summand is not product or sm not in factors or set(axes) != set(axes_of_softmax):
        return None
    factors.remove(sm)
    if not factors:
        return None
    u, rest = quotient_of(
        mul(*factors) if len(factors) > 1 else factors[0],
        lambda x, is_complement: not is_complement and uncast(x) is sm,
    )
    if u is None:
        return None
    minuend = as_large_as(u, old)
    if rest is not None:
        minuend = minuend + rest * sm
    result = minuend - sm * minuend.sum(axis=axes, keepdims=True)
    if result.type.dtype != old.type.dtype or not old.type.is_super(result.type):
        return None
    copy_stack_trace(old, result)
    return [result]


def logarithm_of(node: Apply, of_softmax: Callable[[Any, str], Any]) -> list[Variable] | None:
    """Return the result of a logarithm of a softmax, or of elements of one, as a log-softmax.

    Parameters
    ----------
    node : Apply
        Node of a natural, binary or decimal logarithm, or of anything else.
    of_softmax : callable
        Function that takes a variable and a dtype and returns the natural logarithm of the
        variable in this dtype if it is a softmax, else None.

    Returns
    -------
    list of Variable, or None
    """
    (old,) = node.outputs if len(node.outputs) == 1 else (None,)
    base = _LOGARITHMS.get(kind_of(old)) if old is not None else None
    if base is None or old.type.dtype != node.inputs[0].type.dtype:
        return None
    result = _logarithm(node.inputs[0], old.type.dtype, of_softmax)
    if result is None:
        return None
    if base != 1:
        result = result / constant(np.asarray(base, old.type.dtype))
    copy_stack_trace(old, result)
    return [result]


def _logarithm(x: Any, dtype: str, of_softmax: Callable[[Any, str], Any]) -> Any:
    node = x.owner
    result = None if node is None else of_softmax(x, dtype)
    if node is None or result is not None:
        return result
    if inputs_of(x, Cast):
        is_float = node.inputs[0].type.dtype.startswith("float")
        return _logarithm(node.inputs[0], dtype, of_softmax) if is_float else None
    if type(node.op) in (DimShuffle, Reshape, *READS):
        inner = _logarithm(node.inputs[0], dtype, of_softmax)
        return None if inner is None else node.op(inner, *node.inputs[1:])
    return None


def _log_softmax(x: Any, dtype: str) -> Any:
    op = x.owner.op
    return LogSoftmax(axis=op.axis)(cast(x.owner.inputs[0], dtype)) if type(op) is Softmax else None


@node_rewriter([Elemwise])
def local_log_of_softmax(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace the logarithm of a softmax, or of elements of one, with a log-softmax."""
    return logarithm_of(node, _log_softmax)


class StableLogSoftmax(GraphRewriter):
    """Apply this module's rewrites to graphs with a softmax."""

    def __init__(self) -> None:
        super().__init__()
        # Gradients first: they look for the softmax that the logarithm was taken of.
        self._steps = (dfs_rewriter(local_softmax_gradient), dfs_rewriter(local_log_of_softmax))

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        if any(type(node.op) is Softmax for node in fgraph.apply_nodes):
            for step in self._steps:
                step.apply(fgraph)
