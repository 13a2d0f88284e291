"""Read expressions as sums, products and powers of variables whose axes may have been moved.

The formulas of `dnnops.rewriting.recognize.matching` are compared with what these functions read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import Add, Cast, Mul, Neg, Pow, Reciprocal, Sqr, Sqrt, Sub, TrueDiv
from pytensor.tensor.basic import (
    ScalarFromTensor,
    TensorFromScalar,
    constant,
    get_underlying_scalar_constant_value,
)
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor

__all__ = [
    "Part",
    "Product",
    "View",
    "factors_of",
    "inputs_of",
    "is_sum",
    "kept_sum_of",
    "kind_of",
    "matrices_of",
    "number_of",
    "powers_of",
    "product_of",
    "size_of",
    "summands_of",
    "terms_of",
    "without_casts",
]

#: The number of factors above which a product is not split any further.
MAX_FACTORS = 16


def kind_of(x: Any) -> type | None:
    """Return the type of the scalar Op that computes `x` elementwise, or None."""
    # Types are compared because `isinstance` is slow for Ops, which are abstract base classes.
    node = x.owner
    return type(node.op.scalar_op) if node is not None and type(node.op) is Elemwise else None


def inputs_of(x: Any, *kinds: type) -> list[Any] | None:
    """Return the operands of `x` if one of these scalar Ops computes it elementwise, else None."""
    return list(x.owner.inputs) if kind_of(x) in kinds else None


def number_of(x: Any) -> float | None:
    """Return the number that all elements of `x` are known to be, else None."""
    value = get_underlying_scalar_constant_value(x, raise_not_constant=False)
    return None if isinstance(value, Variable) else float(value)


@dataclass(slots=True, unsafe_hash=True)
class View:
    """A variable that is no `DimShuffle`, with its axes moved to `order`, as by a `DimShuffle`."""

    variable: Any
    order: tuple[Any, ...]
    #: The `DimShuffle` that has been read, if it is the same view.
    written: Any = field(default=None, compare=False)

    @staticmethod
    def of(x: Any, order: tuple[Any, ...] | None = None) -> View:
        """View a variable with its axes moved to `order`, in terms of what a `DimShuffle` moves."""
        order = tuple(range(x.type.ndim)) if order is None else order
        written = View(x, order)
        while x.owner is not None and type(x.owner.op) is DimShuffle:
            inner = x.owner.op.new_order
            order = tuple(i if i == "x" else inner[i] for i in order)
            (x,) = x.owner.inputs
        if x is written.variable:
            return written
        return View(x, order, written.variable if written.is_whole else None)

    @property
    def mT(self) -> View:  # noqa: N802 - as for arrays
        """The view with its last two axes swapped."""
        return View(self.variable, (*self.order[:-2], self.order[-1], self.order[-2]))

    @property
    def is_whole(self) -> bool:
        """Whether no axis has been moved."""
        return self.order == tuple(range(self.variable.type.ndim))

    def inputs_of(self, *kinds: type) -> list[View] | None:
        """Return views of the operands if one of these scalar Ops computes the variable."""
        if kind_of(self.variable) not in kinds:
            return None
        return [View.of(x, self.order) for x in self.variable.owner.inputs]

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

    def build(self, values: dict[Any, Any] | None = None) -> Any:
        """Return the view as a variable, with its variable replaced by `values`."""
        if values and self.variable in values:
            return values[self.variable].dimshuffle(self.order)
        if self.written is not None or self.is_whole:
            return self.variable if self.written is None else self.written
        return self.variable.dimshuffle(self.order)

    def undo(self, x: Any) -> Any:
        """Move the axes of `x` from the order of this view to the order of the variable."""
        if self.is_whole:
            return x
        return x.dimshuffle(
            [self.order.index(i) if i in self.order else "x" for i in range(self.variable.ndim)]
        )


#: An operand of a sum with its sign, or one of a product with its exponent, either 1 or -1.
Part = tuple[int, View]


@dataclass
class Product:
    """A signed product of parts with the exponents 1 and -1."""

    sign: int
    parts: Sequence[Part]

    def views(self) -> list[View]:
        return [view for _, view in self.parts]

    def times(self, other: Product) -> Product:
        return Product(self.sign * other.sign, [*self.parts, *other.parts])

    def over(self, other: Product) -> Product | None:
        """Divide by a product, all of whose parts must be among those of this one, else None."""
        left = list(self.parts)
        for part in other.parts:
            if part not in left:
                return None
            left.remove(part)
        return Product(self.sign * other.sign, left)

    def split(self) -> tuple[float, Product]:
        """Split off the number that the constants amount to."""
        number, left = float(self.sign), []
        for exponent, view in self.parts:
            value = view.number()
            if value is None or (value == 0 and exponent < 0):
                left.append((exponent, view))
            else:
                number = number * value if exponent > 0 else number / value
        return number, Product(1, left)

    def build(self, values: dict[Any, Any] | None = None, start: Any = None) -> Any:
        """Build the product times `start`, with variables replaced by `values`.

        An empty product is `start`, or None.
        """
        product = start
        for _, view in (part for part in self.parts if part[0] > 0):
            x = view.build(values)
            product = x if product is None else product * x
        for _, view in (part for part in self.parts if part[0] < 0):
            x = view.build(values)
            product = (constant(np.float32(1)) if product is None else product) / x
        if self.sign < 0:
            product = constant(np.float32(-1)) if product is None else -product
        return product


def _parts_of(view: View, kind: type, *inverse_kinds: type) -> list[Part] | None:
    inputs = view.inputs_of(kind, *inverse_kinds)
    if inputs is None:
        return None
    last = 1 if kind_of(view.variable) is kind else -1
    return [*((1, x) for x in inputs[:-1]), (last, inputs[-1])]


def summands_of(view: View) -> list[Part] | None:
    """Return the operands of a sum, difference or negation with their signs, else None."""
    return _parts_of(view, Add, Sub, Neg)


def factors_of(view: View) -> list[Part] | None:
    """Return the operands of a product, quotient or inverse with their exponents, else None."""
    return _parts_of(view, Mul, TrueDiv, Reciprocal)


def terms_of(view: View) -> Iterator[Part]:
    """Yield the terms of a sum, or the view itself, with their signs."""
    # Not recursive, because sums may be nested deeper than Python's recursion limit.
    waiting = [(1, view)]
    while waiting:
        sign, view = waiting.pop()
        summands = summands_of(view)
        if summands is None:
            yield sign, view
        else:
            waiting += [(sign * s, x) for s, x in reversed(summands)]


def product_of(
    start: View, atoms: Collection[Any] = (), sign: int = 1, whole_means: bool = True
) -> Product:
    """Read ``sign * start`` as a product without splitting `atoms` and, if `whole_means`, means.

    Counts may be cast, so means are split into a sum and sizes below any casts.
    """
    parts: list[Part] = []
    waiting = [(1, start)]
    while waiting:
        exponent, view = waiting.pop()
        is_atom = view is not start and view.variable in atoms
        is_atom |= len(waiting) + len(parts) > MAX_FACTORS
        if whole_means and (quotient := view.inputs_of(TrueDiv)):
            is_atom |= is_sum(quotient[0])
        factors = None if is_atom else factors_of(view)
        if factors:
            waiting += [(exponent * e, x) for e, x in reversed(factors)]
        elif not is_atom and (negated := view.inputs_of(Neg)):
            sign = -sign
            waiting.append((exponent, negated[0]))
        elif not whole_means and exponent < 0 and (uncast := view.inputs_of(Cast)):
            waiting.append((exponent, uncast[0]))
        elif view.number() != 1:
            parts.append((exponent, view))
    return Product(sign, parts)


def powers_of(view: View, through_casts: bool = False) -> Iterator[tuple[View, float]]:
    """Yield each reading of a view as a power: base and exponent, the view itself first."""
    exponent = 1.0
    while True:
        yield view, exponent
        inputs = view.inputs_of(Sqrt, Sqr, Pow, Reciprocal, TrueDiv, Mul, Cast)
        if inputs is None:
            return
        kind, base, number = kind_of(view.variable), inputs[0], None
        if kind is Pow:
            number = inputs[1].number()
        elif kind is Mul:
            number = 2.0 if inputs == [base, base] else None
        elif kind is Cast:
            is_float = view.variable.type.dtype.startswith("float")
            number = 1.0 if through_casts and is_float else None
        elif kind is not TrueDiv or base.number() == 1:
            base, number = inputs[-1], {Sqrt: 0.5, Sqr: 2.0}.get(kind, -1.0)
        # The root of a square is an absolute value.
        if number is None or (number % 2 == 0 and exponent % 1):
            return
        view, exponent = base, exponent * number


def is_sum(view: View) -> bool:
    node = view.variable.owner
    return node is not None and isinstance(node.op, Sum)


def kept_sum_of(view: View) -> tuple[Any, tuple[int, ...]] | None:
    """Return the summand and the axes of a sum with its axes kept, or None."""
    if not is_sum(view):
        return None
    (summand,) = view.variable.owner.inputs
    ndim, axis = summand.type.ndim, view.variable.owner.op.axis
    axes = tuple(range(ndim)) if axis is None else tuple(sorted(a % ndim for a in axis))
    kept = iter(range(ndim))
    order = tuple("x" if i in axes else next(kept) for i in range(ndim))
    return (summand, axes) if view.order == order else None


def matrices_of(x: Any) -> tuple[Any, Any] | None:
    """Return the two stacks of matrices whose product is `x`, or None if it is not a product."""
    node = x.owner
    if node is None or not isinstance(node.op, Blockwise) or not isinstance(node.op.core_op, Dot):
        return None
    return tuple(node.inputs)


def without_casts(x: Any) -> Any:
    """Strip conversions between scalars, tensors and dtypes."""
    while x.owner is not None and (
        isinstance(x.owner.op, ScalarFromTensor | TensorFromScalar) or inputs_of(x, Cast)
    ):
        (x,) = x.owner.inputs
    return x


def size_of(x: Any) -> tuple[Any, int] | None:
    """Return the variable and the axis whose size `x` is, or None."""
    x = without_casts(x)
    node = x.owner
    if node is not None and isinstance(node.op, Shape_i):
        return node.inputs[0], node.op.i
    if node is None or not isinstance(node.op, Subtensor) or len(node.inputs) != 2:
        return None
    shape, index = without_casts(node.inputs[0]).owner, node.inputs[1]
    if shape is None or not isinstance(shape.op, Shape) or not isinstance(index, Constant):
        return None
    array, axis = shape.inputs[0], np.asarray(index.data)
    ndim = array.type.ndim
    is_size = x.type.ndim == axis.ndim == 0 and -ndim <= axis < ndim
    return (array, int(axis) % ndim) if is_size else None
