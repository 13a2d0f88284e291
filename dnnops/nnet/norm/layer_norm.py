"""Layer and root-mean-square normalization, written as expressions.

Rewrites recognize layer normalization and its gradient, and run each in one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import is_int, number, shown
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.validate import accumulator_dtype, check_broadcast, float_tensor, show_shape

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
    x = float_tensor(where, "x", x)
    found = _axes(where, axes, x.type.ndim)
    dtype = accumulator_dtype(x.type.dtype)
    constant = np.asarray(number(where, "epsilon", epsilon, 0.0), dtype=dtype)
    given = {
        name: float_tensor(where, name, value)
        for name, value in parameters.items()
        if value is not None
    }
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
    out = normalize(x.astype(dtype), found, constant)
    if "gamma" in given:
        out = out * given["gamma"].astype(dtype)
    if "beta" in given:
        out = out + given["beta"].astype(dtype)
    return out.astype(x.type.dtype)


def _by_standard_deviation(
    x: TensorVariable, axes: tuple[int, ...], epsilon: np.ndarray
) -> TensorVariable:
    centered = x - x.mean(axis=axes, keepdims=True)
    variance = pt.sqr(centered).mean(axis=axes, keepdims=True)
    return centered / pt.sqrt(variance + epsilon)


def _by_root_mean_square(
    x: TensorVariable, axes: tuple[int, ...], epsilon: np.ndarray
) -> TensorVariable:
    return x / pt.sqrt(pt.sqr(x).mean(axis=axes, keepdims=True) + epsilon)


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
