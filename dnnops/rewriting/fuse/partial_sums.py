"""Compute sums from sums of some of their terms.

PyTensor writes nested sums as flat ones. In a residual network, ``x1 = x0 + a``, ``x2 = x1 + b``
and so on become ``x0 + a + b + ...``, each with one term more. All of them are needed, because
other layers read them, so the number of arrays to read grows with the square of the number of
layers, and all terms stay in memory. Gradients of the residuals are sums of the same kind.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.scalar.basic import Add
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import add

__all__ = ["PartialSums"]


class PartialSums(GraphRewriter):
    """Replace the terms of a sum that are the terms of another sum with that sum."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        sums = {node: Counter(node.inputs) for node in fgraph.toposort() if _is_sum(node)}
        found = []
        for node, terms in sums.items():
            parts = {
                user
                for x in terms
                for user, _ in fgraph.clients[x]
                if user in sums and len(user.inputs) < len(node.inputs)
            }
            parts = {n for n in parts if sums[n] <= terms and _saves_memory(n, node)}
            if parts:
                # The order of a set is not reproducible.
                part = max((n for n in sums if n in parts), key=lambda n: len(n.inputs))
                found.append((node, part))
        # Long sums first, so that partial sums that are replaced themselves are in the graph.
        found.sort(key=lambda pair: -len(pair[0].inputs))
        pairs: list[tuple[Variable, Variable]] = []
        for node, part in found:
            left = sums[part].copy()
            rest = []
            for x in node.inputs:
                if left[x]:
                    left[x] -= 1
                else:
                    rest.append(x)
            new: Any = add(part.outputs[0], *rest)
            copy_stack_trace(node.outputs[0], new)
            pairs.append((node.outputs[0], new))
        fgraph.replace_all_validate(pairs, reason="partial_sums")


def _is_sum(node: Apply) -> bool:
    """Return whether a node adds floats of one dtype, whose sum does not depend on the nesting."""
    if not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, Add):
        return False
    dtypes = {x.type.dtype for x in (*node.inputs, *node.outputs)}
    return len(dtypes) == 1 and dtypes.pop().startswith("float")


def _saves_memory(part: Apply, whole: Apply) -> bool:
    """Return whether reading a partial sum instead of its terms saves more than storing it costs.

    Fusion may otherwise not store it. A bias costs nothing to read.
    """
    ones = whole.outputs[0].type.broadcastable
    if part.outputs[0].type.broadcastable != ones:
        return False
    return sum(x.type.broadcastable == ones for x in part.inputs) > 1
