"""Batch normalization on a GPU in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.harness import Task
from benchmarks.norm_data import EPSILON
from benchmarks.peers.conv_jax import sketch, values
from benchmarks.peers.gated_jax import ChainTask, compiled_chain, make_timer_known
from benchmarks.peers.norm_turns import CALLS, SEEDS, NormTask

__all__ = ["make_task", "versions"]


def versions() -> dict[str, Any]:
    """Return the versions of what is measured."""
    return {"jax": jax.__version__}


class Normalization(NormTask, ChainTask):
    """Batch normalization and its gradients, with sums in float32."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case)
        make_timer_known(case["timer"], "cuda")
        self.channel_axis = len(self.shape) - 1 if self.is_channels_last else 1
        self.axes = tuple(i for i in range(len(self.shape)) if i != self.channel_axis)
        self.parameter_shape = tuple(
            self.channels if i == self.channel_axis else 1 for i in range(len(self.shape))
        )
        self.operands = [
            *(self._made(name, self.physical_shape, self.dtype) for name in ("x", "top")),
            *(self._made(name, (self.channels,), "float32") for name in ("gamma", "beta")),
        ]
        self.single = jax.jit(self._trained).lower(*self.operands).compile()
        self.chain = compiled_chain(self._trained, self.operands, CALLS)
        self.warm()

    @staticmethod
    def _made(name: str, shape: tuple[int, ...], dtype: str) -> Any:
        return values(shape, np.uint32(SEEDS[name]), np.float32(1), dtype)

    def _normalized(self, x: Any, gamma: Any, beta: Any) -> Any:
        wide = x.astype("float32")
        mean = wide.mean(axis=self.axes, keepdims=True)
        var = jnp.square(wide - mean).mean(axis=self.axes, keepdims=True)
        scale, bias = (p.reshape(self.parameter_shape) for p in (gamma, beta))
        return ((wide - mean) * (lax.rsqrt(var + EPSILON) * scale) + bias).astype(x.dtype)

    def _trained(self, x: Any, top: Any, gamma: Any, beta: Any) -> tuple[Any, ...]:
        out, pullback = jax.vjp(self._normalized, x, gamma, beta)
        return (out, *pullback(top))

    def results(self) -> dict[str, np.ndarray]:
        out, dx, dgamma, dbeta = self.single(*self.operands)
        return {
            "out": np.asarray(sketch(out)),
            "dx": np.asarray(sketch(dx)),
            "dgamma": np.asarray(dgamma),
            "dbeta": np.asarray(dbeta),
        }


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/norm.py`` on a GPU."""
    return Normalization(case)
