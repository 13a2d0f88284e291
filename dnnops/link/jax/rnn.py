"""Convert recurrent networks to a scan over the steps for each direction of each layer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dnnops.link.formulas.random_words import splitmix_words
from dnnops.link.jax import library
from dnnops.link.jax.register import converts
from dnnops.nnet import RNNBackward, RNNForward
from dnnops.nnet.rnn.layout import PseudoLayer, RNNLayout
from dnnops.nnet.rnn.op import INT_OPERANDS, RNNBase


def _cell(layout: RNNLayout, pre: Any, rec: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """Compute one step: return the new output and, for LSTMs, the new cell state."""
    if layout.rnn_mode == "lstm":
        i, f, g, o = jnp.split(pre + rec, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c
    if layout.rnn_mode == "gru":
        (pre_r, pre_z, pre_n), (rec_r, rec_z, rec_n) = (jnp.split(x, 3, -1) for x in (pre, rec))
        z = jax.nn.sigmoid(pre_z + rec_z)
        n = jnp.tanh(pre_n + jax.nn.sigmoid(pre_r + rec_r) * rec_n)
        return (1 - z) * n + z * h, c
    total = pre + rec
    # Unlike the gradient of jax.nn.relu, the gradient of this expression keeps NaN.
    return jnp.tanh(total) if layout.rnn_mode == "rnn_tanh" else jnp.where(
        total <= 0, 0.0, total
    ), c


def _pseudo_layer(
    layout: RNNLayout,
    part: PseudoLayer,
    w: Any,
    below: Any,
    states: Any,
    active: Any,
    skips: bool,
    backward: bool,
) -> tuple[Any, Any]:
    """Return the last states and the outputs of all steps, zero after the end of a sequence."""
    matrices, recurrent, input_bias, recurrent_bias, projection = part.arrays(w)
    pre = (jnp.tile(below, layout.gates) if skips else below @ matrices.T) + input_bias

    def step(before: Any, given: Any) -> tuple[Any, Any]:
        pre_t, active_t = given
        h, c = before
        new_h, new_c = _cell(layout, pre_t, h @ recurrent.T + recurrent_bias, h, c)
        if projection is not None:
            new_h = new_h @ projection.T
        kept_h = jnp.where(active_t, new_h, h)
        kept_c = None if c is None else jnp.where(active_t, new_c, c)
        return (kept_h, kept_c), jnp.where(active_t, new_h, 0.0)

    return lax.scan(step, states, (pre, active), reverse=backward)


def _dropped(op: RNNBase, seed: Any, layer: int, x: Any) -> Any:
    if not op.dropout:
        return x
    kept = splitmix_words(library, seed, layer, x.shape) >> 8 >= round(op.dropout * 2**24)
    return jnp.where(kept, x / (1 - op.dropout), 0.0)


def network(op: RNNBase, given: dict[str, Any]) -> list[Any]:
    """Return the results of a network except the reserve: `y`, `hy` and, for LSTMs, `cy`."""
    layout = op.layout
    x, w = given["x"], given["w"]
    lengths = given["lengths"] if op.has_lengths else jnp.full(x.shape[1], x.shape[0])
    active = (jnp.arange(x.shape[0])[:, None] < lengths)[..., None]
    # Elements after the end of a sequence may have any value, including NaN.
    below = jnp.where(active, x, 0.0)
    last: list[tuple[Any, Any]] = []
    parts = layout.pseudo_layers(x.shape[2])
    for layer in range(layout.num_layers):
        outputs = []
        if layer:
            below = _dropped(op, given.get("seed"), layer - 1, below)
        for direction in range(layout.directions):
            number = layer * layout.directions + direction
            states = (given["hx"][number], given["cx"][number] if layout.has_cell else None)
            skips = layout.skip_input and layer == 0
            after, output = _pseudo_layer(
                layout, parts[number], w, below, states, active, skips, direction == 1
            )
            outputs.append(output)
            last.append(after)
        below = jnp.concatenate(outputs, axis=-1)
    return [below, *(jnp.stack(s) for s in zip(*last, strict=True) if s[0] is not None)]


@converts(RNNForward)
def rnn_forward(op: RNNForward, *operands: Any) -> tuple:
    """Run a network.

    The reserve contains only zeros: the gradient runs the network again.
    """
    given = dict(zip(op.operands, operands, strict=True))
    results = network(op, given)
    steps, batch, _ = given["x"].shape
    if op.keeps_reserve:
        results.append(jnp.zeros(steps * batch * op.layout.reserve_size, given["x"].dtype))
    return tuple(results)


@converts(RNNBackward)
def rnn_backward(op: RNNBackward, *operands: Any) -> tuple:
    """Compute the gradients of a network."""
    given = dict(zip(op.all_operands, operands, strict=True))
    integers = {name: x for name, x in given.items() if name in INT_OPERANDS}
    by = {name: given[name] for name in op.results}
    others = {name: given[name] for name in op.operands if name not in by}
    _, pullback = jax.vjp(lambda by: network(op, {**others, **by, **integers}), by)
    names = ("gy", "ghy", "gcy") if op.layout.has_cell else ("gy", "ghy")
    (found,) = pullback([given[name] for name in names])
    return tuple(found[name] for name in op.results)
