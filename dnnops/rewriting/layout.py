"""Keep images channels-last where convolutions run on tensor cores.

Tensor cores read channels-last arrays, so a convolution of contiguous arrays copies them to that
format and its result back. Here, whole chains of convolution, pooling, batch normalization,
concatenation and elementwise Ops keep their images channels-last instead, so that only the ends of
a chain are copied.

Axes keep their order: only strides change. Convolution and pooling have a parameter for the memory
format of their result, and all other Ops give their result the format of their operands.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace

from dnnops.dtypes import HALF_DTYPES
from dnnops.gpu.batchnorm import GpuDnnBatchNormBase
from dnnops.gpu.conv import GpuDnnConvBase, GpuDnnConvGradW
from dnnops.gpu.pool import GpuDnnPoolBase
from dnnops.gpuarray.basic import GpuJoin, GpuSplit
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import GpuCast

__all__ = ["ChannelsLast"]

#: Ops with a parameter for the memory format of their result.
_FORMATTED = (GpuDnnConvBase, GpuDnnPoolBase)


def _with_pixels(variables: Sequence[Variable]) -> list[Any]:
    """Return the device variables that can have pixels: at least two spatial axes."""
    return [x for x in variables if is_on_device(x) and x.type.ndim >= 4]


def _images(node: Apply) -> list[Any]:
    """Return the operands and results of a node that share a memory format."""
    op = node.op
    if isinstance(op, GpuDnnConvBase):
        found = [x for i, x in enumerate(node.inputs) if i not in op.packed_operands]
        if not isinstance(op, GpuDnnConvGradW):
            return _with_pixels([*found, *node.outputs])
        return _with_pixels(found[:2])
    if isinstance(op, GpuDnnPoolBase):
        return _with_pixels([*node.inputs, *node.outputs])
    # Operands that are broadcast, such as a bias, have no format.
    if isinstance(op, GpuDnnBatchNormBase):
        ndim = node.inputs[0].type.ndim
        if op.axes != (0, *range(2, ndim)):
            return []
    elif not isinstance(op, GpuElemwise | GpuCast | GpuJoin | GpuSplit):
        return []
    wanted = node.outputs[0].type.broadcastable
    images = _with_pixels([*node.inputs, *node.outputs])
    return [x for x in images if x.type.broadcastable == wanted]


def _preference(node: Apply) -> int:
    """Return 1 if a convolution is faster channels-last, -1 if it is slower, else 0."""
    op = node.op
    if not isinstance(op, GpuDnnConvBase):
        return 0
    if not str(op.algo).startswith(("guess_", "time_")):
        return -1  # the selected algorithm may not support channels-last arrays
    if op.num_groups > 1:
        return 0  # the kernels for grouped convolutions support both formats
    dtype = node.outputs[0].type.dtype
    on_tensor_cores = dtype in HALF_DTYPES or (dtype == "float32" and op.allow_tf32)
    return 1 if on_tensor_cores else -1


def _parts(images: dict[Apply, list[Any]]) -> dict[Any, Any]:
    """Return a representative of each image's part: all images that share its format."""
    users = defaultdict(list)
    for node, connected in images.items():
        for x in connected:
            users[x].append(node)
    found: dict[Any, Any] = {}
    for first in users:
        pending = [first]
        while pending:
            x = pending.pop()
            if x not in found:
                found[x] = first
                pending += [y for node in users[x] for y in images[node]]
    return found


class ChannelsLast(GraphRewriter):
    """Let convolution and pooling return channels-last images where most convolutions prefer it.

    Each part of the graph, connected by Ops that pass on a memory format, gets one format.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        if not any(_preference(node) > 0 for node in fgraph.apply_nodes):
            return
        images = {node: _images(node) for node in fgraph.toposort()}
        parts = _parts(images)
        votes: Counter[Any] = Counter()
        for node, connected in images.items():
            if connected:
                votes[parts[connected[0]]] += _preference(node)
        for node in images:
            out = node.outputs[0]
            if isinstance(node.op, _FORMATTED) and votes[parts.get(out)] > 0:
                new = node.op.replace(memory_format="channels_last").make_node(*node.inputs)
                copy_stack_trace(out, new.outputs[0])
                fgraph.replace(out, new.outputs[0], reason="channels_last")
