"""Simplify elementwise expressions where a condition is known."""

from __future__ import annotations

import operator
from typing import Any

import pytensor.tensor as pt
from pytensor.scalar import basic as scalars

from dnnops.rewriting.recognize.exponents import Exponents
from dnnops.rewriting.recognize.quotients import is_zeros
from dnnops.rewriting.recognize.views import kind_of

__all__ = ["Branches"]

#: Conditions are nested no deeper in an expression.
MAX_DEPTH = 64


class Branches:
    """Elementwise expressions in one branch of a condition, in which other terms may cancel.

    Parameters
    ----------
    values : Exponents
        The nodes of the graph.
    """

    def __init__(self, values: Exponents):
        self._apply = values.apply
        self._broadcast = values.broadcast
        self._found: dict[tuple[Any, Any, bool], Any] = {}

    def of(self, x: Any, condition: Any, value: bool, depth: int = MAX_DEPTH) -> Any:
        """Return what an expression is where a condition has a value.

        Parameters
        ----------
        x, condition : Variable
        value : bool
        depth : int
            Number of nested Ops to look into.

        Returns
        -------
        Variable
            `x` if it does not depend on the condition.
        """
        kind = kind_of(x)
        if kind is None or not depth:
            return x
        key = x, condition, value
        if key not in self._found:
            inputs = list(x.owner.inputs)
            if kind is scalars.Switch and inputs[0] is condition:
                inputs, kind = (inputs[1:2] if value else inputs[2:]), scalars.Add
            found = [self.of(y, condition, value, depth - 1) for y in inputs]
            changed = kind is not kind_of(x) or any(map(operator.is_not, found, x.owner.inputs))
            self._found[key] = self._simplified(x, kind, found) if changed else x
        return self._found[key]

    def _simplified(self, x: Any, kind: Any, inputs: list[Any]) -> Any:
        """Apply the Op of `x`, or add, without operands that are zero."""
        left = [y for y in inputs if not is_zeros(y)]
        result = None
        if kind is scalars.Add:
            result = self._apply(pt.add, *left) if len(left) > 1 else (left or inputs)[0]
        elif kind is scalars.Sub and len(left) < 2:
            is_negated = is_zeros(inputs[0]) and bool(left)
            result = self._apply(pt.neg, left[0]) if is_negated else inputs[0]
        elif kind in (scalars.Mul, scalars.Neg) and len(left) < len(inputs):
            result = next(y for y in inputs if is_zeros(y))
        elif kind is scalars.TrueDiv and is_zeros(inputs[0]):
            result = inputs[0]
        if result is None:
            return self._apply(x.owner.op, *inputs)
        return self._broadcast(result.astype(x.type.dtype), x)
