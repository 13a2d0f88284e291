"""Drop results of Ops that a graph does not use."""

from __future__ import annotations

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, node_rewriter

from dnnops.nnet.optional_result import OptionalResultOp

__all__ = ["local_unused_result"]


@node_rewriter([OptionalResultOp])
def local_unused_result(fgraph: FunctionGraph, node: Apply) -> dict[Variable, Variable] | None:
    """Replace an Op whose last result is unused with one that does not compute it.

    Such results are the reserve of a recurrent network without a gradient, a network's gradient
    with respect to its input, the gradients of the CTC loss and, on a GPU, the statistics of
    attention.
    """
    *used, last = node.outputs
    if not node.op.has_optional_result or fgraph.clients[last]:
        return None
    outputs = node.op.with_optional_result(False).make_node(*node.inputs).outputs
    copy_stack_trace(used, outputs)
    return dict(zip(used, outputs, strict=True))
