"""Count the memory of results over the order of execution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytensor.graph.basic import Apply, Variable

__all__ = ["Memory", "count_memory"]


@dataclass(frozen=True)
class Memory:
    """Memory of results around one node, in bytes.

    Attributes
    ----------
    allocated : int
        Memory that the node allocates.
    peak : int
        Memory while the node runs.
    live : int
        Memory after results that are no longer used have been freed.
    """

    allocated: int
    peak: int
    live: int


def count_memory(
    order: Sequence[Apply],
    freed: Sequence[Iterable[Variable]],
    sizes: Mapping[Variable, int | None],
    origins: Mapping[Variable, Variable],
) -> list[Memory] | None:
    """Count the memory that results use around each node.

    An array is freed when the last variable that shares its memory is.

    Parameters
    ----------
    order : sequence of Apply
        Nodes in the order of execution.
    freed : sequence of iterables of Variable
        Variables freed after each node, as returned by `releases`.
    sizes : mapping
        Bytes of each result, or None if unknown.
    origins : mapping
        Operand whose memory a result uses, for results that allocate none.

    Returns
    -------
    list of Memory, or None
        Memory around each node. None if a size is unknown.
    """
    #: Variables that use the memory of a result, by the variable that allocated it.
    users: dict[Variable, set[Variable]] = {}
    owner: dict[Variable, Variable] = {}
    counted, live = [], 0
    for node, released in zip(order, freed, strict=True):
        allocated = 0
        for z in node.outputs:
            if z in origins:
                root = owner.get(origins[z])  # None for the memory of an input
            else:
                size = sizes[z]
                if size is None:
                    return None
                allocated, root = allocated + size, z
            if root is not None:
                owner[z] = root
                users.setdefault(root, set()).add(z)
        peak = live = live + allocated
        for x in released:
            root = owner.pop(x, None)
            if root is None:
                continue
            users[root].discard(x)
            if not users[root]:
                live -= sizes[root] or 0
        counted.append(Memory(allocated, peak, live))
    return counted
