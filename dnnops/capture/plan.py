"""Place the arrays of a CUDA graph in one block of memory.

An allocator that serves requests one by one cannot know what follows. It splits large free ranges
for small arrays, and then finds no range for the next large one. All arrays of a graph, and when
each is freed, are known after a trial. So places can be chosen for the largest arrays first, which
is the greedy algorithm by size of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
Net Inference" (2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ALIGNMENT", "Lifetime", "Plan", "planned", "rounded"]

#: Addresses of arrays are multiples of this, as those of CuPy's pool and of `cudaMalloc` are.
ALIGNMENT = 512


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


def rounded(size: int) -> int:
    """Return the bytes that an array of `size` bytes takes; at least one multiple."""
    return max(1, -(-size // ALIGNMENT)) * ALIGNMENT


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
    offsets: dict[int, int] = {}
    total = 0
    for i in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].size):
        own = lifetimes[i]
        taken = sorted(
            (offset, offset + lifetimes[j].size)
            for j, offset in offsets.items()
            if own.overlaps(lifetimes[j])
        )
        offsets[i] = offset = _smallest_gap(taken, own.size)
        total = max(total, offset + own.size)
    return Plan(total, tuple((own.size, offsets[i]) for i, own in enumerate(lifetimes)))


def _smallest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Return the start of the smallest gap that has `size` bytes; else the end of all ranges."""
    end, best = 0, None
    for start, stop in taken:
        if start - end >= size and (best is None or start - end < best[0]):
            best = start - end, end
        end = max(end, stop)
    return end if best is None else best[1]
