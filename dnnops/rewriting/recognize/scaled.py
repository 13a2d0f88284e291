"""Read expressions of probabilities as products of a mantissa and an exponential.

Softmaxes and sigmoids underflow to zero, where their logarithms are moderate numbers. Products,
quotients, powers, sums, conditions, joins, and elements of them are read as
``mantissa * exp(sum(power * exponent))``. Each exponent is the logarithm of a probability, or the
largest one among the terms of a sum. Then

* the logarithm of the expression is ``log(mantissa) + sum(power * exponent)``, and
* equal exponents cancel in a quotient, such as the gradient of a logarithm.

This holds for mantissas of any sign, since a sum is read as
``sum(mantissa * exp(exponent - largest)) * exp(largest)``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar import basic as scalars
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.basic import Join, Split
from pytensor.tensor.math import Max, Sum, switch
from pytensor.tensor.special import LogSoftmax, Softmax

from dnnops.compat import arrays_of, axis_of, join_along
from dnnops.rewriting.recognize.complements import complement_of_softmax
from dnnops.rewriting.recognize.exponents import (
    MOVES,
    Exponents,
    Scaled,
    finite,
    merged,
    times,
)
from dnnops.rewriting.recognize.quotients import complement_of, uncast
from dnnops.rewriting.recognize.views import inputs_of, kind_of, number_of

__all__ = ["ScaledValues"]

#: Expressions are nested no deeper between a probability and its logarithm.
MAX_DEPTH = 64


class ScaledValues(Exponents):
    """The variables of a graph without equal nodes, as scaled values.

    Parameters
    ----------
    fgraph : FunctionGraph
    """

    def __init__(self, fgraph: FunctionGraph):
        super().__init__(fgraph)
        self._read: dict[tuple[Any, str], Scaled | None] = {}

    def add_exponentials(self, e: Any, total: Any) -> None:
        """Read exponentials and their sum along some axes in terms of the softmax.

        Parameters
        ----------
        e, total : Variable
            The exponentials and the sum, without the summed axes.
        """
        (x,) = e.owner.inputs
        dtype, axis = e.type.dtype, total.owner.op.axis
        if x.type.dtype != dtype or (e, dtype) in self._read:
            return
        axes = tuple(range(x.type.ndim)) if axis is None else axis
        largest = finite(x.max(axis=axes, keepdims=True))
        sums = pt.log(pt.exp(x - largest).sum(axis=axes, keepdims=True)) + largest
        dropped = sums.dimshuffle([i for i in range(x.type.ndim) if i not in axes])
        self.unbounded.add(sums)
        self._read[total, dtype] = self.probability(dropped, total)
        kept = iter(range(dropped.type.ndim))
        order = ["x" if i in axes else next(kept) for i in range(x.type.ndim)]
        logs = self.apply(LogSoftmax(axis=axes), x)
        self.probability(logs, self.apply(Softmax(axis=axes), x))
        self._read[e, dtype] = Scaled(None, {logs: 1, self.shuffle(dropped, order): 1})

    def add_logistic(self, e: Any, total: Any) -> None:
        """Read an exponential `e` and ``1 + e`` in terms of the sigmoid ``1 / (1 + e)``.

        Parameters
        ----------
        e, total : Variable
        """
        (z,) = e.owner.inputs
        dtype = total.type.dtype
        if {z.type.dtype, e.type.dtype} != {dtype} or (e, dtype) in self._read:
            return
        x = (inputs_of(z, scalars.Neg) or [self.apply(pt.neg, z)])[0]
        own, other = self.sigmoid(x), self.sigmoid(x, is_complement=True)
        self._read[total, dtype] = own.raised(-1)
        self._read[e, dtype] = Scaled(None, merged([other.powers, own.raised(-1).powers]))

    def read(self, x: Any, dtype: str, depth: int = MAX_DEPTH) -> Scaled | None:
        """Read a variable, with exponents of a given dtype.

        Returns
        -------
        Scaled or None
            None if the expression has no probabilities, or is of another kind.
        """
        if x.owner is None or depth == 0:
            return None
        key = x, dtype
        if key not in self._read:
            found = self._read_node(x, dtype, depth - 1)
            self._read[key] = found if found and found.powers else None
        return self._read[key]

    def _read_node(self, x: Any, dtype: str, depth: int) -> Scaled | None:
        op, inputs = x.owner.op, x.owner.inputs
        if type(op) is Softmax:
            exponent = self.apply(LogSoftmax(axis=op.axis), inputs[0].astype(dtype))
            return self.probability(exponent, x)
        if kind_of(x) is not None:
            return self._elementwise(x, kind_of(x), inputs, dtype, depth)
        if type(op) in MOVES:
            inner = self.read(inputs[0], dtype, depth)
            return None if inner is None else inner.map(lambda part: self.move(x, part))
        if type(op) is Split:
            inner = self.read(inputs[0], dtype, depth)
            return None if inner is None else inner.map(lambda part: self.split(x, part))
        if type(op) is Sum:
            inner = self.read(inputs[0], dtype, depth)
            return self._sum(inputs[0], op, inner) if inner and inner.is_product() else None
        if type(op) is Max:
            inner = self.read(inputs[0], dtype, depth)
            if inner is None or inner.mantissa is not None or not inner.is_product():
                return None
            exponents = self.broadcast(self.exponent(inner.powers), inputs[0])
            return self.probability(self.apply(op, exponents), x)
        if type(op) is Join:
            op, leading = join_along(axis_of(x.owner))
            arrays = arrays_of(x.owner)
            return self._joined(arrays, dtype, depth, lambda parts: op(*leading, *parts))
        return None

    def _elementwise(
        self, x: Any, kind: Any, inputs: list[Any], dtype: str, depth: int
    ) -> Scaled | None:
        if kind is Sigmoid:
            if (p := _operand_of_logit(inputs[0])) is not None:
                return self.read(p, dtype, depth)
            return self.sigmoid(inputs[0].astype(dtype))
        if kind is scalars.Exp:
            exponent = uncast(inputs[0])
            if operands := inputs_of(exponent, scalars.Log):
                return self.read(operands[0], dtype, depth)
            is_own = _is_logarithm(exponent)
            return self.probability(exponent.astype(dtype), x) if is_own else None
        if kind is scalars.Cast:
            is_float = inputs[0].type.dtype.startswith("float")
            return self.read(inputs[0], dtype, depth) if is_float else None
        if kind in (scalars.Add, scalars.Sub, scalars.Neg) and (z := complement_of(x)) is not None:
            return self.complement(z, dtype, depth)
        if kind in (scalars.Add, scalars.Sub):
            return self._total(kind, inputs, dtype, depth)
        if kind in (scalars.Mul, scalars.TrueDiv, scalars.Reciprocal, scalars.Neg):
            return self._product(kind, inputs, dtype, depth)
        if kind in (scalars.Pow, scalars.Sqrt, scalars.Sqr):
            return self._power(kind, inputs, dtype, depth)
        if kind is scalars.Switch:
            condition, *branches = inputs
            return self._joined(
                branches, dtype, depth, lambda parts: self.apply(switch, condition, *parts)
            )
        if kind in (scalars.Maximum, scalars.Minimum, scalars.Clip):
            return self._clipped(kind, inputs, dtype, depth)
        if kind is scalars.Second:
            inner = self.read(inputs[1], dtype, depth)
            return None if inner is None else inner.map(lambda y: self.broadcast(y, inputs[0]))
        return None

    def complement(self, z: Any, dtype: str, depth: int = MAX_DEPTH) -> Scaled | None:
        """Read ``1 - z``."""
        z = uncast(z)
        if z.owner is None or depth == 0:
            return None
        kind, inputs = kind_of(z), z.owner.inputs
        if (inner := complement_of(z)) is not None:
            return self.read(inner, dtype, depth - 1)
        if kind is Sigmoid:
            if (p := _operand_of_logit(inputs[0])) is not None:
                return self.complement(p, dtype, depth - 1)
            return self.sigmoid(inputs[0].astype(dtype), is_complement=True)
        if kind is scalars.Tanh:
            return self._tanh(inputs[0].astype(dtype), (True,))
        if (t := _squared(z)) is not None and kind_of(t) is scalars.Tanh:
            return self._tanh(t.owner.inputs[0].astype(dtype), (False, True))
        if type(z.owner.op) is Softmax:
            return self.probability(complement_of_softmax(self, z, dtype).log, None)
        if kind in (scalars.TrueDiv, scalars.Reciprocal):
            return self._complement_of_logistic(z, dtype, depth)
        if type(z.owner.op) in MOVES:
            found = self.complement(inputs[0], dtype, depth - 1)
            return None if found is None else found.map(lambda part: self.move(z, part))
        return None

    def _complement_of_logistic(self, z: Any, dtype: str, depth: int) -> Scaled | None:
        mantissa, powers = self.read(z, dtype, depth - 1) or (None, {})
        (x,) = powers if len(powers) == 1 else (None,)
        if (
            x not in self.opposite
            or powers[x] != 1
            or number_of(1 if mantissa is None else mantissa) != 1
        ):
            return None
        return self.probability(self.opposite[x], None)

    def one_plus(self, z: Any, dtype: str) -> Scaled | None:
        """Read ``1 + z``."""
        z = uncast(z)
        if negated := inputs_of(z, scalars.Neg):
            return self.complement(negated[0], dtype)
        if kind_of(z) is scalars.Tanh:
            return self._tanh(z.owner.inputs[0].astype(dtype), (False,))
        return None

    def _tanh(self, x: Any, signs: tuple[bool, ...]) -> Scaled:
        """Return the product of ``1 - tanh(x)`` or, for False, ``1 + tanh(x)``."""
        twice = self.apply(pt.add, x, x)
        parts = [self.sigmoid(twice, is_complement=sign) for sign in signs]
        mantissa = pt.constant(np.asarray(2.0 ** len(signs), x.type.dtype))
        return Scaled(mantissa, merged(part.powers for part in parts))

    # Operations

    def _product(self, kind: Any, inputs: Any, dtype: str, depth: int) -> Scaled | None:
        inverse = kind in (scalars.TrueDiv, scalars.Reciprocal)
        signs = [-1 if inverse and x is inputs[-1] else 1 for x in inputs]
        if inverse and len(inputs) == 2 and inputs[0] is inputs[1]:
            return None
        found = [self.read(x, dtype, depth) for x in inputs]
        if not any(found):
            return None
        mantissa, powers = None, []
        for x, sign, scaled in zip(inputs, signs, found, strict=True):
            # PyTensor keeps numbers in float32 if that is exact, but not their inverses.
            part = (scaled or Scaled(x.astype(dtype), {})).raised(sign)
            mantissa = times(mantissa, part.mantissa)
            powers.append(part.powers)
        if kind is scalars.Neg:
            mantissa = pt.constant(np.asarray(-1, dtype)) if mantissa is None else -mantissa
        return Scaled(mantissa, merged(powers))

    def _power(self, kind: Any, inputs: Any, dtype: str, depth: int) -> Scaled | None:
        base = self.read(inputs[0], dtype, depth)
        if base is None:
            return None
        known = {scalars.Sqrt: 0.5, scalars.Sqr: 2.0}
        power = known[kind] if kind in known else number_of(inputs[1])
        if power is not None:
            return base.raised(power) if power else None
        mantissa = None if base.mantissa is None else base.mantissa ** inputs[1]
        exponent = self.apply(pt.mul, self.exponent(base.powers), inputs[1].astype(dtype))
        return Scaled(mantissa, {exponent: 1})

    def _total(self, kind: Any, inputs: Any, dtype: str, depth: int) -> Scaled | None:
        if kind is scalars.Add and len(inputs) == 2:
            for one, z in (inputs, inputs[::-1]):
                if kind_of(uncast(z)) is scalars.Tanh and number_of(one) == 1:
                    return self.one_plus(z, dtype)
        terms = []
        for i, y in enumerate(inputs):
            term = self.read(y, dtype, depth)
            # Nothing is gained beside a number that does not underflow.
            if term is None or not term.is_product():
                return None
            terms.append(_negated(term, dtype) if kind is scalars.Sub and i else term)
        exponents = [self._of_nonzero(term) for term in terms]
        largest = finite(reduce(pt.maximum, exponents))
        parts = [
            times(term.mantissa, pt.exp(e - largest))
            for term, e in zip(terms, exponents, strict=True)
        ]
        if all(map(_is_nonzero, terms)):
            self.largest[largest] = [tuple(term.powers) for term in terms]
        return Scaled(pt.add(*parts), {largest: 1})

    def _sum(self, x: Any, op: Any, inner: Scaled) -> Scaled:
        exponent = self._of_nonzero(inner)
        axis = tuple(range(x.type.ndim)) if op.axis is None else op.axis
        largest = finite(exponent.max(axis=axis, keepdims=True))
        terms = times(inner.mantissa, pt.exp(exponent - largest))
        dropped = largest.dimshuffle([i for i in range(x.type.ndim) if i not in axis])
        if _is_nonzero(inner):
            self.largest[largest] = [tuple(inner.powers)]
        return Scaled(op(self.broadcast(terms, x)), {dropped: 1})

    def _joined(
        self, arrays: Any, dtype: str, depth: int, join: Callable[[list[Any]], Any]
    ) -> Scaled | None:
        found = [self.read(x, dtype, depth) for x in arrays]
        if not any(found) or not all(x is None or x.is_product() for x in found):
            return None
        zero, one = (pt.constant(np.asarray(number, dtype)) for number in (0, 1))
        mantissas, exponents = [], []
        for x, scaled in zip(arrays, found, strict=True):
            mantissa, powers = scaled or Scaled(x, {})
            mantissas.append(self.broadcast(one if mantissa is None else mantissa, x))
            exponents.append(self.broadcast(self.exponent(powers) if powers else zero, x))
        plain = all(scaled and scaled.mantissa is None for scaled in found)
        return Scaled(None if plain else join(mantissas), {join(exponents): 1})

    def _clipped(self, kind: Any, inputs: Any, dtype: str, depth: int) -> Scaled | None:
        """Read a probability with limits that it does not reach."""
        limits = {
            scalars.Maximum: ((1, 0), (0, None)),
            scalars.Minimum: ((1, 0), (None, 1)),
            scalars.Clip: ((0,), (0, 1)),
        }
        places, (low, high) = limits[kind]
        for i in places:
            inner = self.read(inputs[i], dtype, depth)
            if inner is None or inner.mantissa is not None or not inner.is_product():
                continue
            others = [number_of(y) for y in [*inputs[:i], *inputs[i + 1 :]]]
            if None in others:
                return None
            if (low is not None and others[0] > low) or (high is not None and others[-1] < high):
                return None
            return inner
        return None


def _is_logarithm(x: Any) -> bool:
    while x.owner is not None and type(x.owner.op) in MOVES:
        x = uncast(x.owner.inputs[0])
    if negated := inputs_of(x, scalars.Neg):
        return kind_of(negated[0]) is Softplus
    return x.owner is not None and type(x.owner.op) is LogSoftmax


def _operand_of_logit(x: Any) -> Any:
    """Return `p` of ``log(p / (1 - p))``, which PyTensor cancels with a sigmoid, else None."""
    (odds,) = inputs_of(x, scalars.Log) or (None,)
    p, rest = (odds is not None and inputs_of(odds, scalars.TrueDiv)) or (None, None)
    return p if rest is not None and complement_of(rest) is p else None


def _squared(x: Any) -> Any:
    factors = inputs_of(x, scalars.Mul) or []
    if len(factors) == 2 and factors[0] is factors[1]:
        return uncast(factors[0])
    squared = inputs_of(x, scalars.Sqr, scalars.Pow)
    if squared and (len(squared) == 1 or number_of(squared[1]) == 2):
        return uncast(squared[0])
    return None


def _negated(term: Scaled, dtype: str) -> Scaled:
    mantissa = pt.constant(np.asarray(1, dtype)) if term.mantissa is None else term.mantissa
    return Scaled(-mantissa, term.powers)


def _is_nonzero(term: Scaled) -> bool:
    """Return whether the exponent of a term always counts among those of a sum."""
    return term.mantissa is None or bool(number_of(term.mantissa))
