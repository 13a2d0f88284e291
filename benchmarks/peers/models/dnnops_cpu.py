"""Training steps of whole networks in dnnops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from benchmarks import model_zoo
from benchmarks.harness import Task
from benchmarks.peers import dnnops_cpu
from benchmarks.peers.dnnops_cpu import versions
from benchmarks.peers.graphs import library_ops
from dnnops import nnet
from dnnops.dtypes import numpy_dtype

__all__ = [
    "DnnopsLayers",
    "InferenceLayers",
    "batch_types",
    "make_task",
    "optimizer_updates",
    "training_step",
    "versions",
]

Updates = list[tuple[Any, Any]]


class DnnopsLayers(model_zoo.Layers):
    """The layers as a user of `dnnops.nnet` writes them.

    Parameters
    ----------
    shared : callable
        Makes shared variables: `pytensor.shared`, or `dnnops.gpuarray.shared` for the GPU.
    """

    def __init__(self, shared: Callable[..., Any] = pytensor.shared) -> None:
        self.shared = shared
        self.values = model_zoo.Parameters()
        self.parameters: list[Any] = []
        self.updates: Updates = []

    def parameter(self, *shape: int, scale: float = 0.0, value: float = 0.0) -> Any:
        return self._shared(self.values.draw(shape, scale, value))

    def _shared(self, value: np.ndarray) -> Any:
        self.parameters.append(self.shared(value, shape=value.shape))
        return self.parameters[-1]

    def conv(self, x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
        return nnet.conv2d(
            x,
            w,
            border_mode="half",
            subsample=(stride, stride),
            filter_flip=False,
            num_groups=groups,
        )

    def conv_bias(self, x: Any, w: Any, b: Any) -> Any:
        return self.conv(x, w) + b.dimshuffle("x", 0, "x", "x")

    def conv_transpose(self, x: Any, w: Any) -> Any:
        shape = (None, None, 2 * x.shape[2], 2 * x.shape[3])
        return nnet.conv2d_transpose(x, w, shape, input_dilation=(2, 2), filter_flip=False)

    def batch_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        channels = gamma.type.shape[0]
        mean, variance = (
            self.shared(np.full(channels, value, "float32"), shape=(channels,)) for value in (0, 1)
        )
        out, _, _, new_mean, new_variance = nnet.batch_normalization_train(
            x,
            gamma,
            beta,
            axes="spatial",
            epsilon=model_zoo.EPSILON,
            running_mean=mean,
            running_var=variance,
        )
        self.updates += [(mean, new_mean), (variance, new_variance)]
        return out

    def layer_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        centered = x - x.mean(axis=-1, keepdims=True)
        variance = (centered**2).mean(axis=-1, keepdims=True)
        return centered / pt.sqrt(variance + np.float32(model_zoo.EPSILON)) * gamma + beta

    def relu(self, x: Any) -> Any:
        return nnet.relu(x)

    def max_pool(self, x: Any, size: int, stride: int, pad: int) -> Any:
        return nnet.pool_2d(
            x, (size, size), stride=(stride, stride), pad=(pad, pad), ignore_border=True
        )

    def spatial_mean(self, x: Any) -> Any:
        return x.mean(axis=(2, 3))

    def flatten(self, x: Any) -> Any:
        return x.flatten(2)

    def concatenate(self, x: Any, y: Any) -> Any:
        return pt.concatenate([x, y], axis=1)

    def dense(self, x: Any, w: Any, b: Any) -> Any:
        return x @ w + b

    def embed(self, table: Any, tokens: Any) -> Any:
        return table[tokens]

    def lstm(self, x: Any, size: int, layers: int) -> Any:
        block = nnet.RNNBlock(x.type.dtype, size, layers, "lstm", batch_first=True)
        bound = (3 * size) ** -0.5
        # As in PyTorch, matrices of all layers come first, then biases.
        shapes = [(4 * size, size)] * (2 * layers) + [(4 * size,)] * (2 * layers)
        pieces = [self.values.draw(shape, bound, 0.0).ravel() for shape in shapes]
        start = pt.zeros((layers, x.shape[0], size), dtype=x.type.dtype)
        return block.apply(self._shared(np.concatenate(pieces)), x, start, start)[0]

    def causal_attention(self, q: Any, k: Any, v: Any, heads: int) -> Any:
        batch, steps, width = q.shape
        split = [
            z.reshape((batch, steps, heads, width // heads)).transpose(0, 2, 1, 3)
            for z in (q, k, v)
        ]
        out = nnet.scaled_dot_product_attention(*split, is_causal=True)
        return out.transpose(0, 2, 1, 3).reshape((batch, steps, width))

    def cross_entropy(self, scores: Any, labels: Any) -> Any:
        rows = scores.reshape((-1, scores.shape[-1])) if scores.ndim > 2 else scores
        return nnet.cross_entropy(rows, labels.flatten()).mean()


class InferenceLayers(DnnopsLayers):
    """The layers in inference, with the scores in place of the loss.

    Parameters
    ----------
    shared : callable
        See `DnnopsLayers`.
    dtype : str
        Type of filters and matrices, as the other libraries have it in inference.
    """

    def __init__(
        self, shared: Callable[..., Any] = pytensor.shared, dtype: str = "float32"
    ) -> None:
        super().__init__(shared)
        self.dtype = numpy_dtype(dtype)

    def _shared(self, value: np.ndarray) -> Any:
        return super()._shared(value.astype(self.dtype) if value.ndim > 1 else value)

    def batch_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        channels = gamma.type.shape[0]
        mean, variance = (
            self.shared(value, shape=value.shape) for value in self.values.draw_averages(channels)
        )
        return nnet.batch_normalization_test(
            x, gamma, beta, mean, variance, axes="spatial", epsilon=model_zoo.EPSILON
        )

    def cross_entropy(self, scores: Any, labels: Any) -> Any:
        return scores


def _zeros_like(parameter: Any, shared: Callable[..., Any]) -> Any:
    shape = parameter.type.shape
    return shared(np.zeros(shape, "float32"), shape=shape)


def sgd(parameter: Any, gradient: Any, shared: Callable[..., Any]) -> Updates:
    """Return the updates of gradient descent with momentum."""
    velocity = _zeros_like(parameter, shared)
    new = np.float32(model_zoo.MOMENTUM) * velocity + gradient
    return [(velocity, new), (parameter, parameter - np.float32(model_zoo.RATES["sgd"]) * new)]


def adam(parameter: Any, gradient: Any, step: Any, shared: Callable[..., Any]) -> Updates:
    """Return the updates of Adam."""
    first, second, epsilon = map(np.float32, model_zoo.ADAM)
    mean, square = (_zeros_like(parameter, shared) for _ in range(2))
    new_mean = first * mean + (1 - first) * gradient
    new_square = second * square + (1 - second) * gradient**2
    rate = np.float32(model_zoo.RATES["adam"]) / (1 - first**step)
    change = rate * new_mean / (pt.sqrt(new_square / (1 - second**step)) + epsilon)
    return [(mean, new_mean), (square, new_square), (parameter, parameter - change)]


def optimizer_updates(
    optimizer: str,
    parameters: list[Any],
    gradients: list[Any],
    step: Any,
    shared: Callable[..., Any],
) -> Updates:
    """Return the updates of all parameters, and of the optimizer's state.

    Parameters
    ----------
    optimizer : {'sgd', 'adam'}
        Optimizer.
    parameters, gradients : list of Variable
        Parameters and their gradients.
    step : Variable
        Number of earlier steps, which only Adam reads and updates.
    shared : callable
        Makes shared variables, as `pytensor.shared` does.
    """
    pairs = list(zip(parameters, gradients, strict=True))
    if optimizer == "sgd":
        return [update for p, gradient in pairs for update in sgd(p, gradient, shared)]
    number = step + np.float32(1)
    updates: Updates = [(step, number)]
    for p, gradient in pairs:
        updates += adam(p, gradient, number, shared)
    return updates


def batch_types(name: str, sizes: dict[str, int]) -> list[tuple[str, tuple[int | None, ...]]]:
    """Return dtype and static shape of a network's inputs and labels."""
    kind = model_zoo.MODELS[name].kind
    shapes = {
        "images": (None, 3, sizes.get("size"), sizes.get("size")),
        "tokens": (None, sizes.get("steps")),
        "vectors": (None, sizes.get("width")),
    }
    dtype = "int64" if kind == "tokens" else "float32"
    return [(dtype, shapes[kind]), ("int64", (None,) * (2 if kind == "tokens" else 1))]


