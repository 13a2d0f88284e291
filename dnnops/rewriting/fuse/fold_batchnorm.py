"""Fold batch normalization in inference into the filters and the bias of a convolution.

``normalize(conv(x, w))`` is ``conv(x, w * scale) + bias`` with ``scale = gamma / sqrt(var +
epsilon)`` and ``bias = beta - mean * scale``. cuDNN computes a bias in the convolution's kernel,
but a scale only in kernels that it compiles for each graph, so the filters are scaled. In mixed
precision this costs nothing, because they are converted in each call anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace

from dnnops.dtypes import numpy_dtype
from dnnops.errors import DnnUnavailableError
from dnnops.gpu.conv import GpuDnnConvBase
from dnnops.gpu.fused.folded_filters import GpuFoldBatchNorm
from dnnops.gpuarray.basic import GpuDimShuffle
from dnnops.gpuarray.transfer import GpuCast, GpuFromHost
from dnnops.gpuarray.type import GpuArrayType
from dnnops.gpuarray.variable import GpuArrayConstant

__all__ = ["Folded", "MergeFolded", "fold"]

#: Bytes of the scaled filters that one kernel writes, at most, unless those of a single convolution
#: are more.
_GROUP_BYTES = 2**24


class Folded(NamedTuple):
    """What a convolution and its batch normalization become.

    Attributes
    ----------
    filters : Variable
        Scaled filters.
    bias : Variable
        Summands of the channels, of shape ``(1, channels, 1...)``.
    """

    filters: Any
    bias: Any


def fold(conv: Apply, norm: Apply) -> Folded | None:
    """Fold batch normalization into a convolution.

    Parameters
    ----------
    conv : Apply
        Node of `GpuDnnConv`.
    norm : Apply
        Node of `GpuDnnBatchNormInference` of its result.

    Returns
    -------
    Folded or None
        None if the statistics are not per channel, or epsilon is not constant.
    """
    parameters, epsilon = norm.inputs[1:5], norm.inputs[5]
    ndim = conv.outputs[0].type.ndim
    of_channel = tuple(axis != 1 for axis in range(ndim))
    if norm.op.axes != (0, *range(2, ndim)) or not isinstance(epsilon, Constant):
        return None
    dtypes = {x.type.dtype for x in parameters}
    if len(dtypes) > 1 or any(x.type.broadcastable != of_channel for x in parameters):
        return None
    dtype = conv.outputs[0].type.dtype
    filters = conv.inputs[1]
    if filters.owner is not None and isinstance(filters.owner.op, GpuCast):
        filters = filters.owner.inputs[0]
    op = GpuFoldBatchNorm(float(epsilon.data), dtype)
    scaled, bias = op.make_node(filters, *parameters).outputs
    operands = (filters, *parameters)
    if all(isinstance(x, GpuArrayConstant) for x in operands):
        with suppress(DnnUnavailableError):  # bfloat16 constants need ml_dtypes
            scaled, bias = _of_constants(op, [x.host_data for x in operands], (scaled, bias))
    return Folded(scaled, bias)


def _of_constants(op: Any, values: list[np.ndarray], results: Any) -> list[Any]:
    filters, gamma, beta, mean, var = (x.astype("float64") for x in values)
    scale = gamma / np.sqrt(var + op.epsilon)
    found = (filters * scale.swapaxes(0, 1), beta - mean * scale)
    return [
        GpuArrayConstant(
            GpuArrayType(op.dtype, value.shape, result.type.device),
            _finite(value, op.dtype).astype(numpy_dtype(op.dtype)),
        )
        for value, result in zip(found, results, strict=True)
    ]


def _finite(value: np.ndarray, dtype: str) -> np.ndarray:
    """Return finite numbers that are finite in float16, too, as the kernel does."""
    if dtype != "float16":
        return value
    largest = float(np.finfo("float16").max)
    return np.where(np.isfinite(value), np.clip(value, -largest, largest), value)


class MergeFolded(GraphRewriter):
    """Fold the batch normalizations of parameters in few kernels.

    A kernel for each convolution would take longer to launch than to run, and one for all would
    need memory for all scaled filters at once. They get the memory format of the convolution's
    images, so that no plan has to copy them.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        groups: dict[tuple[Any, ...], list[Apply]] = defaultdict(list)
        for node in fgraph.toposort():
            if isinstance(node.op, GpuFoldBatchNorm) and all(map(_is_parameter, node.inputs)):
                filters, gamma = node.inputs[:2]
                op = node.op.replace(memory_format=_memory_format(fgraph, node))
                groups[op, filters.type.dtype, filters.type.device, gamma.type.dtype].append(node)
        for (op, *_), found in groups.items():
            for nodes in _parts(found):
                merged: Any = op.replace(count=len(nodes))
                old = [z for node in nodes for z in node.outputs]
                new = merged.make_node(*(x for node in nodes for x in node.inputs)).outputs
                copy_stack_trace(old, new)
                pairs = list(zip(old, new, strict=True))
                fgraph.replace_all(pairs, reason="merge_folded_batchnorm")


def _parts(nodes: list[Apply]) -> Iterator[list[Apply]]:
    """Divide nodes, in their order, by the size of their filters; unknown sizes count as 0."""
    part: list[Apply] = []
    total = 0
    for node in nodes:
        filters: Any = node.outputs[0].type
        nbytes = 0 if None in filters.shape else prod(filters.shape) * filters.numpy_dtype.itemsize
        if part and total + nbytes > _GROUP_BYTES:
            yield part
            part, total = [], 0
        part.append(node)
        total += nbytes
    if part:
        yield part


def _is_parameter(x: Any) -> bool:
    """Return whether a variable depends on no node but views and transfers."""
    while x.owner is not None:
        if not isinstance(x.owner.op, GpuDimShuffle | GpuFromHost):
            return False
        (x,) = x.owner.inputs
    return True


def _memory_format(fgraph: FunctionGraph, node: Apply) -> str:
    """Return the memory format of the images that the filters are convolved with."""
    users = [user.op for user, _ in fgraph.clients[node.outputs[0]]]
    formats = {op.memory_format for op in users if isinstance(op, GpuDnnConvBase)}
    return formats.pop() if len(formats) == 1 else "contiguous"
