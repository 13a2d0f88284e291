"""Elementwise functions built from PyTensor Ops.

Integers and bools are converted to floats, as in PyTensor's ``exp``: types of at most 16 bits
become float32, wider ones float64.
"""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.nnet.activation.op import elu
from dnnops.nnet.expressions import compared
from dnnops.nnet.validate import accumulator_dtype, as_floating, switch

__all__ = [
    "gelu",
    "hard_sigmoid",
    "selu",
    "softplus",
    "softsign",
    "ultra_fast_sigmoid",
]

#: With these constants, activations keep zero mean and unit variance from layer to layer.
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805

#: A number whose negative has a `gelu` of 0.
TAIL_END = {"float32": 14.5, "float64": 39.0}
#: A number of the tail, or its quotient with the root of 2, has so few digits in multiples of the
#: inverse of this that its square is exact.
STEPS = {"float32": 2.0**8, "float64": 2.0**21}


def softplus(x: Any) -> TensorVariable:
    """Compute ``log(1 + exp(x))``, a smooth version of `relu`, without overflow.

    Parameters
    ----------
    x : tensor_like
        A float16, float32, float64 or integer tensor with any number of dimensions.

    Returns
    -------
    TensorVariable
        The result, with the shape of `x`.

    Raises
    ------
    DnnTypeError
        If `x` is not a tensor of real numbers.
    """
    return pt.softplus(as_floating("softplus", "x", x))


def gelu(x: Any, approximate: bool = False) -> TensorVariable:
    """Compute the Gaussian error linear unit, ``x * Phi(x)``.

    Parameters
    ----------
    x : tensor_like
        See `softplus`.
    approximate : bool
        Whether to replace the normal distribution function ``Phi`` by
        ``(1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2``.

    Returns
    -------
    TensorVariable
        The result, with the shape of `x`.

    Raises
    ------
    DnnTypeError
        If `x` is not a tensor of real numbers, or if `approximate` is not a bool.

    Notes
    -----
    The tail of negative `x` keeps its digits, also in the gradient: the relative error is a few
    units in the last place, or grows as ``0.07 * abs(x)**3`` units with `approximate`. At minus
    infinity the result is the limit, 0; PyTorch's is NaN unless approximate.

    References
    ----------
    Hendrycks and Gimpel, Gaussian Error Linear Units (2016).
    """
    x = as_floating("gelu", "x", x)
    if switch("gelu", "approximate", approximate):
        wide = x.astype(accumulator_dtype(x.type.dtype))
        # Beyond 30, the factor is 1 or 0, and the cube of a large number would overflow.
        near = pt.clip(wide, _number(-30, wide), _number(30, wide))
        twice = _number(2 * (2 / pi) ** 0.5, wide) * (
            near + _number(0.044715, wide) * near * pt.sqr(near)
        )
        # The sigmoid keeps the digits of the tail, where 1 + tanh loses them. It multiplies `near`,
        # as its slope, which is 0 for large numbers, is multiplied by the same factor.
        result = pt.switch(pt.gt(compared(wide), _number(30, wide)), wide, near * pt.sigmoid(twice))
        return result.astype(x.type.dtype)
    wide = x.astype(accumulator_dtype(x.type.dtype))
    least, middle, most = (_number(value, wide) for value in (-TAIL_END[wide.type.dtype], -1, 9))
    near = pt.clip(wide, middle, most)
    # erfc keeps the digits of the tail, where 1 + erf(x) loses them.
    head = _number(0.5, wide) * near * pt.erfc(_number(-(0.5**0.5), wide) * near)
    below = pt.switch(pt.lt(compared(wide), middle), _tail(pt.clip(wide, least, middle)), head)
    return pt.switch(pt.gt(compared(wide), most), wide, below).astype(x.type.dtype)


