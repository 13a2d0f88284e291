"""Leave out the gradients of the CTC loss where nothing needs them."""

from __future__ import annotations

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, node_rewriter
from pytensor.tensor.rewriting.basic import register_canonicalize

from dnnops.nnet.ctc import CTC

__all__ = ["local_ctc_without_gradients"]


@register_canonicalize("fast_compile")
@node_rewriter([CTC])
def local_ctc_without_gradients(
    fgraph: FunctionGraph, node: Apply
) -> dict[Variable, Variable] | None:
    """Replace a `CTC` of which only the costs are used by one that has no other output."""
    if not node.op.with_gradients or fgraph.clients[node.outputs[1]]:
        return None
    costs = node.op.without_gradients(node)
    copy_stack_trace(node.outputs[0], costs)
    return {node.outputs[0]: costs}
