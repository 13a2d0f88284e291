"""Batch normalization: training, its gradient, and inference with given statistics."""

from __future__ import annotations

from math import prod
from typing import Any

from dnnops.errors import DnnValueError
from dnnops.link.formulas.variance import inverse_deviation

__all__ = ["batchnorm_gradient", "batchnorm_inference", "batchnorm_train"]


def _sum(op: Any, x: Any) -> Any:
    return x.sum(axis=op.axes, keepdims=True)


def _count(op: Any, x: Any) -> int:
    return max(prod([x.shape[axis] for axis in op.axes]), 1)


def batchnorm_train(lib: Any, op: Any, x: Any, scale: Any, bias: Any, *others: Any) -> tuple:
    """Compute the results of `BatchNormTrain`."""
    epsilon, *running = others
    if 0 in [x.shape[axis] for axis in op.axes]:
        raise DnnValueError(f"{op}: there are no elements to compute statistics of")
    count = _count(op, x)
    mean = _sum(op, x) / count
    centered = x - mean
    # Correct the mean for its rounding error, whose square would otherwise enter the variance.
    rest = _sum(op, centered) / count
    mean, centered = mean + rest, centered - rest
    invstd = inverse_deviation(lib, centered, lambda a: _sum(op, a) / count, op.axes, epsilon)
    results = [centered * (invstd * scale) + bias, mean, invstd]
    if running:
        factor, running_mean, running_var = running
        var = _sum(op, centered * centered) / count
        unbiased = var * (count / max(count - 1, 1))
        results.append(running_mean * (1 - factor) + mean * factor)
        results.append(running_var * (1 - factor) + unbiased * factor)
    return tuple(results)


def batchnorm_gradient(lib: Any, op: Any, *operands: Any) -> tuple:
    """Compute the results of `BatchNormTrainGrad`."""
    x, gout, scale, mean, invstd = operands
    count = _count(op, x)
    centered = x - mean
    normalized = (centered - _sum(op, centered) / count) * invstd
    dbias = _sum(op, gout)
    dscale = _sum(op, gout * normalized)
    dx = (gout - dbias / count - normalized * (dscale / count)) * (scale * invstd)
    return dx, dscale, dbias


def batchnorm_inference(lib: Any, op: Any, *operands: Any) -> tuple[Any]:
    """Compute the results of `BatchNormInference`."""
    x, scale, bias, mean, var, epsilon = operands
    return ((x - mean) * (scale / lib.sqrt(var + epsilon)) + bias,)
