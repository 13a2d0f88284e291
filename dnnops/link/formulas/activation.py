"""Gradients of activations."""

from __future__ import annotations

from typing import Any

from dnnops.nnet.activation.op import SWISH_BOUNDS

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
        return (lib.where(x > 0, gy, gy * coef * lib.exp(lib.where(x > 0, 0.0, x))),)
    bound = SWISH_BOUNDS[str(x.dtype).removeprefix("torch.")]
    scaled = lib.clip(coef * x, -bound, bound)
    return (gy * (lib.sigmoid(scaled) * (1 + scaled * lib.sigmoid(-scaled))),)
