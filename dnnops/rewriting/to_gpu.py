"""The rewrite that moves a graph to the GPU.

It is registered in PyTensor's rewrite database with the tag ``"gpu"``, after elementwise fusion and
before in-place rewrites. No mode of PyTensor includes it by default: request the tag with
``mode.including("gpu")``.
"""

from __future__ import annotations

from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.rewriting.basic import register_canonicalize, register_specialize

import dnnops.rewriting.gpu_lifters  # fills the registry
import dnnops.rewriting.inplace
import dnnops.rewriting.linkers
import dnnops.rewriting.write_out  # noqa: F401 - these register what comes before and after
from dnnops.gpuarray.transfer import GpuFromHost, GpuToGpu, HostFromGpu
from dnnops.rewriting.lifting import (
    GpuDB,
    GraphToGpu,
    LiftContext,
    Lifter,
    register_lifter,
)

__all__ = ["GpuDB", "GraphToGpu", "LiftContext", "Lifter", "register_lifter"]

#: After elemwise_fusion (49), before add_destroy_handler (49.5).
GPU_POSITION = 49.2

optdb.register("gpu_lift", GpuDB(), "gpu", position=GPU_POSITION)


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
