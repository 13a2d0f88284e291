"""Vectorization of attention, losses, recurrent networks and others by merging into the batch.

`dnnops.nnet.vectorize` has convolution, pooling and batch normalization. PyTensor's loop remains
where each entry of an extra axis has its own parameters or random numbers, and for gradients with
respect to shared parameters, which are sums over one entry only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Apply
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor.blockwise import vectorize_node_fallback

from dnnops.nnet.activation.softmax import SoftmaxGradBase, WholeSoftmax
from dnnops.nnet.attention.op import AttentionBase
from dnnops.nnet.extra_axes import into_batch, no_results, of_one_entry, sizes, with_extra_axes
from dnnops.nnet.loss.cross_entropy import CrossEntropyBase, CrossEntropyGrad
from dnnops.nnet.norm.group_norm import GroupNorm, GroupNormBase
from dnnops.nnet.resample.spatial_transformer import (
    SamplerBase,
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
)
from dnnops.nnet.rnn.op import RNNBase, RNNForward
from dnnops.nnet.validate import accumulator_dtype

__all__ = [
    "vectorize_attention",
    "vectorize_cross_entropy",
    "vectorize_group_norm",
    "vectorize_rnn",
    "vectorize_softmax",
    "vectorize_spatial_transformer",
]


def _has_extra(node: Apply, inputs: Sequence[Any], places: Sequence[int]) -> bool:
    return any(inputs[i].type.ndim != node.inputs[i].type.ndim for i in places)


def _spread_axis(x: Any, axis: int, size: Any) -> Any:
    """Broadcast an axis whose size is 1, which may not be known, to the given size."""
    known = x.type.shape[axis]
    if known not in (None, 1):
        return x
    before, own, after = sizes(x)[:axis], sizes(x)[axis], sizes(x)[axis + 1 :]
    if known is None:
        own, size = disconnected_grad(own), disconnected_grad(pt.as_tensor_variable(size))
    copies = size if known == 1 else pt.switch(pt.eq(own, 1), size, 1)
    wide: Any = pt.alloc(x.reshape((*before, 1, own, *after)), *before, copies, own, *after)
    return wide.reshape((*before, size, *after))


def _merge(
    apply: Callable[..., Sequence[Any]],
    node: Apply,
    inputs: Sequence[Any],
    axes: Sequence[int | None],
    results: Sequence[int],
) -> list[Any]:
    """Apply a function of the operands once, with the extra axes merged into the batch.

    `axes` are the batch axes of the operands without extra axes, None for operands that all entries
    share, and `results` are those of the results.
    """
    places = [i for i, axis in enumerate(axes) if axis is not None]
    cores = [node.inputs[i].type.ndim for i in places]
    extra, spread = with_extra_axes([inputs[i] for i in places], *cores)
    lead = len(extra)
    folded = list(inputs)
    batch: Any = None
    for i, x in zip(places, spread, strict=True):
        axis: Any = axes[i]
        x = pt.moveaxis(x, lead + axis, lead)
        size = sizes(x)[lead]
        batch = size if batch is None or isinstance(size, int) else batch
        folded[i] = pt.moveaxis(into_batch(x, extra), 0, axis)
    unfolded = []
    for out, axis in zip(apply(*folded), results, strict=True):
        first = pt.moveaxis(out, axis, 0)
        apart = first.reshape((*extra, batch, *sizes(first)[1:]))
        unfolded.append(pt.moveaxis(apart, lead, lead + axis))
    return unfolded


def _merge_node(
    op: Any, node: Apply, inputs: Sequence[Any], axes: Sequence[int | None] | None = None
) -> list[Any]:
    """Apply an Op once; the batch is the first axis of each operand and result if not given."""
    axes = [0] * len(inputs) if axes is None else axes
    results = [0] * len(node.outputs)
    return _merge(lambda *given: op.make_node(*given).outputs, node, inputs, axes, results)


@_vectorize_node.register(AttentionBase)
def vectorize_attention(op: AttentionBase, node: Apply, *inputs: Any) -> Any:
    """Merge extra axes of attention or its gradient into the batch.

    With dropout, PyTensor's loop drops the same weights in each entry.
    """
    named = dict(zip(op.operands, inputs, strict=True))
    if not _has_extra(node, inputs, range(len(inputs))):
        return op.make_node(*inputs)
    if op.dropout:
        return vectorize_node_fallback(op, node, *inputs)
    if "mask" in named:
        # A mask that the batch shares is repeated, unless all entries share it, too.
        query = named["query"]
        named["mask"] = _spread_axis(
            named["mask"], named["mask"].type.ndim - 4, sizes(query)[query.type.ndim - 4]
        )
    return _merge_node(op, node, list(named.values()))


@_vectorize_node.register(CrossEntropyBase)
def vectorize_cross_entropy(op: CrossEntropyBase, node: Apply, *inputs: Any) -> Any:
    """Merge extra axes of the cross-entropy or its gradient into the rows."""
    operands = list(inputs)
    if not _has_extra(node, inputs, range(len(inputs))):
        return op.make_node(*inputs)
    first = 1 if isinstance(op, CrossEntropyGrad) else 0
    x = inputs[first]
    if not op.every_row:
        return vectorize_node_fallback(op, node, *inputs)
    rows = sizes(x)[x.type.ndim - 2]
    if op.one_for_all:
        operands[first + 1] = _spread_axis(inputs[first + 1], inputs[first + 1].type.ndim - 1, rows)
    if first:
        operands[0] = _spread_axis(inputs[0], inputs[0].type.ndim - 1, rows)
    return _merge_node(op, node, operands)


@_vectorize_node.register(GroupNormBase)
def vectorize_group_norm(op: GroupNormBase, node: Apply, *inputs: Any) -> Any:
    """Merge extra axes of group normalization into the batch, or into channels and groups.

    The latter keeps the parameters of entries, and the gradients with respect to them, apart. If
    the number of groups is not known, the parameters are applied outside the Op.
    """
    is_data = [name not in op.parameter_operands for name in op.operands]
    if not _has_extra(node, inputs, range(len(inputs))):
        return op.make_node(*inputs)
    are_shared = not _has_extra(node, inputs, [i for i, data in enumerate(is_data) if not data])
    if isinstance(op, GroupNorm) and are_shared:
        return _merge_node(op, node, inputs, [0 if data else None for data in is_data])
    cores = [x.type.ndim for x in node.inputs]
    extra, spread = with_extra_axes(inputs, *cores)
    if not all(isinstance(size, int) for size in extra):
        results = _with_own_parameters(op, extra, dict(zip(op.operands, spread, strict=True)))
        return [pt.cast(z, y.type.dtype) for z, y in zip(results, node.outputs, strict=True)]
    if 0 in extra:
        return no_results(op, spread, extra)
    lead, count = len(extra), prod(extra)
    folded = []
    for x, data in zip(spread, is_data, strict=True):
        if data:
            x = pt.moveaxis(x, lead, 0)
        batch, (channels, *rest) = sizes(x)[:data], sizes(x)[lead + data :]
        folded.append(x.reshape((*batch, count * channels, *rest)))
    whole: Any = type(op)(op.num_groups * count, op.epsilon)
    results = []
    for out, data in zip(whole.make_node(*folded).outputs, op.data_results, strict=True):
        batch, (channels, *rest) = sizes(out)[:data], sizes(out)[data:]
        apart = out.reshape((*batch, *extra, channels // count, *rest))
        results.append(pt.moveaxis(apart, 0, lead) if data else apart)
    return results


def _with_own_parameters(op: GroupNormBase, extra: Sequence[Any], given: Any) -> list[Any]:
    """Normalize with parameters of 1 and 0, and apply those of each entry, or differentiate."""
    lead, shape = len(extra), sizes(given["x"])
    wide = accumulator_dtype(given["x"].type.dtype).name
    given = {name: pt.cast(x, wide) for name, x in given.items()}
    ones, zeros = (fill((shape[lead + 1],), dtype=wide) for fill in (pt.ones, pt.zeros))
    merged = into_batch(given["x"], extra)
    normalize: Any = GroupNorm(op.num_groups, op.epsilon)
    normalized = normalize(merged, ones, zeros).reshape(shape)

    def per_channel(x: Any) -> Any:
        return x.dimshuffle(*range(lead), "x", lead, *"x" * (len(shape) - lead - 2))

    if isinstance(op, GroupNorm):
        return [normalized * per_channel(given["gamma"]) + per_channel(given["beta"])]
    gy = given["gy"]
    by_normalized = into_batch(gy * per_channel(given["gamma"]), extra)
    dx: Any = op.make_node(merged, ones, by_normalized).outputs[0]
    axes = [lead, *range(lead + 2, len(shape))]
    return [dx.reshape(shape), (gy * normalized).sum(axis=axes), gy.sum(axis=axes)]


@_vectorize_node.register(RNNBase)
def vectorize_rnn(op: RNNBase, node: Apply, *inputs: Any) -> Any:
    """Merge extra axes of a recurrent network with shared parameters into the batch.

    The loop also computes the reserve, which nothing needs then, and the gradient with respect to
    the parameters.
    """
    if not _has_extra(node, inputs, range(len(inputs))):
        return op.make_node(*inputs)
    loop: Any = vectorize_node_fallback(op, node, *inputs)
    if op.dropout or _has_extra(node, inputs, [0]):
        return loop
    axes: list[int | None] = [None if n == "w" else 0 if n == "lengths" else 1 for n in op.operands]
    count, states = len(op.operands), 2 + op.layout.has_cell
    if isinstance(op, RNNForward):

        def forward(*network: Any) -> list[Any]:
            return list(op.make_node(*network).outputs[:states])

        found = _merge(forward, node, inputs, axes, [1] * states)
        return [*found, *loop.outputs[states:]]
    names = RNNBase.__props__
    network_op = RNNForward(**{name: getattr(op, name) for name in names})

    def gradient(*given: Any) -> list[Any]:
        network, cotangents = given[:count], given[count:]
        outputs = network_op.make_node(*network).outputs
        made = op.make_node(*network, outputs[0], outputs[-1], *cotangents)
        return list(made.outputs[1:])

    # The results and the reserve of the network are computed from merged operands again.
    kept = [*range(count), *range(count + 2, len(inputs))]
    core = Apply(op, [node.inputs[i] for i in kept], [x.clone() for x in node.outputs])
    found = _merge(
        gradient,
        core,
        [inputs[i] for i in kept],
        [*axes, *[1] * states],
        [1] * (len(node.outputs) - 1),
    )
    return [loop.outputs[0], *found]


@_vectorize_node.register(SamplerBase)
@_vectorize_node.register(SpatialTransformerGrid)
@_vectorize_node.register(SpatialTransformerGridGrad)
def vectorize_spatial_transformer(op: Any, node: Apply, *inputs: Any) -> Any:
    """Merge extra axes of the parts of a spatial transformer into the batch."""
    if not _has_extra(node, inputs, range(len(inputs))):
        return op.make_node(*inputs)
    axes = [None if x.type.dtype == "int64" else 0 for x in node.inputs]
    operands = [
        of_one_entry(type(op).__name__, "out_shape", x, 1) if axis is None else x
        for x, axis in zip(inputs, axes, strict=True)
    ]
    if not _has_extra(node, operands, range(len(inputs))):
        return op.make_node(*operands)
    return _merge_node(op, node, operands, axes)


@_vectorize_node.register(SoftmaxGradBase)
@_vectorize_node.register(WholeSoftmax)
def vectorize_softmax(op: Any, node: Apply, *inputs: Any) -> Any:
    """Vectorize a softmax or its gradient by moving its axes."""
    core = node.inputs[0].type.ndim
    extra, spread = with_extra_axes(inputs, *(x.type.ndim for x in node.inputs))
    axes = range(core) if op.axis is None else np.atleast_1d(op.axis).tolist()
    parameters = {name: getattr(op, name) for name in op.__props__}
    parameters["axis"] = tuple(len(extra) + axis % core for axis in axes)
    return type(op)(**parameters).make_node(*spread)
