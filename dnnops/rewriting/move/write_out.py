"""Expand Ops without a GPU version into elementwise Ops, before those are fused."""

from __future__ import annotations

from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import MergeOptimizer, copy_stack_trace

from dnnops.gpuarray.op import is_on_device
from dnnops.rewriting.move.forecast import ForecastRewriter
from dnnops.rewriting.move.lifters import expands_elementwise, expansion_of

__all__ = ["WriteOut"]


class WriteOut(ForecastRewriter):
    """Expand the nodes that will move to the device and run there as elementwise Ops.

    The pass that moves the graph would also expand them, but only after elementwise fusion.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        if not any(expands_elementwise(node.op) for node in fgraph.apply_nodes):
            return
        order = fgraph.toposort()
        forecast = self.forecast(fgraph, order)
        for node in order:
            # A subclass of an abstract Op on the device was placed there on purpose.
            stays = node not in forecast.moved or any(map(is_on_device, node.outputs))
            expand = expansion_of(node.op) if expands_elementwise(node.op) else None
            if stays or expand is None or forecast.lifters[node]:
                continue
            outputs = list(expand(node, list(node.inputs)))
            copy_stack_trace(node.outputs, outputs)
            replacements = list(zip(node.outputs, outputs, strict=True))
            fgraph.replace_all_validate(replacements, reason="write_out")
        # Merge now: fusion would hide subexpressions that an Op shares with its gradient.
        MergeOptimizer().apply(fgraph)
