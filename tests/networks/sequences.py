"""Layers on vectors and sequences: products, recurrent networks, attention."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from dnnops import nnet
from tests.networks.layers import Graph, Rng, layer


def _product(g: Graph, x: Any, inputs: int, outputs: int) -> Any:
    return x @ g.parameter(inputs, outputs, scale=inputs**-0.5)


@layer(2, 3, weight=5)
def dense(g: Graph, rng: Rng, x: Any) -> Any:
    """A product of the last axis with a matrix; often a bias and an activation after it."""
    outputs = int(rng.choice([1, 3, 4, 8, 16]))
    z, kind = _product(g, x, g.shape(x)[-1], outputs), rng.integers(5)
    if kind:
        z = z + g.parameter(outputs, scale=0.3)
    activations: tuple[Any, ...] = (None, None, nnet.relu, nnet.sigmoid, pt.tanh)
    g.say(f"{outputs} {('', 'bias', 'bias relu', 'bias sigmoid', 'bias tanh')[kind]}")
    return activations[kind](z) if kind > 1 else z


@layer(2, 3, 4, weight=2)
def layer_normalization(g: Graph, rng: Rng, x: Any) -> Any:
    """Of the last axis, written out."""
    size = g.shape(x)[-1]
    if size < 3:
        return None
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    z = centered / pt.sqrt(variance + g.constant(0.1))
    if rng.integers(2):
        z = z * g.parameter(size, scale=0.2, value=1.0) + g.parameter(size, scale=0.2)
    return z


@layer(2, 3, 4)
def softmax(g: Graph, rng: Rng, x: Any) -> Any:
    """Or its logarithm, over any axis, of PyTensor or dnnops."""
    axis = int(rng.integers(x.type.ndim))
    functions = (pt.special.softmax, pt.special.log_softmax, nnet.softmax, nnet.log_softmax)
    kind = rng.integers(4)
    g.say(f"{functions[kind].__module__.split('.')[0]}.{functions[kind].__name__} axis {axis}")
    return functions[kind](x, axis=axis)


@layer(3, weight=4)
def attention(g: Graph, rng: Rng, x: Any) -> Any:
    """Self-attention with a few heads, often causal, masked or residual; sometimes written out."""
    batch, steps, features = g.shape(x)
    heads, size = int(rng.integers(1, 4)), int(rng.choice([2, 4, 8, 16]))
    q, k, v = (
        _product(g, x, features, heads * size)
        .reshape((batch, steps, heads, size))
        .transpose(0, 2, 1, 3)
        for _ in range(3)
    )
    kind = rng.integers(4)
    g.say(f"{heads} heads of {size} {('', 'causal', 'mask', 'written out')[kind]}")
    if kind == 3:
        scores = q @ k.transpose(0, 1, 3, 2) * g.constant(size**-0.5)
        z = pt.special.softmax(scores, axis=-1) @ v
    else:
        mask = g.parameter(1, 1, steps, steps) if kind == 2 else None
        z = nnet.scaled_dot_product_attention(q, k, v, mask, is_causal=bool(kind == 1))
    z = z.transpose(0, 2, 1, 3).reshape((batch, steps, heads * size))
    if rng.integers(2):
        z = _product(g, z, heads * size, features) + x
        g.say("residual")
    return z


@layer(3, weight=5)
def recurrent(g: Graph, rng: Rng, x: Any) -> Any:
    """LSTM, GRU or a simple network, of some layers and directions."""
    batch_first = bool(rng.integers(2))
    shape = g.shape(x)
    batch, features = shape[0 if batch_first else 1], shape[2]
    mode = ("lstm", "lstm", "gru", "gru", "rnn_tanh")[rng.integers(5)]
    hidden, layers = int(rng.choice([2, 4, 8])), int(rng.integers(1, 3))
    directions = 1 if rng.random() < 0.7 else 2
    block = nnet.RNNBlock(
        g.dtype,
        hidden,
        layers,
        mode,
        direction_mode=("unidirectional", "bidirectional")[directions - 1],
        batch_first=batch_first,
    )
    w = g.parameter(block.get_param_size((shape[0], batch, features)), scale=hidden**-0.5)
    states = [
        pt.zeros((layers * directions, batch, hidden), dtype=g.dtype)
        if rng.integers(2)
        else g.parameter(layers * directions, batch, hidden, scale=0.5)
        for _ in range(2 if mode == "lstm" else 1)
    ]
    g.say(f"{mode} {layers} of {hidden}, {directions} directions, batch_first {batch_first}")
    y, *last = block.apply(w, x, *states)
    return y if rng.random() < 0.8 else last[0]


@layer(2, 3, 4, 5, weight=0.7)
def embedding(g: Graph, rng: Rng, x: Any) -> Any:
    """Rows of a table, added to a sequence; the table may be the variable itself."""
    shape = g.shape(x)
    if x.type.ndim == 3 and rng.integers(2):
        table = g.parameter(5, shape[2], scale=0.5)
        g.say("added")
        return x + table[g.indices(5, *shape[:2])]
    g.say("of the variable")
    return x[g.indices(shape[0], 3)]
