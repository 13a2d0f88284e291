"""Stabilize logarithms of probabilities and their gradients, before anything else is rewritten.

Where a probability underflows to zero, its logarithm is infinite, and the gradient of that divides
by zero. PyTensor replaces ``log(softmax(x))``, ``log(sigmoid(x))`` and ``log(1 - sigmoid(x))``, and
its canonicalization cancels some divisors. It does not look through other Ops, and computes
probabilities of constants before it looks.

Here, the expressions are as the user and PyTensor's gradients wrote them, apart from equal nodes,
which are merged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, MergeOptimizer, copy_stack_trace
from pytensor.scalar import basic as scalars
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.basic import Join, cast, constant, second
from pytensor.tensor.math import Max, Sum, add
from pytensor.tensor.special import LogSoftmax, Softmax

from dnnops.rewriting.recognize.beside_one import gradient_beside_one
from dnnops.rewriting.recognize.cancelling import Cancelling
from dnnops.rewriting.recognize.exponents import MOVES
from dnnops.rewriting.recognize.scaled import ScaledValues
from dnnops.rewriting.recognize.views import View, inputs_of, is_sum, kind_of, number_of

__all__ = ["LOGARITHMS", "StableLogarithms"]

#: Natural logarithms of the bases of logarithms.
LOGARITHMS: dict[Any, float] = {
    scalars.Log: 1.0,
    scalars.Log2: np.log(2.0),
    scalars.Log10: np.log(10.0),
}
#: Ops that probabilities pass on the way to a logarithm.
_PASSED = (
    scalars.Add,
    scalars.Cast,
    scalars.Clip,
    scalars.Maximum,
    scalars.Minimum,
    scalars.Mul,
    scalars.Neg,
    scalars.Pow,
    scalars.Reciprocal,
    scalars.Second,
    scalars.Sqr,
    scalars.Sqrt,
    scalars.Sub,
    scalars.Switch,
    scalars.TrueDiv,
)


def _exponentials_of(node: Apply) -> tuple[Any, Any] | None:
    """Return `e` and its sum in a quotient of exponentials `e` and their sum, else None."""
    if kind_of(node.outputs[0]) is not scalars.TrueDiv:
        return None
    dividend, divisor = map(View.of, node.inputs)
    e, total = dividend.variable, divisor.variable
    if kind_of(e) is not scalars.Exp or not is_sum(divisor):
        return None
    exponents = inputs_of(total.owner.inputs[0], scalars.Exp)
    if not exponents or exponents[0] is not e.owner.inputs[0]:
        return None
    # The sum has to stand beside the elements that it is the sum of.
    axes, summed = range(e.type.ndim), total.owner.op.axis
    kept = [] if summed is None else [i for i in axes if i not in summed]
    order = tuple(kept.index(i) if i in kept else "x" for i in dividend.order)
    return (e, total) if divisor.order == order else None


def _logistic_of(node: Apply) -> tuple[Any, Any] | None:
    """Return `e` and ``1 + e`` for an exponential `e`, else None."""
    total = node.outputs[0]
    terms = inputs_of(total, scalars.Add) or []
    for e, one in (terms, terms[::-1]) if len(terms) == 2 else ():
        if kind_of(e) is scalars.Exp and number_of(one) == 1:
            return e, total
    return None


def _may_underflow(nodes: list[Apply]) -> bool:
    """Return whether a logarithm or a divisor may depend on a softmax, sigmoid or tanh."""
    found: set[Any] = set()
    for node in nodes:
        x = node.outputs[0]
        kind = kind_of(x)
        if type(node.op) is Softmax or kind in (Sigmoid, scalars.Tanh) or _logistic_of(node):
            found.add(x)
        elif kind is scalars.Exp:
            y = node.inputs[0]
            while y.owner is not None and (
                type(y.owner.op) in MOVES or kind_of(y) in (scalars.Cast, scalars.Neg)
            ):
                y = y.owner.inputs[0]
            if y.owner is not None and (type(y.owner.op) is LogSoftmax or kind_of(y) is Softplus):
                found.add(x)
        elif found and not found.isdisjoint(node.inputs):
            if kind in LOGARITHMS or kind is scalars.Log1p:
                return True
            if kind in (scalars.TrueDiv, scalars.Reciprocal) and node.inputs[-1] in found:
                return True
            if kind in _PASSED or type(node.op) in (Sum, Max, Join, *MOVES):
                found.add(x)
    return False


class StableLogarithms(GraphRewriter):
    """Stabilize logarithms of probabilities, and products in which they cancel.

    Parameters
    ----------
    of_exponentials : bool
        Whether exponentials over their sum count as a softmax, which they don't in the inner graph
        of one.
    """

    def __init__(self, of_exponentials: bool = True) -> None:
        super().__init__()
        self._of_exponentials = of_exponentials
        self._merge = MergeOptimizer()

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        """Attach what merging equal nodes needs."""
        self._merge.add_requirements(fgraph)

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        nodes = fgraph.toposort()
        has_exponentials = self._of_exponentials and any(map(_exponentials_of, nodes))
        if not has_exponentials and not _may_underflow(nodes):
            return
        self._merge.apply(fgraph)
        values, settled = ScaledValues(fgraph), set[Any]()
        cancelling: dict[str, Cancelling] = {}
        replacements = []
        nodes = fgraph.toposort()
        if has_exponentials:
            for e, total in filter(None, map(_exponentials_of, nodes)):
                sums = {user for user, _ in fgraph.clients[e] if isinstance(user.op, Sum)}
                # Other sums of them could not be read in terms of this softmax.
                if sums == {total.owner}:
                    values.add_exponentials(e, total)
        for e, total in filter(None, map(_logistic_of, nodes)):
            values.add_logistic(e, total)
        for node in nodes:
            old = node.outputs[0]
            kind, result = kind_of(old), None
            if kind is None:
                continue
            dtype = old.type.dtype
            if kind in LOGARITHMS or kind is scalars.Log1p:
                # PyTensor cancels a logarithm of odds with a sigmoid.
                if Sigmoid not in _uses_of(fgraph, old):
                    result = _logarithm(node, kind, values)
            elif not dtype.startswith("float"):
                continue
            elif kind is scalars.Sub and values.complements:
                within = cancelling.setdefault(dtype, Cancelling(values, dtype, settled))
                result = gradient_beside_one(old, within)
            elif kind in (scalars.Mul, scalars.TrueDiv):
                within = cancelling.setdefault(dtype, Cancelling(values, dtype, settled))
                if _is_whole(fgraph, node) and within.is_fragile(old):
                    result, is_settled = within.product(old) or (None, False)
                    if is_settled:
                        settled.add(old)
            if result is not None:
                result = cast(result, dtype)
                if result.type.broadcastable != old.type.broadcastable:
                    result = second(add(*node.inputs), result)
                if old.type.is_super(result.type):
                    replacements.append((old, result))
        # The results are made of operands, which may be replaced after them.
        for old, new in reversed(replacements):
            copy_stack_trace(old, new)
            fgraph.replace(old, new, reason="stable_logarithms", import_missing=True)


def _is_whole(fgraph: FunctionGraph, node: Apply) -> bool:
    """Return whether a product is not only used as a factor."""
    kinds = (scalars.Mul, scalars.TrueDiv)
    return any(kind not in kinds for kind in _uses_of(fgraph, node.outputs[0]))


def _uses_of(fgraph: FunctionGraph, x: Any) -> list[type | None]:
    """Return the kinds of scalar Ops that use `x`; None for other Ops."""
    nodes = [node for node, _ in fgraph.clients[x]]
    return [kind_of(node.outputs[0]) if node.outputs else None for node in nodes]


def _logarithm(node: Apply, kind: Any, values: ScaledValues) -> Any:
    (x,) = node.inputs
    dtype = node.outputs[0].type.dtype
    if not x.type.dtype.startswith("float"):
        return None
    found = values.one_plus(x, dtype) if kind is scalars.Log1p else values.read(x, dtype)
    if found is None:
        return None
    result = values.logarithm(found, dtype)
    base = LOGARITHMS.get(kind, 1)
    return result if base == 1 else result / constant(np.asarray(base, dtype))
