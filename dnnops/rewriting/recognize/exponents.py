"""Values that are products of a mantissa and an exponential.

`dnnops.rewriting.recognize.scaled` reads expressions as such values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar import basic as scalars
from pytensor.tensor.basic import Join, second
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import neg, softplus
from pytensor.tensor.shape import Reshape

from dnnops.compat import arrays_of, axis_of
from dnnops.rewriting.recognize.quotients import READS
from dnnops.rewriting.recognize.views import View, kind_of, number_of

__all__ = ["MOVES", "Exponents", "Powers", "Scaled", "constant_like", "finite", "merged", "times"]

#: Ops that move or pick elements.
MOVES = (DimShuffle, Reshape, *READS)

#: Exponents with their powers.
Powers = dict[Any, float]


class Scaled(NamedTuple):
    """``mantissa * exp(sum(power * exponent))``; a mantissa of None is 1."""

    mantissa: Any
    powers: Powers

    def map(self, f: Callable[[Any], Any]) -> Scaled:
        """Apply a function that moves elements to all parts."""
        mantissa = None if self.mantissa is None else f(self.mantissa)
        return Scaled(mantissa, {f(x): power for x, power in self.powers.items()})

    def is_product(self) -> bool:
        """Return whether no exponent has a negative power."""
        return min(self.powers.values()) > 0

    def raised(self, power: float) -> Scaled:
        """Raise to a power."""
        mantissa = self.mantissa
        if mantissa is not None and power != 1:
            mantissa = 1 / mantissa if power == -1 else mantissa**power
        return Scaled(mantissa, {x: power * own for x, own in self.powers.items()})


def times(x: Any, y: Any) -> Any:
    """Multiply two mantissas."""
    return y if x is None else x if y is None else x * y


def merged(powers: Iterable[Powers]) -> Powers:
    """Add powers of equal exponents."""
    total: Powers = {}
    for each in powers:
        for x, power in each.items():
            total[x] = total.get(x, 0) + power
    return {x: power for x, power in total.items() if power}


class Exponents:
    """The exponents in a graph without equal nodes, each of which is one variable.

    Parameters
    ----------
    fgraph : FunctionGraph

    Attributes
    ----------
    largest : dict
        Exponents that are no smaller than those of the terms of a sum, and the parts of the latter.
    unbounded : set of Variable
        Exponents whose exponentials may be infinite.
    complements : dict
        Differences of a softmax from 1, by the logarithms of the softmax.
    opposite : dict
        Logarithms of one less a sigmoid, by those of the sigmoid, and the other way round.
    """

    def __init__(self, fgraph: FunctionGraph):
        self._nodes = {(node.op, tuple(node.inputs)): node for node in fgraph.apply_nodes}
        #: The probabilities of exponents.
        self._values: dict[Any, Any] = {}
        #: The operands of sigmoids and their exponents, by those of one less the sigmoids.
        self._pairs: dict[Any, tuple[Any, Any]] = {}
        self.largest: dict[Any, list[tuple[Any, ...]]] = {}
        self.unbounded: set[Any] = set()
        self.complements: dict[Any, Any] = {}
        self.opposite: dict[Any, Any] = {}

    def apply(self, op: Any, *inputs: Any, index: int = 0) -> Any:
        """Apply an Op, or return the result of an equal node."""
        node = op(*inputs, return_list=True)[0].owner
        return self._nodes.setdefault((node.op, tuple(node.inputs)), node).outputs[index]

    def shuffle(self, x: Any, order: Any) -> Any:
        """Move axes as by a `DimShuffle`."""
        view = View.of(x, tuple(order))
        if view.is_whole:
            return view.variable
        return self.apply(view.variable.dimshuffle(view.order).owner.op, view.variable)

    def move(self, of: Any, x: Any) -> Any:
        """Move the elements of `x`, which broadcasts to the operand of `of`, in the same way."""
        node = of.owner
        if type(node.op) is DimShuffle:
            return self.shuffle(x, node.op.new_order) if x.type.ndim else x
        return self.apply(node.op, self.broadcast(x, node.inputs[0]), *node.inputs[1:])

    def split(self, of: Any, x: Any) -> Any:
        """Return the part of `x` that `of` is of the operand of a `Split`."""
        node = of.owner
        at, index = number_of(axis_of(node)), node.outputs.index(of)
        if at is not None and x.type.broadcastable[int(at)]:
            return x
        if x.owner is not None and type(x.owner.op) is Join:
            parts = arrays_of(x.owner)
            if len(parts) == len(node.outputs) and number_of(axis_of(x.owner)) == at:
                return parts[index]
        return self.apply(node.op, x, *node.inputs[1:], index=index)

    def broadcast(self, x: Any, like: Any) -> Any:
        """Return `x` with the shape of `like`, against which it broadcasts."""
        if x.type.broadcastable == like.type.broadcastable:
            return x
        return self.apply(second, like, x)

    def probability(self, exponent: Any, value: Any) -> Scaled:
        """Return the exponential of an exponent, of which `value` is the written form or None."""
        self._values.setdefault(exponent, value)
        return Scaled(None, {exponent: 1})

    def sigmoid(self, x: Any, is_complement: bool = False) -> Scaled:
        """Return a sigmoid, or one less a sigmoid."""
        negated = self.apply(neg, x)
        exponents = [self.apply(neg, self.apply(softplus, z)) for z in (negated, x)]
        self._pairs[exponents[1]] = exponents[0], x
        self.opposite.update(zip(exponents, exponents[::-1], strict=True))
        if is_complement:
            return self.probability(exponents[1], self.apply(pt.sigmoid, negated))
        return self.probability(exponents[0], self.apply(pt.sigmoid, x))

    def exponent(self, powers: Powers) -> Any:
        """Return the sum of exponents."""
        terms = [
            x if power == 1 else self.apply(neg, x) if power == -1 else x * constant_like(power, x)
            for x, power in self.simplified(powers).items()
        ]
        if not terms:
            return pt.constant(constant_like(0, next(iter(powers))))
        return reduce(lambda x, y: self.apply(pt.add, x, y), terms)

    def _of_nonzero(self, term: Scaled) -> Any:
        """Return the exponent of a term, or minus infinity where the term is zero."""
        exponent = self.exponent(term.powers)
        if term.mantissa is None:
            return exponent
        return pt.switch(pt.neq(term.mantissa, 0), exponent, constant_like(-np.inf, exponent))

    def simplified(self, powers: Powers) -> Powers:
        """Replace the logarithms of ``s / (1 - s)`` for sigmoids ``s`` with their operands."""
        if len(powers) < 2 or not self._pairs:
            return powers
        left = dict(powers)
        for x, power in powers.items():
            own, operand = self._pair(x) or (None, None)
            other = left.get(own, 0)
            if power * other < 0:
                amount = min(abs(power), abs(other)) * np.sign(other)
                left = merged([left, {own: -amount, x: amount, operand: amount}])
        return left

    def _pair(self, x: Any) -> tuple[Any, Any] | None:
        if x not in self._pairs and x.owner is not None and type(x.owner.op) in MOVES:
            found = self._pair(x.owner.inputs[0])
            if found:
                self._pairs[x] = tuple(self.move(x, y) for y in found)
        return self._pairs.get(x)

    def _value(self, x: Any) -> Any:
        """Return the exponential of an exponent."""
        if self._values.get(x) is None:
            value = None
            if x.owner is not None and type(x.owner.op) in MOVES:
                inner = self._value(x.owner.inputs[0])
                value = None if kind_of(inner) is scalars.Exp else self.move(x, inner)
            self._values[x] = pt.exp(x) if value is None else value
        return self._values[x]

    def value(self, scaled: Scaled) -> Any:
        """Return the value of a scaled value, in which exponents may have negative powers."""
        mantissa, powers = scaled
        written = powers
        powers = self.simplified(powers)
        if not powers:
            return mantissa
        # The exponential of the operand of a sigmoid may be infinite.
        if min(powers.values()) > 0 and powers.keys() <= written.keys():
            values = [_raised(self._value(x), power) for x, power in powers.items()]
            return times(mantissa, pt.mul(*values) if len(values) > 1 else values[0])
        exponent = self.exponent(powers)
        if mantissa is None or number_of(mantissa):
            return times(mantissa, pt.exp(exponent))
        # Zero, also where the exponential is infinite.
        zero = np.asarray(0, exponent.type.dtype)
        return mantissa * pt.exp(pt.switch(pt.neq(mantissa, 0), exponent, zero))

    def logarithm(self, scaled: Scaled, dtype: str) -> Any:
        """Return the natural logarithm of a scaled value."""
        exponent = self.exponent(scaled.powers)
        if scaled.mantissa is None:
            return exponent
        return pt.log(scaled.mantissa.astype(dtype)) + exponent


def constant_like(number: float, x: Any) -> Any:
    """Return a number with the dtype of `x`."""
    return np.asarray(number, x.type.dtype)


def finite(x: Any) -> Any:
    """Replace infinities with zeros."""
    return pt.switch(pt.isinf(x), constant_like(0, x), x)


def _raised(x: Any, power: float) -> Any:
    return x if power == 1 else x ** constant_like(power, x)
