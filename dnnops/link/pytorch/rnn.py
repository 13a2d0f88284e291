"""Convert recurrent networks to those of PyTorch, one layer at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dnnops.link.formulas.random_words import splitmix_words
from dnnops.link.pytorch import library
from dnnops.link.pytorch.register import converts
from dnnops.nnet import RNNBackward, RNNForward
from dnnops.nnet.rnn.op import INT_OPERANDS, RNNBase

_NETWORKS = {
    "lstm": torch.lstm,
    "gru": torch.gru,
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
}


def _check(op: RNNBase, given: dict[str, Any]) -> None:
    op.check_shapes(
        {name: () if isinstance(x, int) else tuple(x.shape) for name, x in given.items()}
    )
    if op.has_lengths:
        op.check_lengths(given["lengths"].cpu().numpy(), given["x"].shape[0])


def _dropped(op: RNNBase, seed: Any, layer: int, x: Any) -> Any:
    if not op.dropout:
        return x
    kept = splitmix_words(library, seed, layer, x.shape) >> 8 >= round(op.dropout * 2**24)
    return torch.where(kept, x / (1 - op.dropout), 0.0)


def _weights(op: RNNBase, w: Any, layer: int, input_size: int) -> list[Any]:
    """Return the parameters of a layer in the form that PyTorch expects."""
    layout = op.layout
    parts = layout.pseudo_layers(input_size)
    found = []
    for part in parts[layer * layout.directions : (layer + 1) * layout.directions]:
        matrices, recurrent, input_bias, recurrent_bias, projection = part.arrays(w)
        if layout.skip_input and layer == 0:
            matrices = torch.eye(layout.hidden_size, dtype=w.dtype).repeat(layout.gates, 1).to(w)
        found += [matrices, recurrent, input_bias, recurrent_bias]
        found += [] if projection is None else [projection]
    return found


def _layer(op: RNNBase, x: Any, lengths: Any, states: list[Any], weights: list[Any]) -> list[Any]:
    """Return the outputs of a layer, zero after the end of each sequence, and its last states."""
    function: Any = _NETWORKS[op.rnn_mode]
    initial = tuple(states) if op.layout.has_cell else states[0]
    options = (True, 1, 0.0, False, op.bidirectional)
    if lengths is None:
        return list(function(x, initial, weights, *options, False))
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    order, back = packed.sorted_indices, packed.unsorted_indices
    sorted_states = [state[:, order] for state in states]
    initial = tuple(sorted_states) if op.layout.has_cell else sorted_states[0]
    data, *last = function(packed.data, packed.batch_sizes, initial, weights, *options)
    outputs, _ = pad_packed_sequence(
        PackedSequence(data, packed.batch_sizes, order, back), total_length=x.shape[0]
    )
    return [outputs, *(state[:, back] for state in last)]


def network(op: RNNBase, given: dict[str, Any]) -> list[Any]:
    """Return the results of a network except the reserve: `y`, `hy` and, for LSTMs, `cy`."""
    layout, x = op.layout, given["x"]
    names = ("hx", "cx") if layout.has_cell else ("hx",)
    if 0 in x.shape[:2]:
        y = x.new_zeros((*x.shape[:2], layout.directions * layout.output_size))
        return [y, *(given[name] for name in names)]
    lengths = given["lengths"].cpu() if op.has_lengths else None
    below, last = x, []
    for layer in range(layout.num_layers):
        if layer:
            below = _dropped(op, given.get("seed"), layer - 1, below)
        own = slice(layer * layout.directions, (layer + 1) * layout.directions)
        states = [given[name][own] for name in names]
        weights = _weights(op, given["w"], layer, x.shape[2])
        below, *after = _layer(op, below, lengths, states, weights)
        last.append(after)
    return [below, *(torch.cat(states) for states in zip(*last, strict=True))]


@converts(RNNForward)
@torch.compiler.disable
def rnn_forward(op: RNNForward, *operands: Any) -> tuple:
    """Run a network.

    The reserve contains only zeros: the gradient runs the network again. The function is excluded
    from compilation, since PyTorch's compiler would unroll the loop over the steps.
    """
    given = dict(zip(op.operands, operands, strict=True))
    _check(op, given)
    results = network(op, given)
    steps, batch, _ = given["x"].shape
    if op.keeps_reserve:
        results.append(given["x"].new_zeros(steps * batch * op.layout.reserve_size))
    return tuple(results)


@converts(RNNBackward)
@torch.compiler.disable
def rnn_backward(op: RNNBackward, *operands: Any) -> tuple:
    """Compute the gradients of a network."""
    given = dict(zip(op.all_operands, operands, strict=True))
    _check(op, given)
    with torch.enable_grad():
        moving = {
            name: x if name in INT_OPERANDS else x.detach().requires_grad_()
            for name, x in given.items()
        }
        results = network(op, moving)
        names = ("gy", "ghy", "gcy") if op.layout.has_cell else ("gy", "ghy")
        found = torch.autograd.grad(
            results,
            [moving[name] for name in op.results],
            [given[name] for name in names],
            allow_unused=True,
            materialize_grads=True,
        )
    return tuple(found)
