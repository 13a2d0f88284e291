"""Copy transposed arrays once, not in each Op that needs them contiguous."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, node_rewriter

from dnnops.gpuarray.basic import GpuContiguous, GpuDimShuffle, GpuReshape
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.products.blas import GpuBatchedDot

__all__ = ["local_contiguous_transpose"]

#: Ops that copy a transposed array.
_COPYING = (GpuReshape, GpuBatchedDot)


def _moved_axes(node: Apply) -> list[int] | None:
    """Return the old axes in their new order, without axes of length 1."""
    if not isinstance(node.op, GpuDimShuffle):
        return None
    return [axis for axis in node.op.host_op.new_order if axis != "x"]


def _swaps_matrices(node: Apply) -> bool:
    """Return whether a node transposes the matrices of a batch, which products can read."""
    axes = _moved_axes(node)
    return axes is not None and len(axes) > 1 and axes[:-2] == list(range(len(axes) - 2))


def _is_copied(fgraph: FunctionGraph, x: Variable) -> bool:
    """Return whether an Op copies `x`, or a view or elementwise result in its order."""
    return any(
        isinstance(client.op, _COPYING)
        or (_swaps_matrices(client) and _is_copied(fgraph, client.outputs[0]))
        or (isinstance(client.op, GpuElemwise) and _is_multiplied(fgraph, client))
        for client, _ in fgraph.clients[x]
    )


def _is_multiplied(fgraph: FunctionGraph, node: Apply) -> bool:
    """Return whether a result of a node is an operand of a product."""
    return any(
        isinstance(client.op, GpuBatchedDot)
        for z in node.outputs
        for client, _ in fgraph.clients[z]
    )


@node_rewriter([GpuDimShuffle])
def local_contiguous_transpose(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Make a transposed array contiguous if an Op would copy it anyway.

    Attention transposes queries, keys and values, each of which several products read, and its
    result and their gradients, which several Ops reshape.
    """
    axes, x = _moved_axes(node), node.outputs[0]
    if axes is None or axes == sorted(axes) or _swaps_matrices(node):
        return None
    clients = fgraph.clients[x]
    if any(isinstance(client.op, GpuContiguous) for client, _ in clients):
        return None
    if not _is_copied(fgraph, x):
        return None
    new: Any = node.op.make_node(*node.inputs).outputs[0]
    result = GpuContiguous()(new)
    copy_stack_trace(x, [new, result])
    return [result]
