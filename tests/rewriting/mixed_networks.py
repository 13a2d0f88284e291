"""Training steps of small networks, for the tests of mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

from dnnops import nnet

__all__ = ["NETWORKS", "STEPS", "Network", "batches", "start", "step"]

#: Steps of a training run, and its parameters.
STEPS, BATCH, RATE, MOMENTUM = 20, 16, 0.01, 0.9


class Network(NamedTuple):
    """A network.

    Attributes
    ----------
    scores : callable
        Takes the input and the parameters; returns scores of 4 classes.
    shape : tuple of int
        Shape of the input, without the batch.
    parameters : tuple of tuple of int
        Shapes of the parameters. Vectors start as ones, others with random numbers.
    """

    scores: Callable[..., Any]
    shape: tuple[int, ...]
    parameters: tuple[tuple[int, ...], ...]


def _mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return nnet.relu(x @ w1 + b1) @ w2 + b2


def _conv_net(x: Any, w1: Any, g1: Any, b1: Any, w2: Any, g2: Any, b2: Any, v: Any) -> Any:
    """Two convolutions with batch normalization, a residual sum and pooling."""

    def block(x: Any, w: Any, gamma: Any, beta: Any) -> Any:
        z = nnet.conv2d(x, w, border_mode="half", filter_flip=False)
        return nnet.batch_normalization_train(z, gamma, beta, axes="spatial")[0]

    z = nnet.relu(block(x, w1, g1, b1))
    z = nnet.relu(block(z, w2, g2, b2) + z)
    z = nnet.pool_2d(z, (2, 2), ignore_border=True)
    return z.mean(axis=(2, 3)) @ v


def _attention(x: Any, w: Any, v: Any) -> Any:
    """Self-attention with one product for query, key and value."""
    batch, steps = x.shape[0], x.type.shape[1]
    z = (x @ w).reshape((batch, steps, 3, 2, 8))
    q, k, values = (z[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    out = nnet.scaled_dot_product_attention(q, k, values)
    out = out.transpose(0, 2, 1, 3).reshape((batch, steps, 16))
    return (out + x).mean(axis=1) @ v


NETWORKS: dict[str, Network] = {
    "mlp": Network(_mlp, (16,), ((16, 32), (32,), (32, 4), (4,))),
    "conv net": Network(
        _conv_net,
        (3, 6, 6),
        ((8, 3, 3, 3), (8,), (8,), (8, 8, 3, 3), (8,), (8,), (8, 4)),
    ),
    "attention": Network(_attention, (6, 16), ((16, 48), (16, 4))),
}


def start(network: Network) -> list[np.ndarray]:
    """Return the first values of the parameters, which bfloat16 numbers can express."""
    rng = np.random.default_rng(7)
    values = []
    for shape in network.parameters:
        if len(shape) == 1:
            values.append(np.ones(shape))
            continue
        fan_in = np.prod(shape) // (shape[0] if len(shape) == 4 else shape[-1])
        values.append(np.round(rng.standard_normal(shape) / fan_in**0.5 * 64) / 64)
    return values


def batches(network: Network, count: int = STEPS) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return inputs and labels, which depend on the inputs."""
    rng = np.random.default_rng(8)
    found = []
    for _ in range(count):
        x = np.round(rng.standard_normal((BATCH, *network.shape)) * 16) / 16
        flat = x.reshape(BATCH, -1)
        found.append(
            (x, np.argmax(flat[:, : 4 * (flat.shape[1] // 4)].reshape(BATCH, 4, -1).sum(2), 1))
        )
    return found


def step(network: Network, dtype: str, scale: float = 1.0) -> tuple[list[Any], list[Any]]:
    """Build a training step with momentum as a function of all that it reads.

    Parameters
    ----------
    network : Network
    dtype : str
        Dtype of the graph.
    scale : float
        Scale of the loss where it is differentiated.

    Returns
    -------
    inputs : list of TensorVariable
        Input, labels, parameters and velocities.
    outputs : list of TensorVariable
        Loss, new parameters and new velocities.
    """
    x = pt.tensor("x", dtype=dtype, shape=(None, *network.shape))
    y = pt.lvector("y")
    parameters = [pt.tensor(dtype=dtype, shape=shape) for shape in network.parameters]
    velocities = [p.type() for p in parameters]
    loss = nnet.cross_entropy(network.scores(x, *parameters), y).mean()
    gradients = pytensor.grad(loss * np.asarray(scale, dtype), parameters)
    rate, momentum = (np.asarray(number, dtype) for number in (RATE / scale, MOMENTUM))
    moved = [momentum * v - rate * g for v, g in zip(velocities, gradients, strict=True)]
    new = [p + v for p, v in zip(parameters, moved, strict=True)]
    return [x, y, *parameters, *velocities], [loss, *new, *moved]
