"""Layer and root-mean-square normalization.

Layer normalization is a batch normalization over other axes. Otherwise, if the axes leave some that
are not adjacent, it is an expression, as root-mean-square normalization is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import is_int, number, shown
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.norm.batchnorm import BatchNormTrain
from dnnops.nnet.operands import float_operands
from dnnops.nnet.validate import accumulator_dtype, check_broadcast, show_shape

__all__ = ["layer_norm", "rms_norm"]


def _axes(where: str, value: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes to normalize over as negative ints, in ascending order."""
    axes = (value,) if is_int(value) else value
    if not isinstance(axes, Sequence) or not axes or not all(map(is_int, axes)):
        raise DnnTypeError(f"{where}: axes must be an int or a tuple of ints, got {shown(value)}")
    if not all(-ndim <= axis < ndim for axis in axes):
        raise DnnValueError(
            f"{where}: axes must be between {-ndim} and {ndim - 1} for x of {ndim} dimensions, "
            f"got {shown(value)}"
        )
    found = sorted(axis - ndim if axis >= 0 else axis for axis in axes)
    if len(set(found)) != len(found):
        raise DnnValueError(f"{where}: axes must not repeat, got {shown(value)}")
    return tuple(map(int, found))


def _normalized(
    where: str,
    x: Any,
    parameters: dict[str, Any],
    axes: Any,
    epsilon: Any,
    normalize: Callable[[TensorVariable, tuple[int, ...], np.ndarray], TensorVariable],
) -> TensorVariable:
    """Normalize `x`, multiply it by the first parameter and add the second, in its accumulator."""
    named = {"x": x, **{name: v for name, v in parameters.items() if v is not None}}
    x, *values = float_operands(where, named)
    found = _axes(where, axes, x.type.ndim)
    dtype = accumulator_dtype(x.type.dtype)
    constant = np.asarray(number(where, "epsilon", epsilon, 0.0), dtype=dtype)
    given = dict(zip(list(named)[1:], values, strict=True))
    for name, value in given.items():
        if value.type.ndim > x.type.ndim:
            raise DnnTypeError(
                f"{where}: {name} has more dimensions than x: shapes "
                f"{show_shape(value.type.shape)} and {show_shape(x.type.shape)}"
            )
        for size, own in zip(reversed(value.type.shape), reversed(x.type.shape), strict=False):
            if own == 1 and size not in (None, 1):
                raise DnnValueError(
                    f"{where}: {name} of shape {show_shape(value.type.shape)} would enlarge x of "
                    f"shape {show_shape(x.type.shape)}"
                )
    check_broadcast(where, x=x, **given)
    out = normalize(x, found, constant)
    if "gamma" in given:
        out = out * given["gamma"].astype(dtype)
    if "beta" in given:
        out = out + given["beta"].astype(dtype)
    return out.astype(x.type.dtype)


def _by_standard_deviation(
    x: TensorVariable, axes: tuple[int, ...], epsilon: np.ndarray
) -> TensorVariable:
    ndim = x.type.ndim
    left = [axis for axis in range(ndim) if axis - ndim not in axes]
    if x.type.dtype != "float16" and left == list(range(left[0], left[-1] + 1) if left else []):
        # The Op is right for numbers of any magnitude, whatever the linker.
        ones = pt.ones([x.shape[i] if i in left else 1 for i in range(ndim)], dtype=x.type.dtype)
        op: Any = BatchNormTrain(tuple(axis + ndim for axis in axes))
        return op(x, ones, pt.zeros_like(ones), pt.constant(float(epsilon), dtype="float64"))[0]
    scaled, least = _scaled(x, axes, epsilon)
    centered = scaled - scaled.mean(axis=axes, keepdims=True)
    return _divided(centered, axes, least)


def _by_root_mean_square(
    x: TensorVariable, axes: tuple[int, ...], epsilon: np.ndarray
) -> TensorVariable:
    scaled, least = _scaled(x, axes, epsilon)
    return _divided(scaled, axes, least)


def _divided(x: TensorVariable, axes: tuple[int, ...], epsilon: Any) -> TensorVariable:
    return x / pt.sqrt(pt.sqr(x).mean(axis=axes, keepdims=True) + epsilon)


