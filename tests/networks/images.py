"""Layers on images: convolution, pooling, normalization."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnops import nnet
from dnnops.nnet.conv.geometry import resolve_padding
from tests.networks.layers import Graph, Rng, layer

_CONVOLUTIONS = {1: nnet.conv1d, 2: nnet.conv2d, 3: nnet.conv3d}
_TRANSPOSED = {2: nnet.conv2d_transpose, 3: nnet.conv3d_transpose}


def _window(rng: Rng, ndim: int, largest: int = 3) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, largest + 1, ndim))


def _groups(rng: Rng, channels: int) -> int:
    return int(rng.choice([n for n in range(1, channels + 1) if channels % n == 0]))


def _border(rng: Rng, ndim: int) -> Any:
    kind = rng.integers(5)
    if kind < 3:
        return ("valid", "half", "full")[kind]
    if kind == 3:
        return tuple(int(n) for n in rng.integers(0, 3, ndim))
    return tuple((int(a), int(b)) for a, b in rng.integers(0, 3, (ndim, 2)))


@layer(3, 4, 5, weight=6)
def convolution(g: Graph, rng: Rng, x: Any) -> Any:
    """Any rank, groups, stride, dilation and padding; often a bias and an activation after it."""
    _, channels, *size = g.shape(x)
    ndim, groups = len(size), _groups(rng, channels) if rng.random() < 0.4 else 1
    kernel = _window(rng, ndim)
    plain = rng.random() < 0.4
    stride = (1,) * ndim if plain else _window(rng, ndim, 2)
    dilation = (1,) * ndim if plain or rng.random() < 0.5 else _window(rng, ndim, 2)
    border = "half" if plain else _border(rng, ndim)
    pads = resolve_padding(border, kernel, dilation)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if any(n + sum(p) < r for n, p, r in zip(size, pads, reach, strict=True)):
        return None
    outputs = groups * int(rng.choice([1, 2, 3, 4, 8]))
    flip = bool(rng.integers(2))
    inputs = channels // groups
    w = g.parameter(outputs, inputs, *kernel, scale=(inputs * np.prod(kernel)) ** -0.5)
    z = _CONVOLUTIONS[ndim](
        x,
        w,
        border_mode=border,
        subsample=stride if ndim > 1 else stride[0],
        filter_flip=flip,
        filter_dilation=dilation if ndim > 1 else dilation[0],
        num_groups=groups,
    )
    g.say(f"{outputs} {kernel} {border} stride {stride} dilation {dilation} groups {groups}")
    kind = rng.integers(4)
    if kind:
        z = z + g.parameter(outputs, scale=0.3).dimshuffle("x", 0, *["x"] * ndim)
        g.say("bias")
    if kind > 1:
        z = nnet.relu(z) if kind == 2 else nnet.tanh(z)
        g.say(("", "", "relu", "tanh")[kind])
    return z


@layer(4, 5, weight=2)
def transposed_convolution(g: Graph, rng: Rng, x: Any) -> Any:
    """The gradient of a convolution as a layer."""
    batch, channels, *size = g.shape(x)
    ndim, groups = len(size), _groups(rng, channels) if rng.random() < 0.3 else 1
    kernel, stride = _window(rng, ndim), _window(rng, ndim, 2)
    border = ("valid", "half")[rng.integers(2)]
    pads = resolve_padding(border, kernel, (1,) * ndim)
    grown = [
        (n - 1) * s + k - sum(p) for n, s, k, p in zip(size, stride, kernel, pads, strict=True)
    ]
    inputs, outputs = channels // groups, int(rng.choice([1, 2, 4]))
    if min(grown) < 1 or max(grown) > 16:
        return None
    scale = (inputs * np.prod(kernel)) ** -0.5
    w = g.parameter(channels, outputs, *kernel, scale=scale)
    g.say(f"{groups * outputs} {kernel} {border} stride {stride} groups {groups}")
    return _TRANSPOSED[ndim](
        x,
        w,
        (batch if rng.integers(2) else None, None, *grown),
        border_mode=border,
        input_dilation=stride,
        filter_flip=bool(rng.integers(2)),
        num_groups=groups,
    )


@layer(4, 5, weight=3)
def pooling(g: Graph, rng: Rng, x: Any) -> Any:
    """Any mode, with padding or with windows that the border cuts off."""
    size = g.shape(x)[2:]
    ndim = len(size)
    window = tuple(min(n, w) for n, w in zip(size, _window(rng, ndim), strict=True))
    stride = _window(rng, ndim) if rng.integers(2) else window
    ignore = bool(rng.random() < 0.7)
    pad = tuple(int(rng.integers(w)) if ignore else 0 for w in window)
    mode = ("max", "max", "average_inc_pad", "average_exc_pad", "sum")[rng.integers(5)]
    pool = nnet.pool_2d if ndim == 2 else nnet.pool_3d
    g.say(f"{mode} {window} stride {stride} pad {pad} ignore_border {ignore}")
    return pool(x, window, ignore, stride=stride, pad=pad, mode=mode)


@layer(2, 3, 4, 5, weight=4)
def batch_normalization(g: Graph, rng: Rng, x: Any) -> Any:
    """In training or inference; often with running averages, relu and a residual sum."""
    shape = g.shape(x)
    spatial = len(shape) > 2 and rng.random() < 0.8
    count = shape[0] * (int(np.prod(shape[2:])) if spatial else 1)
    size = (shape[1],) if spatial else (1, *shape[1:])
    axes = "spatial" if spatial else "per-activation"
    gamma, beta = g.parameter(*size, scale=0.2, value=1.0), g.parameter(*size, scale=0.2)
    kind = rng.integers(3)
    g.say(f"{axes} {('training', 'training with averages', 'inference')[kind]}")
    if kind == 2:
        mean = g.parameter(*size, scale=0.3)
        variance = g.parameter(*size, scale=0.05, value=1.0)
        z = nnet.batch_normalization_test(x, gamma, beta, mean, variance**2, axes, 1e-3)
    elif count < 4:
        return None  # two numbers become 1 and -1, whatever they are
    else:
        averages = {}
        if kind == 1:
            averages = {"running_mean": g.parameter(*size), "running_var": g.parameter(*size) ** 2}
        z, *others = nnet.batch_normalization_train(x, gamma, beta, axes, 0.1, **averages)
        g.also(*others[2:])
    end = rng.integers(4)
    if end == 1:
        z = z + x
    if end:
        z = nnet.relu(z)
        g.say(("", "residual, relu", "relu", "relu")[end])
    return z


@layer(3, 4, 5)
def group_normalization(g: Graph, rng: Rng, x: Any) -> Any:
    """With or without scale and bias."""
    _, channels, *size = g.shape(x)
    groups = _groups(rng, channels)
    if channels // groups * np.prod(size) < 4:
        return None
    parameters = (g.parameter(channels, scale=0.2, value=1.0), g.parameter(channels, scale=0.2))
    g.say(f"{groups} groups")
    return nnet.group_norm(x, groups, *(parameters if rng.integers(2) else ()), epsilon=0.1)


@layer(4, weight=0.5)
def response_normalization(g: Graph, rng: Rng, x: Any) -> Any:
    """Across channels."""
    n = int(rng.choice([3, 5]))
    g.say(f"{n} channels")
    return nnet.local_response_normalization(x, n, alpha=0.1)


@layer(4, weight=0.5)
def upsampling(g: Graph, rng: Rng, x: Any) -> Any:
    """By repeating rows and columns."""
    if max(g.shape(x)[2:]) > 6:
        return None
    return x.repeat(2, axis=2).repeat(2, axis=3)


@layer(3, 4, 5, weight=0.7)
def spatial_mean(g: Graph, rng: Rng, x: Any) -> Any:
    """The mean of each channel."""
    return x.mean(axis=tuple(range(2, x.type.ndim)))
