"""Vectorization of dropout and attention for ``vectorize_graph``.

As for PyTensor's random variables, each entry of an extra axis draws its own numbers: those of one
call for all entries, which needs one state. What has no extra axes is drawn once for all entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor.blockwise import vectorize_node_fallback

from dnnops.nnet.attention.op import Attention, AttentionBase, AttentionGrad
from dnnops.nnet.entries import each_entry, own_axes
from dnnops.nnet.extra_axes import has_extra_axes, merge_node, sizes, spread_axis, with_extra_axes
from dnnops.nnet.regularization.dropout import Dropout, DropoutGrad, state_after
from dnnops.nnet.streams import STEP, stream_of_entries
from dnnops.nnet.validate import accumulator_dtype

__all__ = ["vectorize_attention", "vectorize_dropout", "vectorize_dropout_grad"]


@_vectorize_node.register(Dropout)
def vectorize_dropout(op: Dropout, node: Apply, x: Any, p: Any, state: Any) -> Any:
    """Drop elements of all entries in one call, or loop over states or probabilities."""
    if not has_extra_axes(node, [x, p, state], range(3)):
        return op.make_node(x, p, state)
    if type(op) is not Dropout:
        return vectorize_node_fallback(op, node, x, p, state)
    cores = [v.type.ndim for v in node.inputs]
    if state.type.ndim > 1:
        return each_entry(op.make_node, [x, p, state], cores)
    state = stream_of_entries(state)
    if not p.type.ndim:
        y, reserve, after = op.make_node(x, p, state).outputs
        # A reserve of all entries, which `vectorize_dropout_grad` recognizes.
        return [y, pt.shape_padleft(reserve, x.type.ndim - cores[0]), after]
    extra, _ = with_extra_axes([x, p], cores[0], 0)
    states = _states_of_entries(state, extra)
    y, reserve, _ = each_entry(op.make_node, [x, p, states], cores)
    return [y, reserve, state_after(state, sizes(x)[x.type.ndim - cores[0] :])]


def _states_of_entries(state: Any, extra: Sequence[Any]) -> Any:
    """Return states whose seeds differ, with these extra axes."""
    total: Any = np.int64(1)
    for size in extra:
        total = total * size
    states = state + pt.arange(total, dtype="int64")[:, None] * STEP
    return states.reshape((*extra, 2))


@_vectorize_node.register(DropoutGrad)
def vectorize_dropout_grad(op: DropoutGrad, node: Apply, gy: Any, p: Any, reserve: Any) -> Any:
    """Scale the elements that dropout kept, of all entries."""
    if not has_extra_axes(node, [gy, p, reserve], range(3)):
        return op.make_node(gy, p, reserve)
    if type(op) is not DropoutGrad:
        return vectorize_node_fallback(op, node, gy, p, reserve)
    core = node.inputs[0].type.ndim
    dtype = gy.type.dtype
    if reserve.type.ndim == 1:
        kept = _kept(op, pt.ones(sizes(gy)[gy.type.ndim - core :], dtype=dtype), reserve)
    elif (drawn := _drawn_for_all(reserve)) is not None:
        of_all = drawn.outputs[1]
        x = drawn.inputs[0]
        if gy.type.broadcastable == x.type.broadcastable and not p.type.ndim:
            return op.make_node(gy, p, of_all)
        kept = _kept(op, pt.ones_like(x, dtype=dtype), of_all)
    else:
        return each_entry(op.make_node, [gy, p, reserve], [core, 0, 1])
    wide = accumulator_dtype(dtype).name
    factor = pt.switch(pt.eq(p, 1), np.float64(0), 1 / (1 - p))
    factor = pt.cast(pt.shape_padright(factor, core), wide)
    scaled = pt.cast(pt.cast(gy, wide) * factor, dtype)
    return [pt.switch(kept, scaled, np.zeros((), dtype))]


def _kept(op: DropoutGrad, ones: Any, reserve: Any) -> Any:
    """Return where a dropout kept elements of an array of the shape of `ones`."""
    return pt.neq(op.make_node(ones, np.float64(0), reserve).outputs[0], 0)


def _drawn_for_all(reserve: Any) -> Apply | None:
    """Return the dropout that made a reserve of all entries."""
    if reserve.owner is None or len(reserve.owner.inputs) != 1:
        return None
    drawn = reserve.owner.inputs[0].owner
    return drawn if drawn is not None and type(drawn.op) is Dropout else None


@_vectorize_node.register(AttentionBase)
def vectorize_attention(op: AttentionBase, node: Apply, *inputs: Any) -> Any:
    """Merge extra axes of attention or its gradient into the batch."""
    named = dict(zip(op.operands, inputs, strict=True))
    if not has_extra_axes(node, inputs, range(len(inputs))):
        return op.make_node(*inputs)
    if type(op) not in (Attention, AttentionGrad):
        return vectorize_node_fallback(op, node, *inputs)
    axes: list[int | None] = [None if name == "state" else 0 for name in op.operands]
    if op.dropout:
        cores = [x.type.ndim for x in node.inputs]
        if named["state"].type.ndim > 1:
            return each_entry(op.make_node, inputs, cores)
        if isinstance(op, Attention) or named["out"].type.ndim > 4:
            named["state"] = stream_of_entries(named["state"])
        if isinstance(op, AttentionGrad):
            operands = list(named.values())
            own = own_axes(named["out"], 4, operands, cores)
            lead = max(x.type.ndim - core for x, core in zip(operands, cores, strict=True))
            # Entries that share a forward pass share what it dropped.
            if others := [i for i in range(lead) if i not in own]:

                def entry(*given: Any) -> Any:
                    return vectorize_attention(op, node, *given)

                return each_entry(entry, operands, cores, others)
    if "mask" in named:
        # A mask that the batch shares is repeated, unless all entries share it, too.
        query = named["query"]
        named["mask"] = spread_axis(
            named["mask"], named["mask"].type.ndim - 4, sizes(query)[query.type.ndim - 4]
        )
    return merge_node(op, node, list(named.values()), axes)
