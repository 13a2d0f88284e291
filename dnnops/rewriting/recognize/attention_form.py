"""Read the parts of written-out attention: matrices, their scale and the masking of scores.

PyTensor merges consecutive transpositions and moves some through products. Matrices are therefore
compared as permutations of the arrays below them, and a product may be written transposed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isclose
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Constant, equal_computations
from pytensor.scalar.basic import Add, Cast, Mul, Pow, Sqrt, Sub, Switch, TrueDiv
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot

__all__ = [
    "Condition",
    "Scale",
    "View",
    "array_of",
    "factors_of",
    "terms_of",
    "unhidden",
    "unscaled",
    "view_of",
]

#: A variable and a permutation of its axes, given like the order of a `DimShuffle`.
View = tuple[Any, tuple[Any, ...]]


def view_of(x: Any, swapped: bool = False) -> View:
    """Return the array whose axes `x` permutes, and the permutation.

    If `swapped`, describe `x` with its last two axes swapped.
    """
    node, order = x.owner, tuple(range(x.type.ndim))
    if node is not None and isinstance(node.op, DimShuffle):
        x, order = node.inputs[0], tuple(node.op.new_order)
    return x, (*order[:-2], order[-1], order[-2]) if swapped else order


def array_of(view: View) -> Any:
    x, order = view
    return x if order == tuple(range(x.type.ndim)) else x.dimshuffle(order)


def _operands(x: Any, kind: type) -> list[Any] | None:
    """Return the operands of `x` if it is an elementwise operation of type `kind`, else None."""
    node = x.owner
    if node is None or not isinstance(node.op, Elemwise):
        return None
    return list(node.inputs) if isinstance(node.op.scalar_op, kind) else None


def factors_of(x: Any) -> tuple[Any, Any] | None:
    """Return the two stacks of matrices whose product is `x`, or None if it is not a product."""
    node = x.owner
    if node is None or not isinstance(node.op, Blockwise) or not isinstance(node.op.core_op, Dot):
        return None
    first, second = node.inputs
    is_stack = first.type.ndim == second.type.ndim == x.type.ndim in (3, 4)
    return (first, second) if is_stack else None


def _number(x: Any) -> float | None:
    return float(x.data.item()) if isinstance(x, Constant) and x.data.size == 1 else None


@dataclass
class Scale:
    """Numbers and scalar variables that multiply or divide an array."""

    number: float = 1.0
    factors: list[Any] = field(default_factory=list)
    divisors: list[Any] = field(default_factory=list)

    def add(self, factors: list[Any], divisors: list[Any]) -> None:
        for x in factors:
            if (number := _number(x)) is None:
                self.factors.append(x)
            else:
                self.number *= number
        for x in divisors:
            if number := _number(x):
                self.number /= number
            else:
                self.divisors.append(x)

    def is_same(self, other: Scale) -> bool:
        return (
            isclose(self.number, other.number, rel_tol=1e-6)
            and sorted(map(id, self.factors)) == sorted(map(id, other.factors))
            and sorted(map(id, self.divisors)) == sorted(map(id, other.divisors))
        )

    def without_number(self, x: Any) -> Any:
        """Scale `x` by the variables, but not by the number."""
        for factor in self.factors:
            x = x * factor
        for divisor in self.divisors:
            x = x / divisor
        return x

    def is_root_of(self, depths: list[Any]) -> bool:
        """Return whether the scale is the inverse square root of one of `depths`."""
        if self.number != 1.0 or len(self.factors) + len(self.divisors) != 1:
            return False
        base, exponent = _power(*self.factors, *self.divisors)
        if exponent != (-0.5 if self.factors else 0.5):
            return False
        return any(base is depth or equal_computations([base], [depth]) for depth in depths)


def _power(x: Any) -> tuple[Any, float]:
    """Read `x` as a power, looking through casts and `DimShuffle`; return base and exponent."""
    exponent = 1.0
    while x.owner is not None:
        base = x.owner.inputs[-1]
        if _operands(x, Sqrt):
            exponent /= 2
        elif (operands := _operands(x, TrueDiv)) and _number(operands[0]) == 1:
            exponent = -exponent
        elif (operands := _operands(x, Pow)) and (number := _number(operands[1])) is not None:
            exponent *= number
            base = operands[0]
        elif not isinstance(x.owner.op, DimShuffle) and not (
            _operands(x, Cast) and x.type.dtype.startswith("float")
        ):
            break
        x = base
    return x, exponent


def unscaled(x: Any, scale: Scale) -> Any:
    """Return `x` without its scalar factors and divisors, which are added to `scale`."""
    while True:
        if (operands := _operands(x, TrueDiv)) and all(operands[1].type.broadcastable):
            scale.add([], operands[1:])
            x = operands[0]
            continue
        operands = _operands(x, Mul) or []
        arrays = [i for i in operands if not all(i.type.broadcastable)]
        if len(arrays) != 1:
            return x
        scale.add([i for i in operands if i is not arrays[0]], [])
        x = arrays[0]


#: A condition, and whether it is true for visible scores (else it is true for hidden ones).
Condition = tuple[Any, bool]


def unhidden(x: Any, filler: float) -> tuple[Any, Condition | None]:
    """Split `x` into an array and the condition that replaces hidden elements with `filler`.

    PyTensor computes gradients of float16 switches in float32 and casts them.
    """
    chosen = (_operands(x, Cast) or [x])[0]
    condition, *branches = _operands(chosen, Switch) or [None]
    if condition is not None and condition.type.dtype == "bool":
        for i in (0, 1):
            same_type = branches[i].type.dtype == x.type.dtype
            if same_type and _number(branches[1 - i]) == filler:
                return branches[i], (condition, i == 0)
    return x, None


def terms_of(x: Any) -> list[tuple[Any, Any]]:
    """List the terms of `x` that may be scores, each with the sum of the other terms."""
    found = [(x, None)]
    if operands := _operands(x, Sub):
        found.append((operands[0], -operands[1]))
    operands = _operands(x, Add) or []
    for i, term in enumerate(operands):
        others = operands[:i] + operands[i + 1 :]
        found.append((term, others[0] if len(others) == 1 else pt.add(*others)))
    return found
