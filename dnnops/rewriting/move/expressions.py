"""The simplified expressions of Ops that have no GPU version."""

from __future__ import annotations

from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from dnnops.rewriting.faults import faulty_rewrites
from dnnops.rewriting.move.lifters import ExpandFunction

__all__ = ["Expressions"]

#: PyTensor's passes over an expression.
_PASSES = ("merge", "ShapeOpt", "canonicalize", "elemwise_fusion")
#: Reductions on the GPU are not fused with elementwise Ops. If an array and its transpose are used,
#: elementwise Ops would be computed for each.
_EXCLUDED = ("local_careduce_fusion", "local_dimshuffle_lift")


class Expressions:
    """Expand Ops into expressions as simple as if the user had written them.

    Ops are expanded when PyTensor's passes are over. Nodes of one Op whose operands have the same
    types share an expression, so that it is simplified only once.

    Parameters
    ----------
    excluded_tags : frozenset of str
        Tags whose rewrites are not applied.
    """

    def __init__(self, excluded_tags: frozenset[str] = frozenset()):
        self._excluded_tags = excluded_tags
        self._made: dict[Any, FunctionGraph] = {}

    def of(self, node: Apply, expand: ExpandFunction, inputs: list[Any]) -> list[Any]:
        """Return the expressions of a node's outputs.

        Parameters
        ----------
        node : Apply
        expand : callable
            Function from `dnnops.rewriting.move.lifters.expansion_of`.
        inputs : list of Variable
            Host variables for the operands.

        Returns
        -------
        list of Variable
        """
        kinds = [x if isinstance(x, Constant) else x.type for x in inputs]
        graph = self._made.get(key := (node.op, *kinds))
        if graph is None:
            graph = self._made[key] = self._simplified(node, expand, inputs)
        given = [x for x in inputs if not isinstance(x, Constant)]
        new: dict[Variable, Any] = dict(zip(graph.inputs, given, strict=True))
        for inner in graph.toposort():
            copied = inner.clone_with_new_inputs([new.get(x, x) for x in inner.inputs])
            new.update(zip(inner.outputs, copied.outputs, strict=True))
        return [new.get(z, z) for z in graph.outputs]

    def _simplified(self, node: Apply, expand: ExpandFunction, inputs: list[Any]) -> FunctionGraph:
        operands = [x if isinstance(x, Constant) else x.type() for x in inputs]
        graph = FunctionGraph(
            [x for x in operands if not isinstance(x, Constant)],
            list(expand(node, operands)),
            clone=False,
        )
        excluded = (*_EXCLUDED, *faulty_rewrites(), *self._excluded_tags)
        optdb.query(RewriteDatabaseQuery(include=_PASSES, exclude=excluded)).rewrite(graph)
        return graph
