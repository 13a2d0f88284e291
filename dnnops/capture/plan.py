"""Place the arrays of a CUDA graph in one block of memory.

An allocator that serves requests one by one cannot know what follows. It splits large free ranges
for small arrays, and then finds no range for the next large one. All arrays of a graph, and when
each is freed, are known after a trial. So places can be chosen for the largest arrays first, which
is the greedy algorithm by size of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
Net Inference" (2020). Other orders are tried until the block is as small as the arrays in use at
the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ALIGNMENT", "Lifetime", "Plan", "planned", "rounded"]

#: Addresses of arrays are multiples of this, as those of CuPy's pool and of `cudaMalloc` are.
ALIGNMENT = 512
#: Number of placements by each order, fewer if arrays have more neighbors in all than this.
_ATTEMPTS, _MOST_PAIRS = 8, 400_000


@dataclass
class Lifetime:
    """When an array is allocated and freed.

    Attributes
    ----------
    size : int
        Bytes, a multiple of `ALIGNMENT`.
    start, end : int
        Numbers of the allocations before it was allocated, and before it was freed. `end` is None
        if it is still in use.
    """

    size: int
    start: int
    end: int | None = None

    def overlaps(self, other: Lifetime) -> bool:
        """Return whether both arrays are in use at the same time."""
        return (other.end is None or self.start < other.end) and (
            self.end is None or other.start < self.end
        )


@dataclass(frozen=True)
class Plan:
    """Places of arrays, in the order in which they are allocated.

    Attributes
    ----------
    size : int
        Bytes of the block that contains all arrays.
    places : tuple of tuple
        Size and offset of each array.
    """

    size: int
    places: tuple[tuple[int, int], ...]


def rounded(size: int, alignment: int = ALIGNMENT) -> int:
    """Return the bytes that `size` bytes take: a multiple of `alignment`, and at least one."""
    return max(1, -(-size // alignment)) * alignment


def planned(lifetimes: Sequence[Lifetime]) -> Plan:
    """Return places for arrays such that arrays in use at the same time do not overlap.

    Parameters
    ----------
    lifetimes : sequence of Lifetime
        The arrays in the order in which they are allocated.

    Returns
    -------
    Plan
    """
    count = len(lifetimes)
    neighbors, least = _in_use_together(lifetimes)
    pairs = sum(map(len, neighbors)) // 2
    attempts = max(1, min(_ATTEMPTS, _MOST_PAIRS // max(1, pairs)))

    def duration(i: int) -> int:
        own = lifetimes[i]
        return (count if own.end is None else own.end) - own.start

    best: tuple[int, dict[int, int]] | None = None
    for key in (
        lambda i: -lifetimes[i].size,
        lambda i: -lifetimes[i].size * duration(i),
        lambda i: (-duration(i), -lifetimes[i].size),
    ):
        order = sorted(range(count), key=key)
        for _ in range(attempts):
            total, offsets, highest = _placed(lifetimes, order, neighbors)
            if best is None or total < best[0]:
                best = total, offsets
            if best[0] == least or order[0] == highest:
                break
            # What did not fit below the others gets its place before them.
            order.remove(highest)
            order.insert(0, highest)
        if best is not None and best[0] == least:
            break
    assert best is not None
    size, offsets = best
    return Plan(size, tuple((own.size, offsets[i]) for i, own in enumerate(lifetimes)))


def _in_use_together(lifetimes: Sequence[Lifetime]) -> tuple[list[list[int]], int]:
    """Return the arrays that are in use at the same time as each, and the most bytes in use."""
    neighbors: list[list[int]] = [[] for _ in lifetimes]
    used: list[int] = []
    most = 0
    for i, own in enumerate(lifetimes):
        used = [j for j in used if lifetimes[j].overlaps(own)]
        neighbors[i] += used
        for j in used:
            neighbors[j].append(i)
        used.append(i)
        most = max(most, sum(lifetimes[j].size for j in used))
    return neighbors, most


def _placed(
    lifetimes: Sequence[Lifetime], order: Sequence[int], neighbors: Sequence[Sequence[int]]
) -> tuple[int, dict[int, int], int]:
    """Place arrays in this order, each in the first gap that has its size.

    Returns
    -------
    size : int
        Bytes of the block.
    offsets : dict of int to int
        Places.
    highest : int
        Array at the end of the block.
    """
    offsets: dict[int, int] = {}
    total, highest = 0, 0
    for i in order:
        size = lifetimes[i].size
        taken = sorted((offsets[j], lifetimes[j].size) for j in neighbors[i] if j in offsets)
        end = 0
        for start, length in taken:
            if start - end >= size:
                break
            end = max(end, start + length)
        offsets[i] = end
        if end + size > total:
            total, highest = end + size, i
    return total, offsets, highest
