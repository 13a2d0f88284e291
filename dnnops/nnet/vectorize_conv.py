"""Vectorization of convolution for ``vectorize_graph``.

Extra axes of images merge into the batch. If the filters have extra axes too, each entry becomes a
group, whose number must be known when the graph is built. Otherwise, the convolution becomes one
product of stacked matrices: of each entry's filters and the patches of its images.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor.blockwise import vectorize_node_fallback

from dnnops.nnet.conv.base import ConvBase
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.expressions import reshaped
from dnnops.nnet.extra_axes import into_batch, no_results, of_one_entry, sizes, with_extra_axes
from dnnops.nnet.validate import vector_entries

__all__ = ["vectorize_conv"]

#: Roles of the two data operands and of the result of each Op.
ROLES: dict[type, tuple[str, str, str]] = {
    Conv: ("image", "filters", "image"),
    ConvGradInputs: ("filters", "image", "image"),
    ConvGradWeights: ("image", "image", "filters"),
}


def _into_channels(x: Any, extra: Sequence[Any]) -> Any:
    batch, channels, *spatial = sizes(x)[len(extra) :]
    count = prod(extra)
    x = x.reshape((count, batch, channels, *spatial)).swapaxes(0, 1)
    return x.reshape((batch, count * channels, *spatial))


def _out_of_channels(x: Any, extra: Sequence[Any]) -> Any:
    batch, channels, *spatial = sizes(x)
    count = prod(extra)
    x = x.reshape((batch, count, channels // count, *spatial)).swapaxes(0, 1)
    return x.reshape((*extra, batch, channels // count, *spatial))


@_vectorize_node.register(ConvBase)
def vectorize_conv(op: ConvBase, node: Apply, *inputs: Any) -> Any:
    """Merge extra axes of a convolution or its gradient into the batch or the channels."""
    roles = ROLES.get(type(op))
    if roles is None:
        return vectorize_node_fallback(op, node, *inputs)
    data = list(inputs[:2])
    shape = [of_one_entry(op.where, "the spatial shape", vector, 1) for vector in inputs[2:]]
    core = op.ndim + 2
    if all(x.type.ndim == core for x in data):
        return op.make_node(*data, *shape)
    if "filters" in roles[:2] and data[roles.index("filters")].type.ndim == core:
        image = data[roles.index("image")]
        extra = sizes(image)[:-core]
        folded = [
            into_batch(x, extra) if role == "image" else x
            for x, role in zip(data, roles, strict=False)
        ]
        out: Any = op(*folded, *shape)
        return [out.reshape((*extra, sizes(image)[-core], *sizes(out)[1:]))]
    extra, data = with_extra_axes(data, core)
    if not all(isinstance(size, int) for size in extra):
        return [_with_patches(op, extra, data, shape)]
    if not all(size > 0 for size in extra):
        return no_results(op, data, extra, *shape)
    parameters = {name: getattr(op, name) for name in op.__props__}
    parameters["num_groups"] *= prod(extra)
    fold = {"image": _into_channels, "filters": into_batch}
    folded = [fold[role](x, extra) for x, role in zip(data, roles, strict=False)]
    grouped: Any = type(op)(**parameters)
    out = grouped(*folded, *shape)
    if roles[2] == "image":
        return [_out_of_channels(out, extra)]
    filters, *rest = sizes(out)
    return [out.reshape((*extra, filters // prod(extra), *rest))]


def _with_patches(op: ConvBase, extra: Sequence[Any], data: Sequence[Any], shape: Any) -> Any:
    """Convolve each entry's images with its filters, or compute a gradient, by a matrix product.

    The patches of the images, which overlap, come from a convolution with filters that have a
    single 1 each. Its gradient adds patches up again.
    """
    groups, lead, entries = op.num_groups, len(extra), prod(extra)
    single: dict[str, Any] = {**op.conv_params(), "num_groups": 1}

    def grouped_filters(filters: Any) -> Any:
        """Return the filters as matrices (entry, 1, group, filter, tap of a channel)."""
        count, *rest = sizes(filters)[lead:]
        return reshaped(filters, (entries, 1, groups, count // groups, prod(rest)))

    def grouped_images(images: Any) -> Any:
        """Return output images as matrices (entry, sample, group, channel, position)."""
        batch, channels, *spatial = sizes(images)[lead:]
        return reshaped(images, (entries, batch, groups, channels // groups, prod(spatial)))

    def separate(spatial: Sequence[Any]) -> Any:
        """Return the filters that each take one element of a patch."""
        taps = prod(spatial)
        ones = pt.eye(taps, dtype=data[0].type.dtype)
        return reshaped(ones, (taps, 1, *spatial))

    def patches(images: Any, spatial: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Return matrices (entry, sample, group, tap of a channel, position), and output sizes."""
        batch, channels, *inner = sizes(images)[lead:]
        every = reshaped(images, (entries * batch * channels, 1, *inner))
        found = Conv(**single)(every, separate(spatial))
        taps, *outer = sizes(found)[1:]
        rows = channels // groups * taps
        return reshaped(found, (entries, batch, groups, rows, prod(outer))), outer

    if isinstance(op, Conv):
        images, filters = data
        columns, outer = patches(images, sizes(filters)[lead + 2 :])
        products = grouped_filters(filters) @ columns
        counts = sizes(images)[lead], sizes(filters)[lead]
        return reshaped(products, (*extra, *counts, *outer))
    if isinstance(op, ConvGradWeights):
        images, tops = data
        spatial = vector_entries(shape[0], op.ndim)
        columns, _ = patches(images, spatial)
        # Sum over samples and positions.
        left, right = (_joined(x) for x in (grouped_images(tops), columns))
        products = left @ right.swapaxes(-1, -2)
        channels = sizes(images)[lead + 1] // groups
        return reshaped(products, (*extra, sizes(tops)[lead + 1], channels, *spatial))
    filters, tops = data
    batch, _, *outer = sizes(tops)[lead:]
    per_group, *taps = sizes(filters)[lead + 1 :]
    products = grouped_filters(filters).swapaxes(-1, -2) @ grouped_images(tops)
    channels = per_group * groups
    found = reshaped(products, (entries * batch * channels, prod(taps), *outer))
    images = ConvGradInputs(**single)(separate(taps), found, *shape)
    return reshaped(images, (*extra, batch, channels, *sizes(images)[2:]))


def _joined(x: Any) -> Any:
    """Join samples and positions: (entry, sample, group, row, position) becomes a matrix each."""
    entries, batch, groups, rows, positions = sizes(x)
    return reshaped(x.transpose(0, 2, 3, 1, 4), (entries, groups, rows, batch * positions))
