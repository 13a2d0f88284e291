"""Gradients of activations."""

from __future__ import annotations

from typing import Any

__all__ = ["activation_gradient"]


def activation_gradient(lib: Any, op: Any, x: Any, y: Any, gy: Any) -> tuple[Any]:
    """Compute the results of `ActivationGrad`."""
    coef, mode = op.coef, op.mode
    if mode == "relu":
        return (lib.where(x <= 0, 0.0, gy),)
    if mode == "clipped_relu":
        return (lib.where((x <= 0) | (x >= coef), 0.0, gy),)
    if mode == "tanh":
        return (gy * (1 - y * y),)
    if mode == "sigmoid":
        return (gy * (y * (1 - y)),)
    if mode == "elu":
        return (lib.where(x > 0, gy, gy * (y + coef)),)
    s = lib.sigmoid(coef * x)
    return (gy * (s * (1 + coef * x * (1 - s))),)
