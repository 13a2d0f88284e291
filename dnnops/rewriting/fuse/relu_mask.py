"""Let gradients of relu take their mask from its result, where relu becomes part of another Op.

Elementwise fusion makes one loop of relu and of the comparison of its operand with zero, which is
the mask for relu's gradient. Once another Op computes relu, no array holds the operand, but the
result tells the same.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar.basic import gt, le

from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.transfer import GpuCast
from dnnops.rewriting.fuse.scalar_graphs import Loop, uncast

__all__ = ["MOST_MASKED", "OF_RESULT", "FollowedByRelu", "Pairs", "RefusedError"]

#: Comparisons that have the same result for relu's operand and for its result.
OF_RESULT = {"<=": le, ">": gt}

#: With more users, the mask would cost more to compute than to write and read.
MOST_MASKED = 2

Pairs = list[tuple[Variable, Variable]]


class RefusedError(Exception):
    """A node cannot be fused, or that would not save anything."""


class FollowedByRelu:
    """What replaces a node and the elementwise node that follows it.

    Parameters
    ----------
    fgraph : FunctionGraph
        Graph of the node.
    node : Apply
        The node. Its first result is used by the elementwise node.

    Attributes
    ----------
    y : Variable
        First result of the node.
    user : Apply
        The elementwise node with relu.
    loop : Loop
        Its scalar graph.
    y_in : ScalarVariable
        The input of the loop for `y`.
    masked : int
        How many nodes take their mask from the result of relu.
    """

    user: Apply
    loop: Loop
    y_in: Any

    def __init__(self, fgraph: FunctionGraph, node: Apply):
        self.fgraph, self.node = fgraph, node
        self.y = node.outputs[0]
        self.masked = 0

    def as_data(self, index: int, new: Variable) -> Pairs:
        """Replace a result of the elementwise node, which may be converted to the dtype of `y`."""
        old = self.user.outputs[index]
        return [(x, new) for x in self.converted(old)]

    def converted(self, x: Variable) -> list[Variable]:
        """Return `x`, or its conversions to the dtype of `y`."""
        dtype = self.y.type.dtype
        if x.type.dtype == dtype:
            return [x]
        users = [node for node, _ in self.fgraph.clients[x]]
        if not all(isinstance(n.op, GpuCast) and n.op.dtype == dtype for n in users):
            raise RefusedError
        return [node.outputs[0] for node in users]

    def gradient(self, new: Apply, loop: Loop, subject: Any, old: Any, x: Any) -> Pairs:
        """Replace a result of an elementwise node that is not relu's: a mask or a gradient."""

        def relation(v: Any) -> str | None:
            return loop.relation(v, lambda operand: operand is subject)

        how = relation(x)
        if how is not None:
            users = self.fgraph.clients[old]
            return [pair for user, i in users for pair in self.user_of_mask(new, user, i, how)]
        found = loop.masked(x, relation)
        y_in = self.y_in if loop is self.loop else subject
        if found is None or loop.uses(found[1], y_in):
            raise RefusedError
        fused = self.masked_gradient(new, loop, old, *found)
        place = {subject: (new.outputs[0], lambda out: out)}
        return fused or self.from_result(loop, {old: x}, found[0], place)

    def user_of_mask(self, new: Apply, user: Apply, index: int, how: str) -> Pairs:
        """Replace a node that takes a mask, which `how` describes."""
        if not isinstance(user.op, GpuElemwise):
            raise RefusedError
        loop = Loop(user)
        mask = loop.inputs[index]
        if len(loop.outputs) == 1:
            found = loop.masked(
                loop.outputs[0],
                lambda v: how if uncast(v, between_floats=False) is mask else None,
            )
            if found is not None and not loop.uses(found[1], mask):
                fused = self.masked_gradient(new, loop, user.outputs[0], *found)
                if fused:
                    return fused

        def compare(out: Any) -> Any:
            return OF_RESULT[how](out, out.type.make_constant(0))

        results = dict(zip(user.outputs, loop.outputs, strict=True))
        return self.from_result(loop, results, how, {mask: (new.outputs[0], compare)})

    def masked_gradient(self, new: Apply, loop: Loop, old: Any, how: str, array: Any) -> Pairs:
        """Let another Op apply the mask `how` to a gradient; by default, none does."""
        return []

    def from_result(
        self, loop: Loop, results: dict[Variable, Any], how: str, replaced: dict[Any, Any]
    ) -> Pairs:
        """Compute elementwise results with the mask from the result of relu."""
        if how not in OF_RESULT:
            raise RefusedError
        self.masked += 1
        dtypes = [old.type.dtype for old in results]
        found = loop.applied(list(results.values()), replaced, dtypes)
        return list(zip(results, found, strict=True))
