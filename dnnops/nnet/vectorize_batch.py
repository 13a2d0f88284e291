"""Vectorization of losses, group normalization and others by merging into the batch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.replace import _vectorize_node

from dnnops.nnet.activation.softmax import SoftmaxGradBase, WholeSoftmax
from dnnops.nnet.extra_axes import (
    has_extra_axes,
    into_batch,
    merge_node,
    no_results,
    of_one_entry,
    sizes,
    spread_axis,
    with_extra_axes,
)
from dnnops.nnet.loss.cross_entropy import CrossEntropyBase, CrossEntropyGrad
from dnnops.nnet.norm.group_norm import GroupNorm, GroupNormBase
from dnnops.nnet.resample.spatial_transformer import (
    SamplerBase,
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
)
from dnnops.nnet.validate import accumulator_dtype

__all__ = [
    "vectorize_cross_entropy",
    "vectorize_group_norm",
    "vectorize_softmax",
    "vectorize_spatial_transformer",
]


@_vectorize_node.register(CrossEntropyBase)
def vectorize_cross_entropy(op: CrossEntropyBase, node: Apply, *inputs: Any) -> Any:
    """Merge extra axes of the cross-entropy or its gradient into the rows."""
    operands = list(inputs)
    if not has_extra_axes(node, inputs, range(len(inputs))):
        return op.make_node(*inputs)
    first = 1 if isinstance(op, CrossEntropyGrad) else 0
    x, labels = inputs[first : first + 2]
    if not op.every_row:
        # In merged entries, each row has a label.
        count = sizes(labels)[labels.type.ndim - 1]
        operands[first] = x[..., :count, :]
        results: Any = _vectorize_node(type(op)(), node, *operands)
        if not first:
            return results
        extra, _ = with_extra_axes([x, *results], 2)
        zeros = pt.zeros((*extra, *sizes(x)[-2:]), x.type.dtype)
        return [pt.set_subtensor(zeros[..., :count, :], results[0])]
    rows = sizes(x)[x.type.ndim - 2]
    if op.one_for_all:
        operands[first + 1] = spread_axis(inputs[first + 1], inputs[first + 1].type.ndim - 1, rows)
    if first:
        operands[0] = spread_axis(inputs[0], inputs[0].type.ndim - 1, rows)
    return merge_node(op, node, operands)


@_vectorize_node.register(GroupNormBase)
def vectorize_group_norm(op: GroupNormBase, node: Apply, *inputs: Any) -> Any:
    """Merge extra axes of group normalization into the batch, or into channels and groups.

    The latter keeps the parameters of entries, and the gradients with respect to them, apart. If
    the number of groups is not known, the parameters are applied outside the Op.
    """
    is_data = [name not in op.parameter_operands for name in op.operands]
    if not has_extra_axes(node, inputs, range(len(inputs))):
        return op.make_node(*inputs)
    are_shared = not has_extra_axes(node, inputs, [i for i, data in enumerate(is_data) if not data])
    if isinstance(op, GroupNorm) and are_shared:
        return merge_node(op, node, inputs, [0 if data else None for data in is_data])
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


@_vectorize_node.register(SamplerBase)
@_vectorize_node.register(SpatialTransformerGrid)
@_vectorize_node.register(SpatialTransformerGridGrad)
def vectorize_spatial_transformer(op: Any, node: Apply, *inputs: Any) -> Any:
    """Merge extra axes of the parts of a spatial transformer into the batch."""
    if not has_extra_axes(node, inputs, range(len(inputs))):
        return op.make_node(*inputs)
    axes = [None if x.type.dtype == "int64" else 0 for x in node.inputs]
    operands = [
        of_one_entry(type(op).__name__, "out_shape", x, 1) if axis is None else x
        for x, axis in zip(inputs, axes, strict=True)
    ]
    if not has_extra_axes(node, operands, range(len(inputs))):
        return op.make_node(*operands)
    return merge_node(op, node, operands, axes)


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