def _scaled(
    x: TensorVariable, axes: tuple[int, ...], epsilon: np.ndarray
) -> tuple[TensorVariable, Any]:
    """Multiply `x` by a number, and `epsilon` by its square."""
    wide = x.astype(epsilon.dtype)
    if x.type.dtype == "float16":  # no square of a float16 overflows in float32
        return wide, epsilon
    scale = _scale_of_squares(wide, axes, np.sqrt(epsilon))
    # A switch, because rewrites take factors of products out of sums, which would overflow.
    # The sum is NaN, and has a gradient, which is NaN, too.
    scaled = pt.switch(pt.isnan(scale), wide + scale, wide * scale)
    return scaled, pt.sqr(np.sqrt(epsilon) * scale)


def _scale_of_squares(x: TensorVariable, axes: tuple[int, ...], least: np.ndarray) -> Any:
    """Return a power of 2 for which sums of squares of the product with `x` are normal numbers.

    It is the same for all elements along `axes`, and its product with `least` is at most 1.
    """
    # The square of this is between the largest element divided by their number, and multiplied by
    # it. Unlike a maximum, a sum may be empty. Roots keep it finite; rewrites take factors out.
    roots = pt.sqrt(abs(x))
    total, mean = (f(axis=axes, keepdims=True) for f in (roots.sum, roots.mean))
    middle = pt.maximum(pt.sqrt(total) * pt.sqrt(mean), np.sqrt(least))
    exponent = pt.floor(np.asarray(-2, least.dtype) * pt.log2(middle))
    most = np.asarray(-np.finfo(least.dtype).minexp, least.dtype)
    # The result of the normalization does not depend on the power, so no gradient flows through it.
    return disconnected_grad(pt.exp2(pt.clip(exponent, -most, most)))


def layer_norm(
    x: Any, gamma: Any = None, beta: Any = None, axes: Any = -1, epsilon: float = 1e-5
) -> TensorVariable:
    """Normalize over the last axes: ``(x - mean) / sqrt(variance + epsilon) * gamma + beta``.

    Parameters
    ----------
    x : tensor_like
        A float16, float32 or float64 tensor.
    gamma, beta : tensor_like, optional
        Scale and bias, which broadcast with `x`; usually they have its shape along `axes`. By
        default, 1 and 0.
    axes : int or tuple of int
        Axes to compute the mean and the biased variance over.
    epsilon : float
        Non-negative constant added to the variance.

    Returns
    -------
    TensorVariable
        The normalized tensor, with the shape and dtype of `x`. float16 is computed in float32.

    Raises
    ------
    DnnTypeError
        If an operand has an unsupported dtype or too many dimensions, or if `axes` or `epsilon`
        has the wrong type.
    DnnValueError
        If `axes` are out of bounds or repeat, if `epsilon` is negative or not finite, or if the
        static shapes of `gamma` or `beta` don't match.

    Notes
    -----
    ``torch.nn.functional.layer_norm(x, x.shape[-n:], gamma, beta, epsilon)`` has `axes` from ``-n``
    to ``-1``.

    References
    ----------
    Ba, Kiros and Hinton, Layer Normalization (2016).
    """
    parameters = {"gamma": gamma, "beta": beta}
    return _normalized("layer_norm", x, parameters, axes, epsilon, _by_standard_deviation)


def rms_norm(x: Any, gamma: Any = None, axes: Any = -1, epsilon: float = 1e-5) -> TensorVariable:
    """Divide by the root mean square over axes: ``x / sqrt(mean(x**2) + epsilon) * gamma``.

    Parameters
    ----------
    x : tensor_like
        A float16, float32 or float64 tensor.
    gamma : tensor_like, optional
        Scale, which broadcasts with `x`. By default, 1.
    axes, epsilon
        See `layer_norm`.

    Returns
    -------
    TensorVariable
        The normalized tensor, with the shape and dtype of `x`. float16 is computed in float32.

    Raises
    ------
    DnnTypeError, DnnValueError
        As for `layer_norm`.

    References
    ----------
    Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
    """
    return _normalized("rms_norm", x, {"gamma": gamma}, axes, epsilon, _by_root_mean_square)
