"""Read gradients as multiples of the inverse of an activation, and a rest.

PyTensor writes the gradient of ``log(y)`` as ``g / y``. Where `y` underflows to zero, the quotient
must cancel with the gradient of the activation that computes `y`. Between them, there may be sums,
factors, casts, and Ops that move or pick elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Apply, Constant, equal_computations
from pytensor.scalar.basic import Add, Cast, Mul, Neg, Reciprocal, Second, Sub, TrueDiv
from pytensor.tensor import subtensor as indexing
from pytensor.tensor.basic import Alloc, cast, ones_like
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import add, mul, neg, true_div
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)

from dnnops.compat import existing
from dnnops.rewriting.recognize.views import inputs_of, kind_of, number_of

__all__ = [
    "READS",
    "READ_OF",
    "Quotient",
    "as_large_as",
    "complement_of",
    "is_zeros",
    "quotient_of",
    "uncast",
]

#: The Ops that pick elements.
READS = (Subtensor, AdvancedSubtensor, *existing(indexing, "AdvancedSubtensor1"))
_WRITES = (IncSubtensor, AdvancedIncSubtensor, *existing(indexing, "AdvancedIncSubtensor1"))
#: The Ops that read, by those that write in the same places.
READ_OF = dict(zip(_WRITES, READS, strict=True))
#: Gradients are nested no deeper between a softmax and its logarithm.
MAX_DEPTH = 64

#: ``is_divisor(x, is_complement)`` tells whether `x`, or ``1 - x``, is the divisor.
IsDivisor = Callable[[Any, bool], bool]


class Quotient(NamedTuple):
    """An expression read as ``dividend / divisor + rest``, of which either may be None."""

    dividend: Any
    rest: Any

    def map(self, f: Callable[[Any], Any]) -> Quotient:
        """Apply a linear function to both parts."""
        return Quotient(*(None if x is None else f(x) for x in self))


def quotient_of(g: Any, is_divisor: IsDivisor, depth: int = MAX_DEPTH) -> Quotient:
    """Read a gradient as a multiple of the inverse of a divisor, and a rest.

    Parameters
    ----------
    g : Variable
        Gradient, as PyTensor writes it.
    is_divisor : callable
        Function that takes a variable `x` and a bool, and returns whether `x` is the divisor, or
        with True whether ``1 - x`` is.
    depth : int
        Number of nested Ops to look into.

    Returns
    -------
    Quotient
    """
    plain = Quotient(None, g)
    node = g.owner
    if node is None or depth == 0:
        return plain
    found = plain
    if type(node.op) is Elemwise and len(node.outputs) == 1:
        found = _of_elementwise(g, node, is_divisor, depth - 1)
    elif type(node.op) in (DimShuffle, Reshape):
        moved = quotient_of(
            node.inputs[0], lambda x, c: _is_moved(x, c, node, is_divisor), depth - 1
        )
        found = moved.map(lambda x: node.op(x, *node.inputs[1:]))
    elif type(node.op) in READ_OF and not node.op.set_instead_of_inc and is_zeros(node.inputs[0]):
        zeros, value, *indices = node.inputs
        at = quotient_of(value, lambda x, c: _is_read(x, c, node, is_divisor), depth - 1)
        found = at.map(lambda x: node.op(zeros, as_large_as(x, value), *indices))
    return plain if found.dividend is None else found


def _of_elementwise(g: Any, node: Apply, is_divisor: IsDivisor, depth: int) -> Quotient:
    kind, inputs = kind_of(g), node.inputs
    if kind is Reciprocal and is_divisor(inputs[0], False):
        return Quotient(ones_like(inputs[0]), None)
    if kind is TrueDiv:
        dividend, divisor = inputs
        if is_divisor(divisor, False):
            return Quotient(dividend, None)
        factors = inputs_of(divisor, Mul) or []
        for i, x in enumerate(factors):
            if is_divisor(x, False):
                others = [*factors[:i], *factors[i + 1 :]]
                return Quotient(true_div(dividend, _product(others)), None)
        return quotient_of(dividend, is_divisor, depth).map(lambda x: true_div(x, divisor))
    if kind is Neg:
        return quotient_of(inputs[0], is_divisor, depth).map(neg)
    if kind is Cast:
        return quotient_of(inputs[0], is_divisor, depth).map(lambda x: cast(x, g.type.dtype))
    if kind in (Add, Sub):
        terms = [quotient_of(x, is_divisor, depth) for x in inputs]
        if kind is Sub:
            terms[1] = terms[1].map(neg)
        dividends, rests = ([x for x in part if x is not None] for part in zip(*terms, strict=True))
        return Quotient(_total(dividends), _total(rests))
    if kind is Mul:
        for i, x in enumerate(inputs):
            found = quotient_of(x, is_divisor, depth)
            if found.dividend is not None:
                others = [*inputs[:i], *inputs[i + 1 :]]
                return found.map(lambda part, others=others: mul(part, *others))
    return Quotient(None, g)


def _product(factors: list[Any]) -> Any:
    return mul(*factors) if len(factors) > 1 else factors[0]


def _total(terms: list[Any]) -> Any:
    return (add(*terms) if len(terms) > 1 else terms[0]) if terms else None


def uncast(x: Any) -> Any:
    """Strip conversions between floating-point dtypes, which gradients may not repeat."""
    while (operands := inputs_of(x, Cast)) and operands[0].type.dtype.startswith("float"):
        (x,) = operands
    return x


def complement_of(x: Any) -> Any:
    """Return `z` of ``1 - z``, ``1 + -z`` or ``-(z - 1)``, else None."""
    x = uncast(x)
    if (negated := inputs_of(x, Neg)) and (terms := inputs_of(negated[0], Sub)):
        return terms[0] if number_of(terms[1]) == 1 else None
    terms = inputs_of(x, Sub, Add) or []
    if len(terms) != 2:
        return None
    for one, z in (terms, terms[::-1]) if kind_of(x) is Add else (terms,):
        if number_of(one) == 1:
            negated = [z] if kind_of(x) is Sub else inputs_of(z, Neg)
            return negated[0] if negated else None
    return None


def _source(x: Any, is_complement: bool) -> tuple[Any, bool]:
    """Strip casts and differences from 1."""
    x = uncast(x)
    while (z := complement_of(x)) is not None:
        x, is_complement = uncast(z), not is_complement
    return x, is_complement


def _is_moved(x: Any, is_complement: bool, node: Apply, is_divisor: IsDivisor) -> bool:
    """Return whether a DimShuffle or Reshape of a gradient undoes that of the divisor to `x`."""
    x, is_complement = _source(x, is_complement)
    made = x.owner
    if made is None or type(made.op) is not type(node.op):
        return False
    if not is_divisor(made.inputs[0], is_complement):
        return False
    if type(node.op) is Reshape:  # the result has the shape of the divisor
        return True
    there, back = made.op.new_order, node.op.new_order
    order = tuple(i if i == "x" else there[i] for i in back)
    axes = made.inputs[0].type.broadcastable
    # Axes of size 1 may have been dropped and inserted again.
    return len(order) == len(axes) and all(
        i == axis or (i == "x" and axes[axis]) for axis, i in enumerate(order)
    )


def _is_read(x: Any, is_complement: bool, node: Apply, is_divisor: IsDivisor) -> bool:
    """Return whether `x` is what the divisor has at the indices of a gradient."""
    x, is_complement = _source(x, is_complement)
    made = x.owner
    return (
        made is not None
        and type(made.op) is READ_OF[type(node.op)]
        and getattr(made.op, "idx_list", None) == getattr(node.op, "idx_list", None)
        and is_divisor(made.inputs[0], is_complement)
        and equal_computations(list(made.inputs[1:]), list(node.inputs[2:]))
    )


def is_zeros(x: Any) -> bool:
    while x.owner is not None:
        if type(x.owner.op) not in (Alloc, DimShuffle) and kind_of(x) not in (Cast, Second):
            return False
        x = x.owner.inputs[1 if kind_of(x) is Second else 0]
    return isinstance(x, Constant) and not np.any(x.data)


def as_large_as(x: Any, other: Any) -> Any:
    """Return `x` with the shape of `other`, against which it broadcasts."""
    return x if x.type.broadcastable == other.type.broadcastable else x * ones_like(other)
