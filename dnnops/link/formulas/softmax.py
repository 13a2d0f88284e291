"""Gradients of softmax and log-softmax."""

from __future__ import annotations

from typing import Any

__all__ = ["log_softmax_gradient", "softmax_gradient"]


def _sum(op: Any, x: Any) -> Any:
    axes = tuple(range(x.ndim)) if op.axis is None else op.axis
    return x.sum(axis=axes, keepdims=True)


def softmax_gradient(lib: Any, op: Any, gz: Any, sm: Any) -> tuple[Any]:
    """Compute the results of `SoftmaxGrad`."""
    return (sm * (gz - _sum(op, gz * sm)),)


def log_softmax_gradient(lib: Any, op: Any, gz: Any, logsm: Any) -> tuple[Any]:
    """Compute the results of `LogSoftmaxGrad`."""
    return (gz - lib.exp(logsm) * _sum(op, gz),)
