"""Training steps and inference of whole networks in JAX, each compiled as one function.

Images are NHWC and filters OHWI, the formats that cuDNN prefers.
"""

from __future__ import annotations

import contextlib
import gc
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import model_zoo
from benchmarks.harness import Task
from benchmarks.peers.models.step import ModelTask

__all__ = ["make_task", "versions"]

#: JAX's words for the precision of float32 products and convolutions.
PRECISIONS = {"float32": "highest", "tf32": "tensorfloat32"}
#: Weight of a batch in the running averages.
AVERAGED = 0.1


def versions() -> dict[str, Any]:
    """Return the versions of what is measured."""
    return {"jax": jax.__version__}


class JaxLayers(model_zoo.Layers):
    """The layers in JAX, with the parameters of the first pass.

    Parameters
    ----------
    dtype : str
        Type to compute in. Parameters are float32, and cast where they are used.
    trains : bool
        Whether batch normalization uses the batch, and the network ends with its loss.
    attention : {'cudnn', 'xla'}
        Implementation of attention.
    """

    def __init__(self, dtype: str, trains: bool, attention: str) -> None:
        self.dtype, self.trains, self.attention = dtype, trains, attention
        self.values = model_zoo.Parameters()
        self.initial: dict[str, list[Any]] = {"parameter": [], "average": []}
        self.makes = True
        self.begin(self.initial)

    def begin(self, held: dict[str, list[Any]]) -> None:
        """Begin a pass with these parameters and averages."""
        self.held = held
        self.new_averages: list[Any] = []
        self._next = {"parameter": 0, "average": 0}

    def _taken(self, kind: str, make: Any) -> Any:
        if self.makes:
            self.initial[kind].append(make())
        self._next[kind] += 1
        return jnp.asarray(self.held[kind][self._next[kind] - 1])

    def parameter(self, *shape: int, scale: float = 0.0, value: float = 0.0) -> Any:
        def make() -> np.ndarray:
            drawn = self.values.draw(shape, scale, value)
            return drawn.transpose(0, 2, 3, 1) if drawn.ndim == 4 else drawn

        taken = self._taken("parameter", make)
        # Vectors are cast where they are used, since normalizations need float32.
        return taken.astype(self.dtype) if taken.ndim > 1 else taken

    def conv(self, x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
        return lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            [(w.shape[1] // 2, w.shape[1] // 2)] * 2,
            dimension_numbers=("NHWC", "OHWI", "NHWC"),
            feature_group_count=groups,
        )

    def conv_bias(self, x: Any, w: Any, b: Any) -> Any:
        return self.conv(x, w) + b.astype(x.dtype)

    def conv_transpose(self, x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x,
            lax.rev(w, (1, 2)),
            (1, 1),
            [(1, 1)] * 2,
            lhs_dilation=(2, 2),
            dimension_numbers=("NHWC", "IHWO", "NHWC"),
        )

    def batch_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        if self.trains:
            drawn = np.zeros(gamma.shape, "float32"), np.ones(gamma.shape, "float32")
        else:
            drawn = self.values.draw_averages(len(gamma)) if self.makes else (None, None)
        old_mean, old_variance = (self._taken("average", lambda d=d: d) for d in drawn)
        wide = x.astype("float32")
        if self.trains:
            mean = wide.mean((0, 1, 2))
            variance = (wide**2).mean((0, 1, 2)) - mean**2
            for old, new in ((old_mean, mean), (old_variance, variance)):
                self.new_averages.append((1 - AVERAGED) * old + AVERAGED * lax.stop_gradient(new))
        else:
            mean, variance = old_mean, old_variance
        factor = gamma * lax.rsqrt(variance + model_zoo.EPSILON)
        return ((wide - mean) * factor + beta).astype(x.dtype)

    def layer_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        wide = x.astype("float32")
        centered = wide - wide.mean(-1, keepdims=True)
        variance = (centered**2).mean(-1, keepdims=True)
        out = centered * lax.rsqrt(variance + model_zoo.EPSILON) * gamma + beta
        return out.astype(x.dtype)

    def relu(self, x: Any) -> Any:
        return jax.nn.relu(x)

    def max_pool(self, x: Any, size: int, stride: int, pad: int) -> Any:
        padding = ((0, 0), (pad, pad), (pad, pad), (0, 0))
        return lax.reduce_window(
            x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), padding
        )

    def spatial_mean(self, x: Any) -> Any:
        return x.mean((1, 2))

    def flatten(self, x: Any) -> Any:
        return x.transpose(0, 3, 1, 2).reshape(len(x), -1)

    def concatenate(self, x: Any, y: Any) -> Any:
        return jnp.concatenate([x, y], -1)

    def dense(self, x: Any, w: Any, b: Any) -> Any:
        return x @ w + b.astype(x.dtype)

    def embed(self, table: Any, tokens: Any) -> Any:
        return table[tokens]

    def lstm(self, x: Any, size: int, layers: int) -> Any:
        bound = (3 * size) ** -0.5
        # As in PyTorch, matrices of all layers come first, then biases.
        matrices = [self.parameter(4 * size, size, scale=bound) for _ in range(2 * layers)]
        biases = [self.parameter(4 * size, scale=bound) for _ in range(2 * layers)]
        x = x.swapaxes(0, 1)
        start = jnp.zeros((x.shape[1], size), x.dtype)
        for n in range(layers):
            bias = (biases[2 * n] + biases[2 * n + 1]).astype(x.dtype)
            # The input's contribution to all steps at once.
            inputs = x @ matrices[2 * n].T + bias

            def cell(state: Any, entry: Any, w: Any = matrices[2 * n + 1]) -> tuple[Any, Any]:
                h, c = state
                i, f, g, o = jnp.split(entry + h @ w.T, 4, axis=-1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            _, x = lax.scan(cell, (start, start), inputs)
        return x.swapaxes(0, 1)

    def causal_attention(self, q: Any, k: Any, v: Any, heads: int) -> Any:
        batch, steps, width = q.shape
        split = (z.reshape(batch, steps, heads, width // heads) for z in (q, k, v))
        out = jax.nn.dot_product_attention(*split, is_causal=True, implementation=self.attention)
        return out.reshape(batch, steps, width)

    def cross_entropy(self, scores: Any, labels: Any) -> Any:
        if not self.trains:
            return scores
        chances = jax.nn.log_softmax(scores.astype("float32"))
        return -jnp.take_along_axis(chances, labels[..., None], -1).mean()


def _updated(
    kind: str, parameters: list[Any], gradients: list[Any], state: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return new parameters and the new state of an optimizer."""
    rate = model_zoo.RATES[kind]
    if kind == "sgd":
        velocity = [
            model_zoo.MOMENTUM * v + g for v, g in zip(state["velocity"], gradients, strict=True)
        ]
        new = [p - rate * v for p, v in zip(parameters, velocity, strict=True)]
        return new, {"velocity": velocity}
    first, second, epsilon = model_zoo.ADAM
    step = state["step"] + 1
    means = [first * m + (1 - first) * g for m, g in zip(state["mean"], gradients, strict=True)]
    squares = [
        second * s + (1 - second) * g**2 for s, g in zip(state["square"], gradients, strict=True)
    ]
    rate = rate / (1 - first**step)
    scale = 1 / (1 - second**step)
    new = [
        p - rate * m / (jnp.sqrt(s * scale) + epsilon)
        for p, m, s in zip(parameters, means, squares, strict=True)
    ]
    return new, {"step": step, "mean": means, "square": squares}


def _initial_state(kind: str, parameters: list[Any]) -> dict[str, Any]:
    if kind == "sgd":
        return {"velocity": [jnp.zeros_like(p) for p in parameters]}
    mean, square = ([jnp.zeros_like(p) for p in parameters] for _ in range(2))
    return {"step": jnp.float32(0), "mean": mean, "square": square}


class Step(ModelTask):
    """A training step with donated parameters, or inference."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case)
        precision = case["precision"]
        dtype = "float32" if precision in PRECISIONS else precision
        is_cudnn = self.on_gpu and precision not in PRECISIONS
        layers = JaxLayers(dtype, self.trains, "cudnn" if is_cudnn else "xla")
        x, y = self.batch
        if x.ndim == 4:
            x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        self.data = (
            jnp.asarray(x, dtype if x.dtype == "float32" else "int32"),
            jnp.asarray(y, "int32"),
        )
        # The first pass makes the parameters, and computes nothing.
        jax.eval_shape(lambda x, y: self.model.loss(layers, self.sizes, x, y), *self.data)
        layers.makes = False
        parameters = [jnp.asarray(p) for p in layers.initial["parameter"]]
        averages = [jnp.asarray(a) for a in layers.initial["average"]]
        if not self.trains:
            parameters = [p.astype(dtype) if p.ndim > 1 else p for p in parameters]
        layers.initial.clear()

        def forward(parameters: list[Any], averages: list[Any], x: Any, y: Any) -> Any:
            layers.begin({"parameter": parameters, "average": averages})
            return self.model.loss(layers, self.sizes, x, y), layers.new_averages

        def train(held: Any, x: Any, y: Any) -> Any:
            parameters, averages, state = held
            (loss, averages), gradients = jax.value_and_grad(forward, has_aux=True)(
                parameters, averages, x, y
            )
            parameters, state = _updated(self.model.optimizer, parameters, gradients, state)
            return (parameters, averages, state), loss

        def infer(held: Any, x: Any, y: Any) -> Any:
            return forward(*held, x, y)[0]

        if self.trains:
            state = _initial_state(self.model.optimizer, parameters)
            self.held: tuple[Any, ...] = (parameters, averages, state)
        else:
            self.held = (parameters, averages)
        self.function = jax.jit(train, donate_argnums=0) if self.trains else jax.jit(infer)

    def compile(self) -> None:
        word = PRECISIONS.get(self.case["precision"])
        with jax.default_matmul_precision(word) if word else contextlib.nullcontext():
            start = time.perf_counter()
            self.step = self.function.lower(self.held, *self.data).compile()
            self.compile_s = time.perf_counter() - start

    def run(self) -> Any:
        if not self.trains:
            self.result = self.step(self.held, *self.data)
        else:
            self.held, self.result = self.step(self.held, *self.data)
        return self.result

    def synchronize(self) -> None:
        jax.block_until_ready((self.held, self.result))

    def times(self, calls: int) -> list[float]:
        """Return the host's seconds per step: a mean over steps that do not wait for each other.

        JAX does not expose its stream to events. The first step is timed alone.
        """
        start = time.perf_counter()
        self.call()
        first = time.perf_counter() - start
        if calls == 1:
            return [first]
        start = time.perf_counter()
        for _ in range(calls - 1):
            self.run()
        self.synchronize()
        return [first] + [(time.perf_counter() - start) / (calls - 1)] * (calls - 1)

    def fetched(self, result: Any) -> np.ndarray:
        return np.asarray(result.astype("float32"))

    def peak_mib(self) -> float | None:
        """Return the memory that XLA has planned; the peak that it measures is never reset."""
        found = self.step.memory_analysis()
        if not self.on_gpu or found is None:
            return None
        kinds = ("argument", "output", "temp")
        planned = sum(getattr(found, f"{kind}_size_in_bytes") for kind in kinds)
        return (planned - found.alias_size_in_bytes) / 2**20

    def close(self) -> None:
        """Release the arrays. XLA keeps the memory as long as the process exists."""
        del self.function, self.step, self.held, self.data, self.result
        gc.collect()


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of ``benchmarks/models.py``."""
    return Step(case)
