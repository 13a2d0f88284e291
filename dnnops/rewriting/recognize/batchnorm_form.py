"""Read an expression as a batch normalization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from math import isfinite, prod
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import Add, Cast, Mul, Neg, Sub, TrueDiv
from pytensor.tensor.basic import alloc, cast, constant
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type import TensorType

from dnnops.cpu.batchnorm import has_neighboring_statistics
from dnnops.nnet.validate import accumulator_dtype
from dnnops.rewriting.recognize.products import (
    Product,
    View,
    is_sum,
    product_of,
    root_of,
    square_of,
    terms_of,
)

__all__ = ["Normalization", "read_normalization"]


def _count_factors(view: View) -> Iterator[View]:
    if inputs := view.inputs_of(Cast, Mul):
        for x in inputs:
            yield from _count_factors(x)
    else:
        yield view


def _axis_of_size(view: View, shaped: tuple[Any, ...]) -> int | None:
    """Return the axis of a variable in `shaped` whose size a view computes, or None."""
    x = view.variable
    while x.owner is not None:
        op, inputs = x.owner.op, x.owner.inputs
        if isinstance(op, Elemwise) and isinstance(op.scalar_op, Cast):
            x = inputs[0]
        elif isinstance(op, Shape_i):
            return op.i if inputs[0] in shaped else None
        elif isinstance(op, Subtensor):
            return _entry_of_shape(x.owner, shaped)
        else:
            return None
    return None


def _entry_of_shape(node: Apply, shaped: tuple[Any, ...]) -> int | None:
    vector, *indices = node.inputs
    while vector.owner is not None and isinstance(vector.owner.op, Elemwise):
        if not isinstance(vector.owner.op.scalar_op, Cast):
            return None
        (vector,) = vector.owner.inputs
    if vector.owner is None or not isinstance(vector.owner.op, Shape):
        return None
    if vector.owner.inputs[0] not in shaped or len(indices) != 1:
        return None
    index = getattr(indices[0], "data", None)
    if index is None or np.ndim(index) != 0:
        return None
    ndim = vector.owner.inputs[0].type.ndim
    return int(index) % ndim if -ndim <= int(index) < ndim else None


def _mean(view: View, x: Any) -> tuple[Any, tuple[int, ...]] | None:
    """Read a view as a mean of `x`, or of an array of the same shape, with its axes kept.

    Return the averaged variable and the axes, or None if the view is not such a mean.
    """
    accumulator = accumulator_dtype(x.type.dtype)
    if accumulator != x.type.dtype:
        # For a float16 mean, PyTensor divides the sum before rounding it.
        rounded = view.inputs_of(Cast) if view.variable.type.dtype == x.type.dtype else None
        if rounded is None:
            return None
        (view,) = rounded
    product = product_of(view, whole_means=False)
    if product.sign != 1 or len(product.factors) != 1:
        return None
    (total,) = product.factors
    if not is_sum(total) or total.variable.type.dtype != accumulator:
        return None
    counts = [factor for view in product.divisors for factor in _count_factors(view)]
    (summand,) = total.variable.owner.inputs
    ndim = x.type.ndim
    if summand.type.ndim != ndim:
        return None
    axis = total.variable.owner.op.axis
    axes = tuple(range(ndim)) if axis is None else tuple(sorted(a % ndim for a in axis))
    kept = iter(range(ndim))
    if total.order != tuple("x" if i in axes else next(kept) for i in range(ndim)):
        return None
    left, number = list(axes), 1.0
    for count in counts:
        i = _axis_of_size(count, (x, summand))
        if i in left:
            left.remove(i)
            continue
        value = count.number()
        if i is not None or value is None:
            return None
        number *= value
    sizes = [x.type.shape[i] for i in left]
    if None in sizes or number != prod(sizes):
        return None
    return summand, axes


def _is_mean_of(view: View, x: Any, axes: tuple[int, ...]) -> bool:
    return _mean(view, x) == (x, axes)


def _is_variance_of(view: View, x: Any, axes: tuple[int, ...]) -> bool:
    whole = View.of(x)
    found = _mean(view, x)
    if found is not None:
        summand, over = found
        centered = square_of(View.of(summand))
        inputs = centered.inputs_of(Sub) if centered is not None and over == axes else None
        return inputs is not None and inputs[0] == whole and _is_mean_of(inputs[1], x, axes)
    # The mean of the squares minus the square of the mean.
    inputs = view.inputs_of(Sub)
    if not inputs:
        return False
    found, mean = _mean(inputs[0], x), square_of(inputs[1])
    return (
        found is not None
        and found[1] == axes
        and square_of(View.of(found[0])) == whole
        and mean is not None
        and _is_mean_of(mean, x, axes)
    )


#: No normalization has more terms. Longer sums are skipped, so that a sum of many terms does not
#: take quadratic time.
MAX_TERMS = 8


@dataclass
class Normalization:
    """An expression that computes a batch normalization.

    Attributes
    ----------
    out, x : Variable
        Output and input.
    axes : tuple of int
        Axes over which the statistics are taken.
    mean, var : View
        Statistics.
    epsilon : float
        Number added to the variance.
    scale : Product
        Factor of the normalized array.
    bias : list of Product
        Terms added to the scaled array.
    trains : bool
        Whether the statistics are computed from `x`.
    """

    out: Any
    x: Any
    axes: tuple[int, ...]
    mean: View
    var: View
    epsilon: float
    scale: Product
    bias: list[Product]
    trains: bool

    def leaves(self) -> list[Variable]:
        """Return the variables that the expression depends on, without constants."""
        views = list(self.scale.views())
        for term in self.bias:
            views += term.views()
        if not self.trains:
            views += [self.mean, self.var]
        found = [self.x, *(view.variable for view in views)]
        return [v for v in dict.fromkeys(found) if not isinstance(v, Constant)]

    def parameters(self, values: dict[Any, Any]) -> tuple[Any, Any]:
        """Build the scale and bias operands of the Ops, with leaves replaced by `values`."""
        bias: Any = None
        for product in self.bias:
            term = product.build(values)
            bias = term if bias is None else bias + term
        return (
            self.parameter(self.scale.build(values), 1, values),
            self.parameter(bias, 0, values),
        )

    def statistic(self, view: View, values: dict[Any, Any]) -> Any:
        """Build a statistic as an operand of the Ops, with leaves replaced by `values`."""
        x = View(values.get(view.variable, view.variable), view.order).build()
        return self.parameter(x, 0, values)

    def parameter(self, value: Any, default: float, values: dict[Any, Any]) -> Any:
        """Broadcast a parameter to the size of `x` on the axes that are not normalized."""
        x = values.get(self.x, self.x)
        ndim = x.type.ndim
        # The dtype of the statistics, which would lose digits in float16.
        dtype = accumulator_dtype(x.type.dtype).name
        value = constant(default, dtype=dtype) if value is None else cast(value, dtype)
        if value.type.ndim == 0:
            value = value.dimshuffle(["x"] * ndim)
        left = [i for i in range(ndim) if i not in self.axes]
        if any(value.type.shape[i] == 1 and x.type.shape[i] != 1 for i in left):
            value = alloc(value, *(x.shape[i] if i in left else 1 for i in range(ndim)))
        return value

    def is_large(self, x: Any) -> bool:
        """Return whether an intermediate variable has the size of `x` and not of a statistic."""
        kind = x.type
        return (
            isinstance(kind, TensorType)
            and kind.ndim == self.x.type.ndim
            and any(kind.shape[i] != 1 for i in self.axes)
        )


def _fits(normalization: Normalization) -> bool:
    """Return whether all parameters have size 1 on the axes and are not larger than `x`."""
    products = [normalization.scale, *normalization.bias]
    views = [view for product in products for view in product.views()]
    views += [normalization.mean, normalization.var]
    dtype, shape = normalization.x.type.dtype, normalization.x.type.shape
    axes = {*normalization.axes, *(i for i, n in enumerate(shape) if n == 1)}
    return all(
        (view.variable.type.dtype == dtype or view.number() is not None)
        and all(view.is_one_on(axis) for axis in axes)
        for view in views
    )


def _split_deviation(product: Product) -> tuple[Product, View, float] | None:
    """Take ``1 / sqrt(var + epsilon)`` from a product; return the rest, variance and epsilon."""
    for views, inverse in ((product.divisors, False), (product.factors, True)):
        for view in views:
            root = root_of(view)
            if root is None or root[1] is not inverse:
                continue
            inputs = root[0].inputs_of(Add)
            if not inputs or len(inputs) != 2:
                continue
            for var, epsilon in (inputs, inputs[::-1]):
                number = epsilon.number()
                if number is None or not (number > 0 and isfinite(number)):
                    continue
                rest = Product(product.sign, list(product.factors), list(product.divisors))
                (rest.factors if inverse else rest.divisors).remove(view)
                return rest, var, number
    return None


def _same(a: Product, b: Product) -> bool:
    return Counter(a.factors) == Counter(b.factors) and Counter(a.divisors) == Counter(b.divisors)


def _readings(
    products: list[Product], ndim: int
) -> Iterator[tuple[View, View, Product, list[Product]]]:
    """Yield each reading of a sum as ``(x - mean) * rest + others``: x, mean, rest and others."""
    whole = tuple(range(ndim))
    for product in products:
        others = [p for p in products if p is not product]
        for factor in product.factors:
            for sign, x, mean in _differences(factor):
                if x.order == whole:
                    rest = product.without(factor)
                    rest.sign *= sign
                    yield x, mean, rest, others
            if factor.order == whole and factor.variable.type.ndim == ndim:
                # x * rest - mean * rest + others, where the mean may itself be a quotient.
                rest = product.without(factor)
                for other in others:
                    mean = _other_factor(other, rest)
                    if mean is not None:
                        yield factor, mean, rest, [p for p in others if p is not other]


def _differences(view: View) -> Iterator[tuple[int, View, View]]:
    """Yield each reading of a view as ``sign * (x - mean)``: sign, x and mean."""
    if inputs := view.inputs_of(Sub):
        yield 1, inputs[0], inputs[1]
        yield -1, inputs[1], inputs[0]
    elif (inputs := view.inputs_of(Add)) and len(inputs) == 2:
        for x, negated in (inputs, inputs[::-1]):
            if mean := negated.inputs_of(Neg):
                yield 1, x, mean[0]


def _other_factor(product: Product, rest: Product) -> View | None:
    """Return the factor by which `product` differs from ``-rest``, or None."""
    if product.sign != -rest.sign:
        return None
    for factor in product.factors:
        if _same(product.without(factor), rest):
            return factor
    return None


def read_normalization(
    out: Any, summed: Collection[Any] = (), dtypes: Collection[str] = ("float32",)
) -> Normalization | None:
    """Read a variable as a batch normalization that the backend Ops can compute.

    Parameters
    ----------
    out : Variable
        Variable to read.
    summed : collection of Variable
        Variables that the graph sums. A product among them may be the normalized input.
    dtypes : collection of str
        Supported dtypes.

    Returns
    -------
    Normalization or None
        None if `out` is not a batch normalization, or if its operands have a different dtype.
    """
    if not isinstance(out.type, TensorType) or out.type.dtype not in dtypes or not out.type.ndim:
        return None
    dtype, ndim = out.type.dtype, out.type.ndim
    view = View(out, tuple(range(ndim)))
    if view.inputs_of(Add, Sub, Mul, TrueDiv) is None:
        return None
    terms = list(islice(terms_of(view), MAX_TERMS + 1))
    if len(terms) > MAX_TERMS:
        return None
    products = [product_of(term, sign, summed) for sign, term in terms]
    for x, mean, rest, others in _readings(products, ndim):
        split = _split_deviation(rest)
        if x.variable.type.dtype != dtype or isinstance(x.variable, Constant) or split is None:
            continue
        scale, var, epsilon = split
        axes = _training_axes(x.variable, mean, var)
        trains = axes is not None
        if axes is None:
            parameters = [mean, var, *scale.views(), *(v for p in others for v in p.views())]
            axes = tuple(
                i
                for i in range(ndim)
                if all(p.is_one_on(i) for p in parameters) and x.variable.type.shape[i] != 1
            )
            if _statistic_of(mean, x.variable) or _statistic_of(var, x.variable):
                continue
        found = Normalization(out, x.variable, axes, mean, var, epsilon, scale, others, trains)
        if axes and has_neighboring_statistics(axes, ndim) and _fits(found):
            return found
    return None


def _training_axes(x: Any, mean: View, var: View) -> tuple[int, ...] | None:
    found = _mean(mean, x)
    if found is None or found[0] is not x or not _is_variance_of(var, x, found[1]):
        return None
    return found[1]


def _statistic_of(view: View, x: Any) -> bool:
    """Return whether a view is a mean over axes of `x`, and so not a parameter."""
    return _mean(view, x) is not None
