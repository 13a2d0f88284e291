"""Read an expression as a batch normalization."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from math import isfinite, nan, prod
from typing import Any

from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import Add, Cast, Mul, Pow, Reciprocal, Sqrt, Sub, TrueDiv
from pytensor.tensor.basic import alloc, as_tensor_variable, cast, constant
from pytensor.tensor.type import TensorType

from dnnops.cpu.batchnorm import has_neighboring_statistics
from dnnops.nnet.validate import accumulator_dtype
from dnnops.rewriting.recognize.matching import Match, Pattern, Rest, Slot, sqr, sqrt
from dnnops.rewriting.recognize.views import (
    Product,
    View,
    kept_sum_of,
    kind_of,
    product_of,
    size_of,
    terms_of,
)

__all__ = ["Normalization", "read_normalization"]


class _Mean(Pattern):
    """A mean over `axes`, which are kept, of an array that has the shape of `x`."""

    def __init__(self, summand: Pattern):
        self.summand = summand

    def match(self, view: View, found: Match, sign: int = 1) -> Iterator[Match]:
        x = found["x"].variable
        accumulator = accumulator_dtype(x.type.dtype)
        if accumulator != x.type.dtype:
            # For a float16 mean, PyTensor divides the sum before rounding it.
            rounded = view.inputs_of(Cast) if view.variable.type.dtype == x.type.dtype else None
            if rounded is None:
                return
            (view,) = rounded
        product = product_of(view, sign=sign, whole_means=False)
        totals = [part for exponent, part in product.parts if exponent > 0]
        total = kept_sum_of(totals[0]) if product.sign == len(totals) == 1 else None
        if total is None or totals[0].variable.type.dtype != accumulator:
            return
        summand, axes = total
        left, number = list(axes), 1.0
        for count in (part for exponent, part in product.parts if exponent < 0):
            array, axis = size_of(count.variable) or (None, None)
            if axis in left and (array is x or array is summand):
                left.remove(axis)
            else:
                value = count.number()
                number *= nan if value is None else value
        sizes = [x.type.shape[i] for i in left]
        if summand.type.ndim == x.type.ndim and None not in sizes and number == prod(sizes):
            for bound in found.bind("axes", axes):
                yield from self.summand.match(View.of(summand), bound)


def _is_epsilon(view: View) -> bool:
    number = view.number()
    return number is not None and number > 0 and isfinite(number)


_X, _MEAN, _VAR = Slot("x", lambda view: view.is_whole), Slot("mean"), Slot("var")
_SCALE, _BIAS = Rest("scale"), Rest("bias")
_DEVIATION = sqrt(_VAR + Slot("epsilon", _is_epsilon))
_NORMALIZATION = (_X - _MEAN) * _SCALE / _DEVIATION + _BIAS
_FOLDED = _X * _SCALE / _DEVIATION - _MEAN * _SCALE / _DEVIATION + _BIAS
_FORM = _NORMALIZATION | _FOLDED

_MEAN_OF_X = _Mean(_X)
_VARIANCE_OF_X = _Mean(sqr(_X - _MEAN_OF_X)) | _Mean(sqr(_X)) - sqr(_MEAN_OF_X)


#: No normalization has more terms. Longer sums are skipped, so that a sum of many terms does not
#: take quadratic time.
MAX_TERMS = 8


@dataclass
class Normalization:
    """An expression that computes a batch normalization."""

    out: Any
    x: Any
    #: Axes over which the statistics are taken.
    axes: tuple[int, ...]
    mean: View
    var: View
    #: Number added to the variance.
    epsilon: float
    #: Factor of the normalized array.
    scale: Product
    #: Terms added to the scaled array.
    bias: list[Product]
    #: Whether the statistics are computed from `x`.
    trains: bool

    def views(self) -> list[View]:
        """Return the parts of the scale and the bias."""
        return [view for product in (self.scale, *self.bias) for view in product.views()]

    def leaves(self) -> list[Variable]:
        """Return the variables that the expression depends on, without constants."""
        views = self.views() if self.trains else [*self.views(), self.mean, self.var]
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
            value = _broadcast_to(value, x, left)
        return value

    def is_large(self, x: Any) -> bool:
        """Return whether an intermediate variable has the size of `x` and not of a statistic."""
        kind = x.type
        return (
            isinstance(kind, TensorType)
            and kind.ndim == self.x.type.ndim
            and any(kind.shape[i] != 1 for i in self.axes)
        )


def _broadcast_to(value: Any, x: Any, axes: Collection[int]) -> Any:
    """Allocate `value` with the lengths of `x` on some axes, and with 1 on the others."""

    def operands(array: Any) -> list[Any]:
        return [value, *(array.shape[i] if i in axes else 1 for i in range(array.type.ndim))]

    # Alloc copies and simplifies everything that its lengths are computed from, to find static
    # lengths. For an array in the middle of a network, that takes longer than the rest of the pass.
    node = alloc(*operands(x.type())).owner
    lengths = map(as_tensor_variable, operands(x)[1:])
    return node.clone_with_new_inputs([value, *lengths]).outputs[0]


def _fits(normalization: Normalization) -> bool:
    """Return whether all parameters have size 1 on the axes and are not larger than `x`."""
    views = [*normalization.views(), normalization.mean, normalization.var]
    dtype, shape = normalization.x.type.dtype, normalization.x.type.shape
    axes = {*normalization.axes, *(i for i, n in enumerate(shape) if n == 1)}
    return all(
        (view.variable.type.dtype == dtype or view.number() is not None)
        and all(view.is_one_on(axis) for axis in axes)
        for view in views
    )


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
    view = View.of(out)
    if view.variable is not out or view.inputs_of(Add, Sub, Mul, TrueDiv) is None:
        return None
    product = cache(lambda view: product_of(view, summed))
    terms = list(islice(terms_of(view), MAX_TERMS + 1))
    if len(terms) > MAX_TERMS or not any(_has_root(product(x)) for _, x in terms):
        return None
    for found in _FORM.match(view, Match(product)):
        x, mean, var, scale = found["x"].variable, found["mean"], found["var"], found["scale"]
        if x.type.dtype != dtype or isinstance(x, Constant):
            continue
        bias = [product_of(term, summed, sign) for sign, term in found["bias"]]
        parameters = [mean, var, *(v for p in (scale, *bias) for v in p.views())]
        axes = next(_axes(x, mean, var), None)
        trains = axes is not None
        if axes is None:
            axes = tuple(
                i
                for i in range(ndim)
                if all(p.is_one_on(i) for p in parameters) and x.type.shape[i] != 1
            )
            if not axes or any(_is_mean(view, x) for view in (mean, var)):
                continue
        epsilon = found["epsilon"].number()
        form = Normalization(out, x, axes, mean, var, epsilon, scale, bias, trains)
        if axes and has_neighboring_statistics(axes, ndim) and _fits(form):
            return form
    return None


def _has_root(product: Product) -> bool:
    kinds = (Sqrt, Pow, TrueDiv, Reciprocal)
    return any(kind_of(view.variable) in kinds for view in product.views())


def _axes(x: Any, mean: View, var: View) -> Iterator[tuple[int, ...]]:
    """Yield the axes over which `mean` and `var` are the statistics of `x`."""
    for found in _MEAN_OF_X.match(mean, Match(x=View.of(x))):
        for whole in _VARIANCE_OF_X.match(var, found):
            yield whole["axes"]


def _is_mean(view: View, x: Any) -> bool:
    """Return whether a view is a mean over axes of `x`, and so not a parameter."""
    return any(_Mean(Slot("summand")).match(view, Match(x=View.of(x))))
