"""Restrict rewrites of PyTensor's own Ops to graphs of neural networks."""

from __future__ import annotations

from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.tensor.special import LogSoftmax, Softmax

from dnnops.rewriting.recognize.activation import is_spelled

__all__ = ["InNetworks"]


class InNetworks(GraphRewriter):
    """Apply rewriters to graphs of neural networks.

    Parameters
    ----------
    steps : GraphRewriter
        Rewriters to apply, in order.
    everywhere : bool
        Whether to treat every graph as a neural network. If False, only graphs with a dnnops Op or
        a softmax count.
    """

    def __init__(self, *steps: GraphRewriter, everywhere: bool = True):
        super().__init__()
        self.steps = steps
        self.everywhere = everywhere

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        if (
            self.everywhere
            or is_spelled(fgraph)
            or any(
                isinstance(node.op, Softmax | LogSoftmax)
                or type(node.op).__module__.startswith("dnnops.")
                for node in fgraph.apply_nodes
            )
        ):
            for step in self.steps:
                step.apply(fgraph)
