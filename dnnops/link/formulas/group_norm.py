"""Group normalization and its gradient."""

from __future__ import annotations

from math import prod
from typing import Any

from dnnops.errors import DnnValueError
from dnnops.link.formulas.variance import inverse_deviation

__all__ = ["group_norm", "group_norm_gradient"]


def _views(op: Any, x: Any, *parameters: Any) -> tuple[Any, ...]:
    """View operands as (batch, group, channel of the group, position)."""
    batch, channels, *spatial = x.shape
    if channels % op.num_groups:
        raise DnnValueError(
            f"{op}: num_groups must divide the {channels} channels of x, got {op.num_groups}"
        )
    for name, parameter in zip(op.parameter_operands, parameters, strict=True):
        if tuple(parameter.shape) != (channels,):
            raise DnnValueError(
                f"{op}: {name} must have one element for each of the {channels} channels of x, "
                f"got shape {tuple(parameter.shape)}"
            )
    groups = (op.num_groups, channels // op.num_groups)
    views = [parameter.reshape((1, *groups, 1)) for parameter in parameters]
    return x.reshape((batch, *groups, prod(spatial))), *views


def _mean(x: Any) -> Any:
    return x.sum(axis=(2, 3), keepdims=True) / max(x.shape[2] * x.shape[3], 1)


def _normalized(lib: Any, op: Any, x: Any) -> tuple[Any, Any]:
    """Return grouped data less its mean, and the inverse of the standard deviation."""
    centered = x - _mean(x)
    # Correct the mean for its rounding error, whose square would otherwise enter the variance.
    centered = centered - _mean(centered)
    return centered, inverse_deviation(lib, centered, _mean, (2, 3), op.epsilon)


def group_norm(lib: Any, op: Any, x: Any, *parameters: Any) -> tuple[Any]:
    """Compute the result of `GroupNorm`."""
    grouped, gamma, beta = _views(op, x, *parameters)
    centered, invstd = _normalized(lib, op, grouped)
    return ((centered * (invstd * gamma) + beta).reshape(x.shape),)


def group_norm_gradient(lib: Any, op: Any, x: Any, gamma: Any, gy: Any) -> tuple:
    """Compute the results of `GroupNormGrad`."""
    grouped, scale = _views(op, x, gamma)
    gradient = gy.reshape(grouped.shape)
    centered, invstd = _normalized(lib, op, grouped)
    normalized = centered * invstd
    scaled = gradient * scale
    dx = (scaled - _mean(scaled) - normalized * _mean(scaled * normalized)) * invstd
    over = {"axis": (0, 3)}
    dgamma, dbeta = (gradient * normalized).sum(**over), gradient.sum(**over)
    return dx.reshape(x.shape), dgamma.reshape(gamma.shape), dbeta.reshape(gamma.shape)
