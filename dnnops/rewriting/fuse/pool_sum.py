"""Let the gradient of max pooling on the GPU add what is added to it.

Where a network keeps an image for later and also pools it, as a U-Net does, the gradient of the
image is the sum of two. Often the other one is some channels of the gradient of a concatenation,
which the kernel of pooling reads where they are. Without the separate sum, the gradient of pooling
is not written and read again.
"""

from __future__ import annotations

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace

from dnnops.gpu.fused.pool_sum import GpuDnnPoolGradSum, has_kernel
from dnnops.gpu.pool import GpuDnnPoolGrad
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import is_on_device
from dnnops.rewriting.fuse.scalar_graphs import Loop

__all__ = ["FusePoolSum"]


class FusePoolSum(GraphRewriter):
    """Replace sums with gradients of max pooling that have no other use."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        for node in fgraph.toposort():
            if type(node.op) is not GpuDnnPoolGrad or not has_kernel(node):
                continue
            found = _sum_with_another(fgraph, node.outputs[0])
            if found is None:
                continue
            old, addend = found
            properties = {name: getattr(node.op, name) for name in node.op.__props__}
            data, vectors = node.inputs[:-3], node.inputs[-3:]
            new = GpuDnnPoolGradSum(**properties).make_node(*data, addend, *vectors).outputs[0]
            copy_stack_trace([node.outputs[0], old], new)
            fgraph.replace(old, new, reason="fuse_pool_sum")


def _sum_with_another(fgraph: FunctionGraph, x: Variable) -> tuple[Variable, Variable] | None:
    """Return the sum that alone uses a variable, and the other addend if it has the same type."""
    users: list[tuple[Apply, int]] = fgraph.clients[x]
    if len(users) != 1:
        return None
    ((user, index),) = users
    if not isinstance(user.op, GpuElemwise) or len(user.outputs) != 1:
        return None
    loop = Loop(user)
    terms = loop.sum_of_two(loop.outputs[0])
    if loop.inputs[index] not in terms:
        return None
    addend = loop.variables[terms[1 - terms.index(loop.inputs[index])]]
    same = is_on_device(addend) and all(
        (v.type.dtype, v.type.broadcastable) == (x.type.dtype, x.type.broadcastable)
        for v in (addend, user.outputs[0])
    )
    return (user.outputs[0], addend) if same else None