def _tail(x: TensorVariable) -> TensorVariable:
    """Compute `gelu` for numbers from -1 down to the end of the tail.

    An error of the argument ``t = -x / sqrt(2)`` of erfc, or of its square in the derivative, is
    multiplied by ``2 * t**2``. So they are computed for a rounded `t`, whose square is exact, and
    the integral of the derivative over the rest is added as a series. The rest is computed from
    products that are exact.
    """
    steps = STEPS[x.type.dtype]

    def rounded(value: Any) -> Any:
        return pt.floor(_number(steps, x) * value + _number(0.5, x)) * _number(1 / steps, x)

    factor = -(0.5**0.5)
    first = np.floor(factor * 16 * steps) / (16 * steps)
    high, low = (
        _number(first, x),
        _number(float(np.longdouble(-1) / np.sqrt(np.longdouble(2)) - first), x),
    )
    x_high = rounded(x)
    t = rounded(_number(factor, x) * x)
    # The maximum keeps rewrites from adding up the terms in another order.
    rest = pt.maximum(high * x_high - t, _number(-1, x)) + (high * (x - x_high) + low * x)
    a = t * rest
    # exp(-2 t s - s**2) integrated from 0 to the rest
    one, *numbers = (_number(value, x) for value in (1, -1, 2 / 3, -1 / 3, 2 / 15))
    series = one
    power = a
    for number in numbers:
        series = series + number * power
        power = power * a
    cubic = _number(-1 / 3, x) * pt.sqr(rest) * (one - _number(1.5, x) * a)
    area = rest * (series + cubic)
    slope = _number(2 / pi**0.5, x) * pt.exp(-pt.sqr(t))
    return _number(0.5, x) * x * (pt.erfc(t) - slope * area)


def softsign(x: Any) -> TensorVariable:
    """Compute ``x / (1 + abs(x))``, which lies between -1 and 1.

    See `softplus` for the argument and the errors.
    """
    x = as_floating("softsign", "x", x)
    size = abs(x)
    near = pt.lt(compared(size), 1)
    # The derivative of the quotient is a difference, which loses all digits for large elements.
    small = pt.switch(near, x, _number(0, x))
    return pt.switch(near, small / (1 + abs(small)), pt.sign(x) * (1 - 1 / (1 + size)))


def selu(x: Any) -> TensorVariable:
    """Compute the scaled exponential linear unit of self-normalizing networks.

    Parameters
    ----------
    x : tensor_like
        See `softplus`.

    Returns
    -------
    TensorVariable
        ``scale * elu(x, alpha)`` with alpha 1.6733 and scale 1.0507 (Klambauer et al., 2017), with
        the shape of `x`. The slope at 0 is ``scale * alpha``.

    Raises
    ------
    DnnTypeError
        If `x` is not a tensor of real numbers.
    """
    y = elu(as_floating("selu", "x", x), SELU_ALPHA)
    return _number(SELU_SCALE, y) * y


def hard_sigmoid(x: Any) -> TensorVariable:
    """Compute ``clip(0.2 * x + 0.5, 0, 1)``, a piecewise linear approximation of `sigmoid`.

    See `softplus` for the argument and the errors.
    """
    x = as_floating("hard_sigmoid", "x", x)
    return pt.clip(_number(0.2, x) * x + _number(0.5, x), 0, 1)


def ultra_fast_sigmoid(x: Any) -> TensorVariable:
    """Approximate `sigmoid` without exponentials, with an error of at most 0.012.

    Parameters
    ----------
    x : tensor_like
        See `softplus`.

    Returns
    -------
    TensorVariable
        ``(t + 1) / 2``, with the shape of `x`, where `t` approximates ``tanh(x / 2)``. With
        ``h = abs(x / 2)``, the magnitude of `t` is ``1.5 * h / (1 + h)`` for `h` below 1.7, linear
        in `h` up to 3, and 0.995 beyond. The gradient is the derivative of this piecewise function.

    Raises
    ------
    DnnTypeError
        If `x` is not a tensor of real numbers.
    """
    x = as_floating("ultra_fast_sigmoid", "x", x)
    half, bend, near, first, step, last = (
        _number(value, x)
        for value in (0.5, 1.7, 1.5, 0.935409070603099, 0.0458812946797165, 0.99505475368673)
    )
    h = half * x
    size = abs(h)
    far = pt.sign(h) * pt.switch(pt.lt(compared(size), 3), first + step * (size - bend), last)
    # Use the odd function itself, not its magnitude, so that the slope at 0 is right.
    is_near = pt.lt(compared(size), bend)
    small = pt.switch(is_near, h, _number(0, x))  # the slope of the quotient is NaN for infinity
    t = pt.switch(is_near, near * small / (1 + abs(small)), far)
    return half * (t + 1)


def _number(value: float, x: TensorVariable) -> TensorVariable:
    """Return a constant with the dtype of `x`, so that it doesn't widen `x`."""
    return pt.constant(np.asarray(value, dtype=x.type.dtype))
