"""Attention in JAX on one GPU: cuDNN's fused one, or what XLA makes of it.

JAX's stream can't be asked for: what is timed on the host is some calls in a row and the wait for
the last one.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.attention_data import CALLS_BETWEEN_EVENTS, attention_arrays
from benchmarks.harness import Task


def versions() -> dict[str, Any]:
    """Name what is measured."""
    return {"jax": jax.__version__}


class Attention(Task):
    """``jax.nn.dot_product_attention``, compiled; heads follow the places, as JAX has them."""

    def __init__(self, case: dict[str, Any]) -> None:
        arrays = attention_arrays(case)
        dtype = jnp.dtype(case["dtype"])
        moved = [jnp.asarray(a.swapaxes(1, 2)).astype(dtype) for a in arrays.values()]
        self.operands = moved if case["training"] else moved[:3]

        def forward(query: Any, key: Any, value: Any) -> Any:
            return jax.nn.dot_product_attention(
                query,
                key,
                value,
                is_causal=case["is_causal"],
                implementation=case["implementation"],
            )

        def training(query: Any, key: Any, value: Any, gout: Any) -> Any:
            out, pull = jax.vjp(forward, query, key, value)
            return (out, *pull(gout))

        self.training = case["training"]
        self.function = jax.jit(training if self.training else forward)
        jax.block_until_ready(self.function(*self.operands))

    def times(self, calls: int) -> list[float]:
        """The seconds of a call, each a mean over some in a row."""
        seconds = []
        for _ in range(calls):
            start = time.perf_counter()
            for _ in range(CALLS_BETWEEN_EVENTS):
                result = self.function(*self.operands)
            jax.block_until_ready(result)
            seconds.append((time.perf_counter() - start) / CALLS_BETWEEN_EVENTS)
        return seconds

    def results(self) -> dict[str, np.ndarray]:
        found = self.function(*self.operands)
        arrays = found if self.training else (found,)
        names = ("out", "dquery", "dkey", "dvalue")
        return {
            name: np.asarray(x.astype("float32")).swapaxes(1, 2)
            for name, x in zip(names, arrays, strict=False)
        }


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/attention.py``."""
    return Attention(case)
