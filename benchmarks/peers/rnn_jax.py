"""Training steps of recurrent networks in JAX, as scans over the steps."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.harness import Task
from benchmarks.rnn_data import COMPARED_STEP, LEARNING_RATE, compared, parameter_shapes, rnn_arrays

__all__ = ["make_task", "versions"]

# Like dnnops, compute float32 without TF32.
jax.config.update("jax_default_matmul_precision", "highest")


def versions() -> dict[str, Any]:
    """Return the versions of what is measured."""
    return {"jax": jax.__version__}


def _split(w: Any, shapes: list[tuple[int, ...]]) -> list[Any]:
    parts, begin = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        parts.append(w[begin : begin + size].reshape(shape))
        begin += size
    return parts


def _lstm(state: Any, pre: Any, r: Any, d: Any) -> tuple[Any, Any]:
    h, c = state
    i, f, g, o = jnp.split(pre + h @ r.T + d, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def _gru(state: Any, pre: Any, r: Any, d: Any) -> tuple[Any, Any]:
    (h,) = state
    pre_r, pre_i, pre_n = jnp.split(pre, 3, axis=-1)
    rec_r, rec_i, rec_n = jnp.split(h @ r.T + d, 3, axis=-1)
    i = jax.nn.sigmoid(pre_i + rec_i)
    n = jnp.tanh(pre_n + jax.nn.sigmoid(pre_r + rec_r) * rec_n)
    h = (1 - i) * n + i * h
    return (h,), h


class Step(Task):
    """A step: forward, gradients with respect to parameters and input, and the update."""

    def __init__(self, case: dict[str, Any]) -> None:
        arrays = rnn_arrays(case)
        self.w, self.x, self.gy = (jnp.asarray(a, case["dtype"]) for a in arrays)
        shapes = parameter_shapes(case)
        layers, lstm = case["layers"], case["mode"] == "lstm"
        cell = _lstm if lstm else _gru
        start = jnp.zeros((case["batch"], case["hidden"]), case["dtype"])

        def forward(w: Any, x: Any) -> Any:
            parts = _split(w, shapes)
            matrices, biases = parts[: 2 * layers], parts[2 * layers :]
            for n in range(layers):
                # The input's contribution to all steps at once.
                pre = x @ matrices[2 * n].T + biases[2 * n]
                r, d = matrices[2 * n + 1], biases[2 * n + 1]
                state = (start, start) if lstm else (start,)
                _, x = lax.scan(lambda s, p, r=r, d=d: cell(s, p, r, d), state, pre)
            return x

        def step(w: Any, x: Any, gy: Any) -> Any:
            y, back = jax.vjp(forward, w, x)
            gw, gx = back(gy)
            return w - jnp.asarray(LEARNING_RATE, w.dtype) * gw, y, gx

        self.step = jax.jit(step, donate_argnums=0).lower(self.w, self.x, self.gy).compile()

    def _run(self) -> tuple[Any, Any]:
        self.w, y, gx = self.step(self.w, self.x, self.gy)
        return y, gx

    def times(self, calls: int) -> list[float]:
        """Return the host's seconds per step: a mean over steps that do not wait for each other."""
        start = time.perf_counter()
        for _ in range(calls):
            results = self._run()
        jax.block_until_ready((results, self.w))
        return [(time.perf_counter() - start) / calls] * calls

    def results(self) -> dict[str, np.ndarray]:
        before = np.array(self.w[::COMPARED_STEP])
        y, gx = self._run()
        return compared(before, np.asarray(self.w[::COMPARED_STEP]), y, gx)

    def close(self) -> None:
        """Release the arrays."""
        del self.w, self.x, self.gy, self.step


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/rnn.py``."""
    return Step(case)
