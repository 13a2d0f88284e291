"""Drop results of Ops that a graph does not use."""

from __future__ import annotations

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, dfs_rewriter, node_rewriter

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


# When graphs are simplified, before they move to a GPU (49.2) or to oneDNN (49.3): whether an Op
# can move may depend on it.
optdb.register(
    "unused_results", dfs_rewriter(local_unused_result), "fast_run", "fast_compile", position=48.6
)
# And again after the move, for results that only GPU Ops can omit.
optdb.register("gpu_unused_results", dfs_rewriter(local_unused_result), "gpu", position=49.22)
