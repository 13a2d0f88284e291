"""Take away from recurrent networks what a graph does not use."""

from __future__ import annotations

from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace, dfs_rewriter, node_rewriter

from dnnops.cudnn.rnn import GpuDnnRNNBackward, GpuDnnRNNForward
from dnnops.nnet.rnn_ops import RNNBackward, RNNForward

__all__ = ["local_rnn_unused"]


@node_rewriter([RNNForward, RNNBackward, GpuDnnRNNForward, GpuDnnRNNBackward])
def local_rnn_unused(fgraph: FunctionGraph, node: Apply) -> dict[Any, Any] | None:
    """Drop a reserve without a gradient, and a gradient by the input that nobody asked for.

    Both are the last of an Op's results.
    """
    last = node.outputs[-1]
    if fgraph.clients[last]:
        return None
    op: Any = node.op
    if isinstance(op, RNNForward) and op.keeps_reserve:
        op = type(op)(**op.network, keeps_reserve=False)
    elif isinstance(op, RNNBackward) and op.by_x:
        op = type(op)(**op.network, by_x=False)
    else:
        return None
    outputs = op.make_node(*node.inputs).outputs
    copy_stack_trace(node.outputs[:-1], outputs)
    return dict(zip(node.outputs[:-1], outputs, strict=True))


# When graphs are simplified, before they move to a GPU (49) or to oneDNN.
optdb.register("rnn_unused", dfs_rewriter(local_rnn_unused), "fast_run", position=48.6)
