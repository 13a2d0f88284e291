"""Elementwise layers, reductions and layers that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt

from dnnops import nnet
from tests.networks.layers import Graph, Rng, layer

_ANY = (2, 3, 4, 5)

_ACTIVATIONS: dict[str, Any] = {
    "relu": nnet.relu,
    "maximum": lambda x: pt.maximum(x, 0),
    "switch": lambda x: pt.switch(x > 0, x, x / 8),
    "leaky relu": lambda x: nnet.relu(x, 0.1),
    "abs": abs,
    "tanh": pt.tanh,
    "sigmoid": pt.sigmoid,
    "nnet.sigmoid": nnet.sigmoid,
    "elu": nnet.elu,
    "selu": nnet.selu,
    "swish": nnet.swish,
    "softplus": pt.softplus,
    "softsign": nnet.softsign,
    "clipped relu": lambda x: nnet.clipped_relu(x, 1.0),
    "exp": lambda x: pt.exp(-(x**2)),
    "erf": pt.erf,
    "sqrt": lambda x: pt.sqrt(x**2 + 1),
    "log": lambda x: pt.log(x**2 + 1),
    "divide": lambda x: x / (x**2 + 1),
    "sin": pt.sin,
    "clip": lambda x: pt.clip(x, -1, 1),
}


@layer(*_ANY, weight=5)
def activation(g: Graph, rng: Rng, x: Any) -> Any:
    """An elementwise function."""
    name = str(rng.choice(sorted(_ACTIVATIONS)))
    g.say(name)
    return _ACTIVATIONS[name](x)


@layer(*_ANY, operands=2, weight=5)
def binary(g: Graph, rng: Rng, x: Any, y: Any) -> Any:
    """A sum, a difference, a product or a maximum with another variable, such as a residual."""
    if g.shape(x) != g.shape(y):
        y = g.parameter(*(n if rng.random() < 0.6 else 1 for n in g.shape(x)))
        y = pt.as_tensor_variable(y)
        g.say("parameter")
    kind = rng.integers(6)
    g.say(("sum", "sum", "sum, relu", "difference", "product", "maximum")[kind])
    if kind < 3:
        return nnet.relu(x + y) if kind == 2 else x + y
    return (x - y, x * y, pt.maximum(x, y))[kind - 3]


@layer(*_ANY)
def noise(g: Graph, rng: Rng, x: Any) -> Any:
    """Random numbers, added."""
    return x + g.normal(x) / 8


@layer(*_ANY, weight=1.5)
def affine(g: Graph, rng: Rng, x: Any) -> Any:
    """A scale and a bias of one axis."""
    axis = int(rng.integers(x.type.ndim))
    pattern = [0 if i == axis else "x" for i in range(x.type.ndim)]
    size = g.shape(x)[axis]
    scale, bias = (g.parameter(size, value=1.0, scale=0.3), g.parameter(size))
    g.say(f"axis {axis}")
    return x * scale.dimshuffle(pattern) + bias.dimshuffle(pattern)


@layer(2, 3, 4, 5, operands=2, weight=2)
def concatenation(g: Graph, rng: Rng, x: Any, y: Any) -> Any:
    """With another variable along an axis, or with itself."""
    a, b = g.shape(x), g.shape(y)
    fits = [
        axis
        for axis in range(len(a))
        if len(a) == len(b) and a[:axis] + a[axis + 1 :] == b[:axis] + b[axis + 1 :]
    ]
    if fits:
        axis = int(rng.choice(fits))
        g.say(f"axis {axis}")
        return pt.concatenate([x, y], axis=axis)
    axis = int(rng.integers(len(a)))
    g.say(f"axis {axis}, with itself")
    return pt.concatenate([x, pt.tanh(x)], axis=axis)


@layer(*_ANY, weight=2)
def slicing(g: Graph, rng: Rng, x: Any) -> Any:
    """Slices with bounds and steps of any sign."""
    slices = []
    for size in g.shape(x):
        start, stop = sorted(rng.integers(0, size + 1, 2))
        step = int(rng.choice([1, 1, 2, -1]))
        if start == stop or rng.random() < 0.5:
            slices.append(slice(None, None, step if rng.random() < 0.3 else None))
        else:
            first, last = (stop - 1, start - 1) if step < 0 else (start, stop)
            slices.append(slice(int(first), None if last < 0 else int(last), step))
    g.say(str(slices).replace("slice", ""))
    return x[tuple(slices)]


@layer(*_ANY, weight=2)
def transposition(g: Graph, rng: Rng, x: Any) -> Any:
    """Of any axes."""
    axes = [int(axis) for axis in rng.permutation(x.type.ndim)]
    g.say(str(axes))
    return x.dimshuffle(axes)


@layer(*_ANY, weight=3)
def reshaping(g: Graph, rng: Rng, x: Any) -> Any:
    """To another rank: merges neighboring axes or splits the last; or any factors."""
    shape = list(g.shape(x))
    if len(shape) == 5 or (len(shape) > 2 and rng.integers(2)):
        axis = int(rng.integers(len(shape) - 1))
        shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    else:
        axis = int(rng.integers(len(shape)))
        n = shape[axis]
        factor = int(rng.choice([i for i in range(1, n + 1) if n % i == 0]))
        shape[axis : axis + 1] = [factor, n // factor]
    if rng.integers(2):
        shape[int(rng.integers(len(shape)))] = -1
    g.say(str(shape))
    return x.reshape(shape)


@layer(3, 4, 5, weight=2)
def reduction(g: Graph, rng: Rng, x: Any) -> Any:
    """Over some axes."""
    name = ("sum", "mean", "max", "var", "norm", "logsumexp")[rng.integers(6)]
    count = int(rng.integers(1, x.type.ndim - 1))
    axes = tuple(int(i) for i in sorted(rng.choice(x.type.ndim, count, replace=False)))
    g.say(f"{name} {axes}")
    size = float(np.prod([g.shape(x)[i] for i in axes]))
    if name == "sum":
        return x.sum(axis=axes) / g.constant(size**0.5)
    if name == "norm":
        return pt.sqrt((x**2).sum(axis=axes) + g.constant(0.1))
    if name == "logsumexp":
        return pt.logsumexp(x, axis=axes)
    return getattr(x, name)(axis=axes)


@layer(2, 3, 4, 5, weight=0.7)
def padding(g: Graph, rng: Rng, x: Any) -> Any:
    """With zeros at both ends of each axis, by setting a part of an array of zeros."""
    width = int(rng.integers(1, 3))
    shape = [n + 2 * width for n in g.shape(x)[-1:]]
    zeros = pt.zeros((*g.shape(x)[:-1], *shape), dtype=g.dtype)
    g.say(str(width))
    return pt.set_subtensor(zeros[..., width:-width], x)
