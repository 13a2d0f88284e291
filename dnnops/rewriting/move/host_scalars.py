"""Keep integers on the host that elementwise fusion has merged with numbers on the device."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise

from dnnops.dtypes import FLOAT_DTYPES
from dnnops.rewriting.move.forecast import ForecastRewriter

__all__ = ["SeparateHostScalars"]


class SeparateHostScalars(ForecastRewriter):
    """Split fused nodes that will move to the device, but also compute integers from host numbers.

    Fusion merges all operations on numbers that share an operand, for example the division of a
    mean's sum by a number of elements with integer arithmetic on this number. On the device, the
    integers would have to be transferred back, and the host would have to wait for them.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite `fgraph`."""
        fused = {node for node in fgraph.apply_nodes if _computes_numbers(node)}
        if not fused:
            return
        order = fgraph.toposort()
        forecast = self.forecast(fgraph, order)
        replacements = [
            pair
            for node in order
            if node in fused and node in forecast.moved
            for pair in _separated(node, forecast.on_device)
        ]
        fgraph.replace_all_validate(replacements, reason="separate_host_scalars")


def _computes_numbers(node: Apply) -> bool:
    return (
        type(node.op) is Elemwise
        and isinstance(node.op.scalar_op, Composite)
        and len(node.outputs) > 1
        and all(node.outputs[0].type.broadcastable)
    )


def _separated(node: Apply, on_device: Collection[Variable]) -> list[tuple[Variable, Variable]]:
    graph = node.op.scalar_op.fgraph
    operands = zip(graph.inputs, node.inputs, strict=True)
    moved = {inner for inner, x in operands if x in on_device}
    # Arrays on the device are computed from floats, such as the inverse of a number of elements.
    stays = [
        z.type.dtype not in FLOAT_DTYPES and moved.isdisjoint(ancestors([z])) for z in graph.outputs
    ]
    if all(stays) or not any(stays):
        return []
    pairs: list[tuple[Variable, Variable]] = []
    for wanted in (True, False):
        indices = [i for i, stay in enumerate(stays) if stay is wanted]
        results = _part(node, indices)
        old = [node.outputs[i] for i in indices]
        copy_stack_trace(old, results)
        pairs += zip(old, results, strict=True)
    return pairs


def _part(node: Apply, indices: Sequence[int]) -> list[Any]:
    """Compute only some of the results of a fused node."""
    graph = node.op.scalar_op.fgraph
    wanted = [graph.outputs[i] for i in indices]
    used = set(ancestors(wanted))
    new: dict[Variable, Any] = {x: x.type() for x in graph.inputs if x in used}
    inputs = list(new.values())
    for inner in graph.toposort():
        if not used.isdisjoint(inner.outputs):
            made = inner.op.make_node(*[new.get(x, x) for x in inner.inputs])
            new.update(zip(inner.outputs, made.outputs, strict=True))
    outputs = [new[z] for z in wanted]
    owner = outputs[0].owner
    alone = len(outputs) == 1 and list(owner.inputs) == inputs
    scalar_op = owner.op if alone else Composite(inputs, outputs)
    operands = [x for inner, x in zip(graph.inputs, node.inputs, strict=True) if inner in used]
    return list(Elemwise(scalar_op).make_node(*operands).outputs)
