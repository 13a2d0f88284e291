"""Cancel probabilities in products, such as the gradients of logarithms.

PyTensor writes the gradient of ``log(p)`` as ``g / p``, and multiplies it by the gradient of the
softmax or sigmoid that computes `p`, which has `p` as a factor. Where `p` underflows to zero, the
quotient is infinite and the product NaN. Between them, there may be sums, factors, casts,
conditions, and Ops that move, pick, join or sum elements. All of them are linear, so that the
factor can be moved to the divisor, where they cancel as scaled values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.scalar import basic as scalars
from pytensor.tensor.basic import Split, second
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Sum, switch
from pytensor.tensor.shape import Reshape

from dnnops.compat import axis_of, join_along
from dnnops.rewriting.recognize.branches import Branches
from dnnops.rewriting.recognize.exponents import MOVES, Powers, Scaled, merged, times
from dnnops.rewriting.recognize.quotients import READ_OF, complement_of, is_zeros
from dnnops.rewriting.recognize.scaled import ScaledValues
from dnnops.rewriting.recognize.views import kind_of

__all__ = ["Cancelling"]

#: Gradients are nested no deeper between a probability and its logarithm.
MAX_DEPTH = 64
_PRODUCTS = (scalars.Mul, scalars.TrueDiv, scalars.Neg, scalars.Reciprocal)
_LINEAR = (*_PRODUCTS, scalars.Add, scalars.Sub, scalars.Cast, scalars.Second, scalars.Switch)


class Cancelling:
    """Products of a graph in which probabilities may cancel.

    Parameters
    ----------
    values : ScaledValues
    dtype : str
        Dtype of exponents.
    settled : set of Variable
        Products in which nothing is left that may be zero or infinite. They are not looked into.
    """

    def __init__(self, values: ScaledValues, dtype: str, settled: set[Any]):
        self.values = values
        self.dtype = dtype
        self.settled = settled
        self._fragile: dict[tuple[Any, bool], bool] = {}
        self._branches = Branches(values)
        self._cancelled = set[Any]()
        self._leaves_divisor = False

    def product(self, x: Any) -> tuple[Any, bool] | None:
        """Return the value of a product without the divisors that cancel.

        Parameters
        ----------
        x : Variable
            Product or quotient.

        Returns
        -------
        tuple of Variable and bool, or None
            The value, and whether no other divisors are left; None if nothing cancels.
        """
        self._cancelled, self._leaves_divisor = set(), False
        result = self._times(x, {}, {}, MAX_DEPTH)
        return (result, not self._leaves_divisor) if self._cancelled else None

    def times(self, x: Any, exponent: Any) -> Any:
        """Return a variable times the exponential of an exponent, or None if that cancels nothing.

        Parameters
        ----------
        x, exponent : Variable

        Returns
        -------
        Variable or None
        """
        self._cancelled = set()
        result = self._times(x, {exponent: 1}, {}, MAX_DEPTH)
        is_divisor = any(_moved_from(y, (exponent,)) is not None for y in self._cancelled)
        return result if is_divisor else None

    def is_fragile(self, x: Any) -> bool:
        """Return whether a variable is linear in a quotient whose divisor may underflow.

        Quotients in settled products do not count.
        """
        return self._is_fragile(x, self.settled, MAX_DEPTH)

    def _is_fragile(self, x: Any, settled: Collection[Any] = (), depth: int = MAX_DEPTH) -> bool:
        if x.owner is None or depth == 0 or x in settled:
            return False
        key = x, settled is self.settled
        if key not in self._fragile:
            self._fragile[key] = self._find_fragile(x, settled, depth - 1)
        return self._fragile[key]

    def _find_fragile(self, x: Any, settled: Collection[Any], depth: int) -> bool:
        op, inputs, kind = x.owner.op, x.owner.inputs, kind_of(x)
        if kind in (scalars.TrueDiv, scalars.Reciprocal):
            if self.values.read(inputs[-1], self.dtype) is not None:
                return True
            inputs = inputs[:-1]
        elif kind in (scalars.Second, scalars.Switch):
            inputs = inputs[1:]
        elif type(op) in READ_OF:
            inputs = inputs[1:2]
        elif type(op) in (Sum, Split, *MOVES):
            inputs = inputs[:1]
        elif kind not in _LINEAR:
            return False
        return any(self._is_fragile(y, settled, depth) for y in inputs)

    def _times(self, x: Any, powers: Powers, known: dict[Any, bool], depth: int) -> Any:
        """Return ``x * exp(sum(power * exponent))``, given some conditions."""
        for condition, value in known.items():
            x = self._branches.of(x, condition, value)
        if known and is_zeros(x):
            return x
        kind = kind_of(x)
        if depth and (kind in _PRODUCTS):
            return self._of_product(x, powers, known, depth - 1)
        if depth and self._is_fragile(x):
            if kind is not None:
                return self._of_elementwise(x, kind, powers, known, depth - 1)
            result = self._of_other(x, powers, known, depth - 1)
            if result is not None:
                return result
        scaled = self._read(x)
        return self._value(scaled or Scaled(x, {}), powers, known)

    def _read(self, x: Any) -> Scaled | None:
        """Read a variable, unless it depends on other quotients."""
        found = self.values.read(x, self.dtype)
        if found is None or found.mantissa is None or not self._is_fragile(found.mantissa):
            return found
        return None

    def _value(self, scaled: Scaled, powers: Powers, known: dict[Any, bool]) -> Any:
        factor = self._given(scaled.powers, known)
        total = self._combined(factor, powers)
        self._leaves_divisor |= sum(total.values()) < 0 or any(
            _moved_from(x, self.values.unbounded) is not None
            or (power < 0 and not self._is_largest(x, total))
            for x, power in total.items()
        )
        if not total and scaled.mantissa is None:
            return pt.constant(np.asarray(1, self.dtype))
        return self.values.value(Scaled(scaled.mantissa, total))

    def _is_largest(self, x: Any, powers: Powers) -> bool:
        """Return whether `x` is the largest term of a sum, and a factor is one of its terms."""
        terms = self.values.largest.get(_moved_from(x, self.values.largest), ())
        factors = [y for y, power in powers.items() if power > 0]
        return any(
            all(any(_moved_from(y, (e,)) is not None for y in factors) for e in term)
            for term in terms
        )

    def _combined(self, one: Powers, other: Powers) -> Powers:
        parts = [y for powers in (one, other) for y in powers.items()]
        signs = {power > 0 for _, power in parts}
        self._cancelled |= {x for x, power in parts if power < 0} if len(signs) == 2 else set()
        return merged([one, other])

    def _given(self, powers: Powers, known: dict[Any, bool]) -> Powers:
        """Replace exponents that depend on known conditions."""
        if not known:
            return powers
        parts: list[Powers] = []
        for x, power in powers.items():
            while kind_of(x) is scalars.Switch and x.owner.inputs[0] in known:
                x = x.owner.inputs[1 if known[x.owner.inputs[0]] else 2]
            # Logarithms of plain numbers are zero, broadcast.
            parts.append({} if is_zeros(x) else {x: power})
        return merged(parts)

    def _of_product(self, x: Any, powers: Powers, known: dict[Any, bool], depth: int) -> Any:
        parts: dict[int, Any] = {1: None, -1: None}
        deep = []
        for sign, y in _factors_of(x):
            scaled = self._read(y)
            if scaled is not None:
                parts[sign] = times(parts[sign], scaled.mantissa)
                factor = {e: sign * power for e, power in scaled.powers.items()}
                powers = self._combined(powers, self._given(factor, known))
            elif sign > 0 and self._is_fragile(y):
                deep.append(y)
            else:
                parts[sign] = times(parts[sign], y.astype(self.dtype))
        mantissa = reduce(times, deep[1:], parts[1])
        if parts[-1] is not None:
            mantissa = (1 if mantissa is None else mantissa) / parts[-1]
        if not deep:
            return self._value(Scaled(mantissa, {}), powers, known)
        return times(mantissa, self._times(deep[0], powers, known, depth))

    def _of_elementwise(
        self, x: Any, kind: Any, powers: Powers, known: dict[Any, bool], depth: int
    ) -> Any:
        inputs = x.owner.inputs
        if kind is scalars.Switch:
            condition, *branches = inputs
            parts = []
            for y, value in zip(branches, (True, False), strict=True):
                given = {**known, condition: value}
                is_zero = is_zeros(y)
                parts.append(
                    y if is_zero else self._times(y, self._given(powers, given), given, depth)
                )
            return switch(condition, *parts)
        if kind is scalars.Second:
            return second(inputs[0], self._times(inputs[1], powers, known, depth))
        parts = [self._times(y, powers, known, depth) for y in inputs]
        return x.owner.op(*parts) if kind is not scalars.Cast else parts[0]

    def _of_other(self, x: Any, powers: Powers, known: dict[Any, bool], depth: int) -> Any:
        node = x.owner
        op, inputs = node.op, node.inputs
        if type(op) in (Split, *MOVES) and (inner := self._pushed(x)) is not None:
            return self._times(inner, powers, known, depth)
        if known:  # conditions would have to be moved
            return None
        if type(op) in READ_OF and not op.set_instead_of_inc and is_zeros(inputs[0]):
            zeros, value, *indices = inputs
            read = READ_OF[type(op)]
            takes_indices = "idx_list" in read.__props__
            places = self.values.apply(
                read(op.idx_list) if takes_indices else read(), zeros, *indices
            )
            moved = {self.values.move(places, y): power for y, power in powers.items()}
            result = self._times(value, moved, known, depth)
            return op(zeros, self.values.broadcast(result, value), *indices)
        if type(op) is Split:
            moved = {self._joined(x, y): power for y, power in powers.items()}
            result = self.values.broadcast(self._times(inputs[0], moved, known, depth), inputs[0])
            return self.values.split(x, result)
        if type(op) is Sum:
            axes = range(inputs[0].type.ndim)
            kept = [i for i in axes if op.axis is not None and i not in op.axis]
            order = [kept.index(i) if i in kept else "x" for i in axes]
            moved = {self.values.shuffle(y, order): power for y, power in powers.items()}
            result = self._times(inputs[0], moved, known, depth)
            return op(self.values.broadcast(result, inputs[0]))
        if type(op) is DimShuffle:
            pairs = [(self._moved_back(x, y), y, power) for y, power in powers.items()]
            moved = {back: power for back, _, power in pairs if back is not None}
            if powers and not moved:
                return None
            result = self._times(inputs[0], moved, known, depth)
            result = self.values.move(x, self.values.broadcast(result, inputs[0]))
            # Factors along axes that have been summed stay outside.
            rest = {y: power for back, y, power in pairs if back is None}
            return self._value(Scaled(result, {}), rest, known) if rest else result
        if type(op) is Reshape and (whole := _reshape_in(inputs[0])) is not None:
            back = whole.owner
            if whole.type.ndim != inputs[0].type.ndim or back.inputs[0].type.ndim != x.type.ndim:
                return None
            moved = {self.values.move(whole, y): power for y, power in powers.items()}
            result = self._times(inputs[0], moved, known, depth)
            return op(self.values.broadcast(result, inputs[0]), inputs[1])
        return None

    # Moves between the axes of a factor and those of the divisor

    def _pushed(self, x: Any) -> Any:
        """Return elements of an elementwise expression as an expression of elements, or None."""
        node = x.owner
        inner = node.inputs[0]
        kind = kind_of(inner)
        if kind is None:
            return None
        parts = []
        for i, y in enumerate(inner.owner.inputs):
            is_whole = y.type.broadcastable == inner.type.broadcastable
            if type(node.op) is Split:
                parts.append(self.values.split(x, y))
            elif type(node.op) is DimShuffle or is_whole:
                parts.append(self.values.move(x, y))
            elif all(y.type.broadcastable):
                parts.append(y.dimshuffle(["x"] * x.type.ndim))
            elif kind is scalars.Second and i:
                return None
            else:
                parts.append(self.values.move(x, self.values.broadcast(y, inner)))
        return self.values.apply(inner.owner.op, *parts)

    def _joined(self, x: Any, y: Any) -> Any:
        """Join the factor of a part of a `Split` with zeros for the other parts."""
        nothing = pt.constant(np.asarray(-np.inf, y.type.dtype))
        parts = [self.values.broadcast(y if z is x else nothing, z) for z in x.owner.outputs]
        op, leading = join_along(axis_of(x.owner))
        return self.values.apply(op, *leading, *parts)

    def _moved_back(self, x: Any, y: Any) -> Any:
        """Move a factor of a `DimShuffle` to the axes of its operand, or return None."""
        order = x.owner.op.new_order
        if not all(y.type.broadcastable[i] for i, axis in enumerate(order) if axis == "x"):
            return None
        axes = range(x.owner.inputs[0].type.ndim)
        return self.values.shuffle(y, [order.index(i) if i in order else "x" for i in axes])


def _factors_of(x: Any) -> Iterator[tuple[int, Any]]:
    """Yield the factors of a product with their exponents, either 1 or -1."""
    waiting = [(1, x)]
    while waiting:
        sign, x = waiting.pop()
        kind = kind_of(x)
        if kind is scalars.Mul:
            waiting += [(sign, y) for y in reversed(x.owner.inputs)]
        elif kind is scalars.TrueDiv:
            dividend, divisor = x.owner.inputs
            waiting += [(-sign, divisor), (sign, dividend)]
        elif kind is scalars.Reciprocal:
            waiting.append((-sign, x.owner.inputs[0]))
        elif kind is scalars.Neg and complement_of(x) is None:
            waiting.append((sign, x.owner.inputs[0]))
            yield 1, pt.constant(np.asarray(-1, x.type.dtype))
        else:
            yield sign, x


def _moved_from(x: Any, exponents: Collection[Any]) -> Any:
    """Return the exponent whose elements `x` has, or None."""
    while x not in exponents:
        node, is_second = x.owner, kind_of(x) is scalars.Second
        if node is None or not (is_second or type(node.op) in MOVES):
            return None
        x = node.inputs[1 if is_second else 0]
    return x


def _reshape_in(x: Any) -> Any:
    """Return the reshaped variable that `x` has been computed from elementwise, or None."""
    waiting, seen = [x], set[Any]()
    while waiting and len(seen) < MAX_DEPTH:
        x = waiting.pop()
        if x.owner is None or x in seen:
            continue
        seen.add(x)
        if type(x.owner.op) is Reshape:
            return x
        if kind_of(x) is not None:
            waiting += x.owner.inputs
        elif type(x.owner.op) in READ_OF:
            waiting.append(x.owner.inputs[0])
    return None
