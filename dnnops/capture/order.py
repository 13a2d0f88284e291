"""Choose an order of execution in which the arrays in use take little memory.

PyTensor's topological order is one of many. It may compute a large gradient long before the update
that uses it, or compute the operands of a node one after the other although another order would
free more in between. Finding the best order is NP-hard, so some orders are tried, and one is taken
if its peak is smaller. Nodes run one after the other in any case, so it takes no longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph

from dnnops.gpuarray.op import is_on_device
from dnnops.runtime.lifetimes import declared_origins
from dnnops.runtime.sizes import inferred_bytes

__all__ = ["memory_order", "peak_bytes"]

#: What axes of unknown size of inputs count as, mostly batches.
_UNKNOWN = 32

#: Returns the urgency of a node, smallest first, from the bytes by which it increases the memory in
#: use and its position in the given order.
Urgency = Callable[[int, int], tuple[int, int]]


def memory_order(fgraph: FunctionGraph, order: Sequence[Apply]) -> list[Apply]:
    """Return an order of execution with a small peak of device memory.

    Parameters
    ----------
    fgraph : FunctionGraph
        Graph of a function, after all rewrites.
    order : sequence of Apply
        An order of its nodes.

    Returns
    -------
    list of Apply
        `order` itself unless another one is estimated to need less memory.
    """
    arrays, sizes = _Arrays(fgraph, order), _estimated_bytes(fgraph, order)
    orders = [
        list(order),
        *(arrays.ordered(urgency, sizes) for urgency in (_frees_first, _least_first)),
    ]
    return min(orders, key=lambda tried: arrays.peak(tried, sizes))  # the first of several


def peak_bytes(fgraph: FunctionGraph, order: Sequence[Apply], sizes: Mapping[Variable, int]) -> int:
    """Return the most device memory that results take at once in an order of execution.

    Parameters
    ----------
    fgraph : FunctionGraph
        Graph of a function.
    order : sequence of Apply
        An order of its nodes.
    sizes : mapping of Variable to int
        Bytes of each result; others count as 0.
    """
    return _Arrays(fgraph, order).peak(order, sizes)


def _estimated_bytes(fgraph: FunctionGraph, order: Sequence[Apply]) -> dict[Variable, int]:
    """Return the bytes of each result on a device."""
    shapes = {
        x: [_UNKNOWN if size is None else size for size in x.type.shape]
        for x in fgraph.inputs
        if None in getattr(x.type, "shape", ())
    }
    sizes = inferred_bytes(order, shapes)
    return {z: size for z, size in sizes.items() if size is not None and is_on_device(z)}


def _frees_first(growth: int, position: int) -> tuple[int, int]:
    """Keep the order, but run what frees more than it allocates as soon as possible."""
    return (0, growth) if growth < 0 else (1, position)


def _least_first(growth: int, position: int) -> tuple[int, int]:
    return growth, position


class _Arrays:
    """The arrays of a graph: who allocates, reads and overwrites them."""

    def __init__(self, fgraph: FunctionGraph, order: Sequence[Apply]):
        self._order = list(order)
        self._roots: dict[Variable, Variable] = {}
        self._readers: dict[Variable, set[Apply]] = defaultdict(set)
        for node in self._order:
            origins = declared_origins(node)
            for z in node.outputs:
                self._roots[z] = self._root(origins[z]) if z in origins else z
        self._reads = {
            node: {r for x in node.inputs if (r := self._root(x)).owner is not None}
            for node in self._order
        }
        for node, roots in self._reads.items():
            for root in roots:
                self._readers[root].add(node)
        self._kept = {self._root(z) for z in fgraph.outputs}
        extra = fgraph.orderings()
        self._needs = {
            node: {x.owner for x in node.inputs if x.owner is not None} | {*extra.get(node, ())}
            for node in self._order
        }

    def _root(self, x: Variable) -> Variable:
        return self._roots.get(x, x)

    def _allocated(self, node: Apply, sizes: Mapping[Variable, int]) -> int:
        return sum(sizes.get(z, 0) for z in node.outputs if self._roots[z] is z)

    def peak(self, order: Sequence[Apply], sizes: Mapping[Variable, int]) -> int:
        """Return the most memory that is in use at once."""
        left = {root: len(readers) for root, readers in self._readers.items()}
        used = most = 0
        for node in order:
            used += self._allocated(node, sizes)
            most = max(most, used)
            for root in self._reads[node]:
                left[root] -= 1
                if not left[root] and root not in self._kept:
                    used -= sizes.get(root, 0)
        return most

    def ordered(self, urgency: Urgency, sizes: Mapping[Variable, int]) -> list[Apply]:
        """Return the order in which the most urgent node that can run is the next."""
        position = {node: i for i, node in enumerate(self._order)}
        waiting = {node: len(needs) for node, needs in self._needs.items()}
        users: dict[Apply, list[Apply]] = defaultdict(list)
        for node in self._order:
            for needed in self._needs[node]:
                users[needed].append(node)
        unread = {root: set(readers) for root, readers in self._readers.items()}
        queue: list[tuple[tuple[int, int], int]] = []

        def push(node: Apply) -> None:
            growth = self._allocated(node, sizes) - sum(
                sizes.get(root, 0)
                for root in self._reads[node]
                if root not in self._kept and len(unread[root]) == 1
            )
            heappush(queue, (urgency(growth, position[node]), position[node]))

        for node in self._order:
            if not waiting[node]:
                push(node)
        found: dict[Apply, None] = {}
        while queue:
            node = self._order[heappop(queue)[1]]
            if node in found:  # it became more urgent after it was queued
                continue
            found[node] = None
            for root in self._reads[node]:
                unread[root].discard(node)
                if len(unread[root]) == 1:
                    (last,) = unread[root]
                    if not waiting[last]:
                        push(last)
            for user in users[node]:
                waiting[user] -= 1
                if not waiting[user]:
                    push(user)
        return list(found)
