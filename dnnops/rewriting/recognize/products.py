"""Read expressions as sums of products of variables whose axes may have been moved.

A formula can be written in many forms: `dimshuffle` may broadcast parameters at any place, and
factors and terms may come in any order. Rewrites that recognize a formula use this common form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Apply, Constant
from pytensor.scalar.basic import Add, Mul, Neg, Pow, Reciprocal, Sqr, Sqrt, Sub, TrueDiv
from pytensor.tensor.basic import constant
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum

__all__ = ["Product", "View", "is_sum", "product_of", "root_of", "square_of", "terms_of"]


#: The number of factors above which a product is not split any further.
MAX_FACTORS = 16


class View(NamedTuple):
    """A variable with its axes moved, where `order` is as for `DimShuffle`."""

    variable: Any
    order: tuple[Any, ...]

    @staticmethod
    def of(x: Any) -> View:
        return View(x, tuple(range(x.type.ndim))).settled()

    def settled(self) -> View:
        """Return the same view in terms of the variable below any `DimShuffle`."""
        x, order = self
        while x.owner is not None and isinstance(x.owner.op, DimShuffle):
            inner = x.owner.op.new_order
            order = tuple(i if i == "x" else inner[i] for i in order)
            (x,) = x.owner.inputs
        return View(x, order)

    def inputs_of(self, *kinds: type) -> list[View] | None:
        """Return views of the operands if one of these scalar Ops computes the variable."""
        node: Apply | None = self.variable.owner
        if (
            node is None
            or not isinstance(node.op, Elemwise)
            or not isinstance(node.op.scalar_op, kinds)
        ):
            return None
        return [View(x, self.order).settled() for x in node.inputs]

    def number(self) -> float | None:
        """Return the value of a one-element constant, else None."""
        x = self.variable
        if isinstance(x, Constant) and np.size(x.data) == 1:
            return float(np.asarray(x.data).item())
        return None

    def is_one_on(self, axis: int) -> bool:
        """Return whether the view is known to have size 1 on an axis."""
        i = self.order[axis]
        return i == "x" or self.variable.type.shape[i] == 1

    def build(self) -> Any:
        """Return the variable with its axes moved."""
        return self.variable.dimshuffle(self.order)

    def undo(self, x: Any) -> Any:
        """Move the axes of `x` from the order of this view to the order of the variable."""
        if self.order == tuple(range(self.variable.type.ndim)):
            return x
        return x.dimshuffle(
            [self.order.index(i) if i in self.order else "x" for i in range(self.variable.ndim)]
        )


@dataclass
class Product:
    """A signed product of factors and their inverses."""

    sign: int = 1
    factors: list[View] = field(default_factory=list)
    divisors: list[View] = field(default_factory=list)

    def without(self, factor: View) -> Product:
        factors = list(self.factors)
        factors.remove(factor)
        return Product(self.sign, factors, list(self.divisors))

    def views(self) -> Iterator[View]:
        yield from self.factors
        yield from self.divisors

    def build(self, values: dict[Any, Any]) -> Any:
        """Build the product with variables replaced by `values`; None if it is empty."""
        product: Any = None
        for view in self.factors:
            x = View(values.get(view.variable, view.variable), view.order).build()
            product = x if product is None else product * x
        for view in self.divisors:
            x = View(values.get(view.variable, view.variable), view.order).build()
            product = (constant(np.float32(1)) if product is None else product) / x
        if self.sign < 0:
            product = constant(np.float32(-1)) if product is None else -product
        return product


def terms_of(view: View, sign: int = 1) -> Iterator[tuple[int, View]]:
    """Yield the terms of a sum, or the view itself, with their signs."""
    # Not recursive, because sums may be nested deeper than Python's recursion limit.
    waiting = [(sign, view)]
    while waiting:
        sign, view = waiting.pop()
        if inputs := view.inputs_of(Add):
            waiting += [(sign, x) for x in reversed(inputs)]
        elif inputs := view.inputs_of(Sub):
            waiting += [(-sign, inputs[1]), (sign, inputs[0])]
        elif inputs := view.inputs_of(Neg):
            waiting.append((-sign, inputs[0]))
        else:
            yield sign, view


def is_sum(view: View) -> bool:
    node = view.variable.owner
    return node is not None and isinstance(node.op, Sum)


def product_of(
    start: View, sign: int = 1, atoms: Collection[Any] = (), whole_means: bool = True
) -> Product:
    """Read a view as a product, without splitting `atoms` and, if `whole_means`, means."""
    found = Product(sign)
    waiting = [(start, False)]
    while waiting:
        view, inverse = waiting.pop()
        is_atom = view.variable in atoms and view is not start
        is_atom |= len(waiting) + len(found.factors) + len(found.divisors) > MAX_FACTORS
        if not is_atom and (inputs := view.inputs_of(Mul)):
            waiting += [(x, inverse) for x in reversed(inputs)]
        elif (
            not is_atom
            and (inputs := view.inputs_of(TrueDiv))
            and not (whole_means and is_sum(inputs[0]))
        ):
            waiting += [(inputs[1], not inverse), (inputs[0], inverse)]
        elif inputs := view.inputs_of(Reciprocal):
            waiting.append((inputs[0], not inverse))
        elif not is_atom and (inputs := view.inputs_of(Neg)):
            found.sign = -found.sign
            waiting.append((inputs[0], inverse))
        elif view.number() != 1:
            (found.divisors if inverse else found.factors).append(view)
    return found


def root_of(view: View) -> tuple[View, bool] | None:
    """Return the argument of a square root and whether the root is inverted, or None."""
    if inputs := view.inputs_of(Sqrt):
        return inputs[0], False
    if inputs := view.inputs_of(Pow):
        exponent = inputs[1].number()
        if exponent in (0.5, -0.5):
            return inputs[0], exponent < 0
    return None


def square_of(view: View) -> View | None:
    """Return the argument of a square, or None if the view is not a square."""
    if inputs := view.inputs_of(Sqr):
        return inputs[0]
    inputs = view.inputs_of(Pow)
    if inputs and inputs[1].number() == 2:
        return inputs[0]
    inputs = view.inputs_of(Mul)
    if inputs and len(inputs) == 2 and inputs[0] == inputs[1]:
        return inputs[0]
    return None
