"""Remove and list transfers between host and device."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.rewriting.basic import register_canonicalize, register_specialize

from dnnops.gpuarray.transfer import GpuFromHost, GpuToGpu, HostFromGpu

__all__ = ["gpu_transfers", "local_cut_transfers"]


@register_canonicalize
@register_specialize
@node_rewriter([GpuFromHost, HostFromGpu, GpuToGpu])
def local_cut_transfers(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Remove pairs of opposite transfers, such as ``HostFromGpu(GpuFromHost(x))``.

    This runs early, because transfers inside an expression hide it from PyTensor's rewrites.
    """
    (x,) = node.inputs
    if x.owner is None or not isinstance(x.owner.op, GpuFromHost | HostFromGpu | GpuToGpu):
        return None
    (origin,) = x.owner.inputs
    (out,) = node.outputs
    if origin.type == out.type:
        return [origin]
    return None


def gpu_transfers(fgraph: FunctionGraph) -> list[Any]:
    """List the nodes of a graph that move data between host and device, or between devices.

    Parameters
    ----------
    fgraph : FunctionGraph

    Returns
    -------
    list of Apply
        Transfers in topological order.
    """
    kinds = GpuFromHost | HostFromGpu | GpuToGpu
    return [node for node in fgraph.toposort() if isinstance(node.op, kinds)]
