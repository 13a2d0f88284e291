"""Write out in elementwise Ops, before these are fused, what the GPU has no Op of its own for."""

from __future__ import annotations

from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, MergeOptimizer, copy_stack_trace
from pytensor.graph.rewriting.db import RewriteDatabase

from dnnops.gpuarray.op import is_on_device
from dnnops.rewriting.forecast import Forecast
from dnnops.rewriting.lifters import expands_elementwise, expansion_of
from dnnops.rewriting.lifting import gpu_tags

__all__ = ["WriteOut", "WriteOutDB"]


class WriteOut(GraphRewriter):
    """Write out the nodes that will move to the device and be elementwise there.

    The pass that moves the graph would do it too, but after elementwise Ops have been fused.

    Parameters
    ----------
    excluded_tags : frozenset of str
        Lifters with one of these tags aren't asked.
    everything : bool
        Whether everything moves that has a lifter.
    """

    def __init__(self, excluded_tags: frozenset[str] = frozenset(), everything: bool = False):
        super().__init__()
        self.excluded_tags = excluded_tags
        self.everything = everything

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        if not any(expands_elementwise(node.op) for node in fgraph.apply_nodes):
            return
        order = fgraph.toposort()
        forecast = Forecast(fgraph, order, self.excluded_tags, self.everything)
        for node in order:
            # An abstract Op's subclass on the device has been put there on purpose.
            stays = node not in forecast.moved or any(map(is_on_device, node.outputs))
            expand = expansion_of(node.op) if expands_elementwise(node.op) else None
            if stays or expand is None or forecast.lifters[node]:
                continue
            outputs = list(expand(node, list(node.inputs)))
            copy_stack_trace(node.outputs, outputs)
            replacements = list(zip(node.outputs, outputs, strict=True))
            fgraph.replace_all_validate(replacements, reason="write_out")
        # What an Op and its gradient share would be hidden by fusion.
        MergeOptimizer().apply(fgraph)


class WriteOutDB(RewriteDatabase):
    """The entry ``"gpu_write_out"`` of PyTensor's database, which passes on what is excluded."""

    def query(self, *tags: Any, **kwtags: Any) -> WriteOut:
        """Make the rewriter for a query."""
        return WriteOut(*gpu_tags(tags))


# Before elemwise_fusion (49), with the modes that move a graph to the GPU.
optdb.register("gpu_write_out", WriteOutDB(), "gpu", position=48.97)