def training_step(
    name: str,
    sizes: dict[str, int],
    tensor: Callable[..., Any] = pt.tensor,
    shared: Callable[..., Any] = pytensor.shared,
) -> tuple[list[Any], Any, Updates]:
    """Build a training step.

    Parameters
    ----------
    name : str
        Name of the network.
    sizes : dict
        Sizes of the network.
    tensor : callable
        Makes the inputs, as `pytensor.tensor.tensor` does.
    shared : callable
        Makes shared variables, as `pytensor.shared` does.

    Returns
    -------
    inputs : list of Variable
        Inputs and labels.
    loss : Variable
        Mean loss.
    updates : list
        New values of parameters, optimizer's state and running averages.
    """
    model, layers = model_zoo.MODELS[name], DnnopsLayers(shared)
    types = batch_types(name, sizes)
    x, y = (
        tensor(n, dtype=dtype, shape=shape) for n, (dtype, shape) in zip("xy", types, strict=True)
    )
    loss = model.loss(layers, sizes, x, y)
    gradients = pytensor.grad(loss, layers.parameters)
    step = pytensor.shared(np.float32(0))
    updates = layers.updates + optimizer_updates(
        model.optimizer, layers.parameters, gradients, step, shared
    )
    return [x, y], loss, updates


class Training(dnnops_cpu.Training):
    """A training step."""

    def __init__(self, case: dict[str, Any]) -> None:
        sizes = case["sizes"]
        self.batch = model_zoo.model_batch(model_zoo.MODELS[case["model"]], sizes)
        inputs, loss, updates = training_step(case["model"], sizes)
        self.step = pytensor.function(inputs, loss, updates=updates, mode="DNN")
        if case["model"] != "mlp":
            library_ops(self.step, "OneDnn")


def make_task(case: dict[str, Any]) -> Task:
    """Prepare a case of the benchmark of models."""
    return Training(case)
