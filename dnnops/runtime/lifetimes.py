"""Whose memory results use, and when PyTensor frees them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pytensor.graph.basic import Apply, Variable

__all__ = ["chain", "declared_origins", "releases"]


def declared_origins(node: Apply) -> dict[Variable, Variable]:
    """Return the operand whose memory each result uses, according to the Op."""
    found = {}
    for maps in (node.op.view_map, node.op.destroy_map):
        for output, operands in maps.items():
            if operands:
                found[node.outputs[output]] = node.inputs[operands[0]]
    return found


def chain(x: Variable, origins: Mapping[Variable, Variable]) -> list[Variable]:
    """Return a variable and those whose memory it uses.

    Parameters
    ----------
    x : Variable
    origins : mapping
        The variable whose memory each variable uses, from `declared_origins`.
    """
    found = [x]
    while found[-1] in origins:
        found.append(origins[found[-1]])
    return found


def releases(
    order: Sequence[Apply], kept: Collection[Variable], allow_gc: bool
) -> list[list[Variable]]:
    """Return the results that PyTensor frees after each node.

    Parameters
    ----------
    order : sequence of Apply
        Nodes in the order of execution.
    kept : collection of Variable
        Outputs of the graph, which are never freed.
    allow_gc : bool
        Whether results are freed at all.

    Returns
    -------
    list of list of Variable
        For each node, the operands that it is the last to use. Results that nothing uses are kept.
    """
    freed: list[list[Variable]] = [[] for _ in order]
    if not allow_gc:
        return freed
    last = {x: i for i, node in enumerate(order) for x in node.inputs}
    computed = {z for node in order for z in node.outputs}
    for x, i in last.items():
        if x in computed and x not in kept:
            freed[i].append(x)
    return freed
