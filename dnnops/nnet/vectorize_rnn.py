"""Vectorization of recurrent networks for ``vectorize_graph``.

Extra axes of inputs, states and cotangents merge into the batch. The gradient with respect to the
parameters is a sum over the batch, and a library takes one vector of parameters, so a loop calls
the library for the gradients of each entry, and for networks whose parameters have extra axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor.blockwise import vectorize_node_fallback

from dnnops.nnet.entries import each_entry, loop, own_axes
from dnnops.nnet.extra_axes import has_extra_axes, merge, sizes, with_extra_axes
from dnnops.nnet.rnn.op import RNNBackward, RNNBase, RNNForward

__all__ = ["vectorize_rnn"]

#: Odd, so that the seeds of all entries differ.
_SEED_STEP = np.int64(0x1E3779B97F4A7C15)


@_vectorize_node.register(RNNBase)
def vectorize_rnn(op: RNNBase, node: Apply, *inputs: Any) -> Any:
    """Merge extra axes of a recurrent network into the batch, or loop over its parameters."""
    if not has_extra_axes(node, inputs, range(len(inputs))):
        return op.make_node(*inputs)
    if type(op) is RNNForward:
        return _forward(op, node, inputs)
    if type(op) is RNNBackward:
        return _backward(op, node, inputs)
    return vectorize_node_fallback(op, node, *inputs)


def _cores(node: Apply) -> list[int]:
    return [x.type.ndim for x in node.inputs]


def _axes(op: RNNBase) -> list[int | None]:
    """Return the batch axis of each operand of a network."""
    axes: dict[str, int | None] = {"w": None, "lengths": 0, "seed": None}
    return [axes.get(name, 1) for name in op.operands]


def _loops(op: RNNBase, node: Apply, inputs: Any) -> bool:
    """Return whether entries have their own parameters or seeds."""
    own = [i for i, name in enumerate(op.operands) if name in ("w", "seed")]
    return has_extra_axes(node, inputs, own)


def _forward(op: RNNForward, node: Apply, inputs: Any) -> list[Any]:
    cores = _cores(node)
    if _loops(op, node, inputs):
        return each_entry(op.make_node, _with_seeds(op, inputs, cores), cores)
    states = 2 + op.layout.has_cell

    def results(*network: Any) -> list[Any]:
        return list(op.make_node(*network).outputs[:states])

    found = merge(results, node, inputs, _axes(op), [1] * states)
    if not op.keeps_reserve:
        return found
    # Nothing uses the reserve of an entry: merged gradients have that of all entries.
    return [*found, each_entry(op.make_node, inputs, cores)[states]]


def _with_seeds(op: RNNBase, inputs: Any, cores: list[int], lead: int | None = None) -> list[Any]:
    """Give each entry a seed of its own, if all have the same."""
    given = list(inputs)
    if not op.dropout:
        return given
    place = op.operands.index("seed")
    if given[place].type.ndim:
        return given
    count = len(op.operands)
    extra, _ = with_extra_axes(given[:count], *cores[:count])
    total: Any = np.int64(1)
    for size in extra:
        total = total * size
    given[place] = (given[place] + pt.arange(total, dtype="int64") * _SEED_STEP).reshape(extra)
    return given


def _backward(op: RNNBackward, node: Apply, inputs: Any) -> list[Any]:
    cores, count = _cores(node), len(op.operands)
    if _loops(op, node, inputs):
        return each_entry(op.make_node, _with_seeds(op, inputs, cores), cores)
    if op.dropout:
        # Entries that share a forward pass share what it dropped.
        own = own_axes(inputs[count], cores[count], inputs, cores)
        lead = max(x.type.ndim - core for x, core in zip(inputs, cores, strict=True))
        if others := [i for i in range(lead) if i not in own]:

            def entry(*given: Any) -> Any:
                return vectorize_rnn(op, node, *given)

            return each_entry(entry, inputs, cores, others)
    network_op = RNNForward(**op.network)
    states = 1 + op.layout.has_cell

    def gradients(*given: Any) -> Any:
        # The results and the reserve of the network are computed from merged operands again.
        network, cotangents = given[:count], given[count:]
        outputs = network_op.make_node(*network).outputs
        return op.make_node(*network, outputs[0], outputs[-1], *cotangents)

    kept = [*range(count), *range(count + 2, len(inputs))]
    core = Apply(op, [node.inputs[i] for i in kept], [x.clone() for x in node.outputs])
    given, axes = [inputs[i] for i in kept], [*_axes(op), *[1] * (1 + states)]
    merged: list[Any] = []

    def by_data(*folded: Any) -> list[Any]:
        merged[:] = folded
        return list(gradients(*folded).outputs[1:])

    found = merge(by_data, core, given, axes, [1] * (len(node.outputs) - 1))
    if op.dropout:
        by_w = _by_parameters(gradients, merged, count, found[0], node)
    else:
        by_w = each_entry(
            lambda *entry: [gradients(*entry).outputs[0]], given, [cores[i] for i in kept]
        )[0]
    return [by_w, *found]


def _by_parameters(gradients: Any, merged: Any, count: int, result: Any, node: Apply) -> Any:
    """Differentiate one entry of the merged network after the other, which drops the same then.

    `result` is a gradient with the extra axes.
    """
    core = node.outputs[1].type.ndim
    extra = sizes(result)[: result.type.ndim - core]
    batch = sizes(result)[result.type.ndim - core + 1]
    total: Any = np.int64(1)
    for size in extra:
        total = total * size
    place = pt.arange(total * batch, dtype="int64") // pt.maximum(batch, 1)

    def of_entry(entry: Any, place: Any, *given: Any) -> list[Any]:
        network, cotangents = given[:count], given[count:]
        own = pt.eq(place, entry)[None, :, None]
        single = (pt.switch(own, g, np.zeros((), g.type.dtype)) for g in cotangents)
        return [gradients(*network, *single).outputs[0]]

    (by_w,) = loop(of_entry, [pt.arange(total, dtype="int64")], [place, *merged])
    return by_w.reshape((*extra, *sizes(by_w)[1:]))
