"""Stabilize logarithms of sigmoids and their gradients, before anything else is rewritten.

PyTensor replaces ``log(sigmoid(x))`` and ``log(1 - sigmoid(x))`` unless axes are moved or elements
picked in between, or `x` is constant. It leaves their gradients to canonicalization, which cancels
the divisor of one logarithm, but not those of a cross-entropy: the gradient of a mean of
``y * log(s) + (1 - y) * log(1 - s)`` divides by ``1 - s``, which may be zero.

As in `dnnops.rewriting.recognize.log_softmax`, the gradient with respect to the sigmoid `s` is
split into ``a / s + b / (1 - s) + rest``, so that the gradient with respect to its operand is
``a * (1 - s) + b * s + rest * s * (1 - s)``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import (
    GraphRewriter,
    copy_stack_trace,
    dfs_rewriter,
    node_rewriter,
)
from pytensor.scalar.basic import Mul, Neg
from pytensor.scalar.math import Sigmoid
from pytensor.tensor.basic import cast
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import add, log, log1p, mul, softplus
from pytensor.tensor.shape import Reshape

from dnnops.rewriting.recognize.quotients import READS, complement_of, quotient_of, uncast
from dnnops.rewriting.recognize.views import inputs_of, kind_of

__all__ = ["StableLogSigmoid"]


def _operand_of_sigmoid(x: Any) -> Any:
    x = uncast(x)
    return x.owner.inputs[0] if kind_of(x) is Sigmoid else None


def _operand_of_complement(x: Any) -> Any:
    """Return the operand of the sigmoid in ``1 - sigmoid(operand)``, else None."""
    z = complement_of(x)
    return None if z is None else _operand_of_sigmoid(z)


def _is_sigmoid(x: Any, z: Any, is_complement: bool) -> bool:
    of = _operand_of_complement if is_complement else _operand_of_sigmoid
    return of(z) is x


def _is_complement(x: Any, z: Any, is_complement: bool) -> bool:
    return _is_sigmoid(x, z, not is_complement)


def _read(x: Any) -> tuple[Any, bool] | None:
    """Read `x` as elements of a sigmoid: its operand, and whether they are subtracted from 1."""
    x = uncast(x)
    node = x.owner
    if kind_of(x) is Sigmoid:
        return node.inputs[0], False
    if (z := complement_of(x)) is not None:
        found = _read(z)
        return None if found is None else (found[0], not found[1])
    if node is None or type(node.op) not in (DimShuffle, Reshape, *READS):
        return None
    found = _read(node.inputs[0])
    return None if found is None else (node.op(found[0], *node.inputs[1:]), found[1])


@node_rewriter([log, log1p])
def local_log_sigmoid(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace the logarithm of a sigmoid, of 1 less a sigmoid, or of elements of these."""
    (x,), (old,) = node.inputs, node.outputs
    if node.op == log1p:
        negated = inputs_of(x, Neg)
        found = _read(negated[0]) if negated else None
        found = None if found is None else (found[0], not found[1])
    else:
        found = _read(x)
    if found is None:
        return None
    operand, is_complement = found
    operand = cast(operand, old.type.dtype)
    result = -softplus(operand if is_complement else -operand)
    if not old.type.is_super(result.type):
        return None
    copy_stack_trace(old, result)
    return [result]


@node_rewriter([mul])
def local_log_sigmoid_gradient(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Cancel the divisors in the gradient ``g * s * (1 - s)`` of a sigmoid and its logarithms."""
    (old,) = node.outputs
    for product, complement in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
        x = _operand_of_complement(complement)
        factors = inputs_of(product, Mul) or []
        sigmoids = [s for s in factors if x is not None and _operand_of_sigmoid(s) is x]
        if len(sigmoids) != 1 or len(factors) < 2:
            continue
        (s,) = sigmoids
        others = [factor for factor in factors if factor is not s]
        g = mul(*others) if len(others) > 1 else others[0]
        by_s, rest = quotient_of(g, partial(_is_sigmoid, x))
        by_complement = None
        if rest is not None:
            by_complement, rest = quotient_of(rest, partial(_is_complement, x))
        if by_s is None and by_complement is None:
            return None
        terms = ((by_s, (complement,)), (by_complement, (s,)), (rest, (s, complement)))
        products = [mul(g, *factors) for g, factors in terms if g is not None]
        result = cast(add(*products) if len(products) > 1 else products[0], old.type.dtype)
        if not old.type.is_super(result.type):
            return None
        copy_stack_trace(old, result)
        return [result]
    return None


class StableLogSigmoid(GraphRewriter):
    """Apply this module's rewrites to graphs with a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        # Gradients first: they look for the sigmoid that the logarithm was taken of.
        self._steps = (
            dfs_rewriter(local_log_sigmoid_gradient),
            dfs_rewriter(local_log_sigmoid),
        )

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        if any(kind_of(node.outputs[0]) is Sigmoid for node in fgraph.apply_nodes if node.outputs):
            for step in self._steps:
                step.apply(fgraph)
