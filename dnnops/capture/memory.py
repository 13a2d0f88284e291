"""Device memory of one CUDA graph.

CuPy's pool is not used, for two reasons. Its arrays refer to it weakly: if a function is part of
a reference cycle, as PyTensor's functions are, Python's garbage collector ends all weak references
before anything else, and the parts of a split block, which refer to each other, then stay allocated
for good. And it places arrays one by one, so that what it takes from the driver exceeds what is in
use at once; see `dnnops.capture.plan`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dnnops.capture.plan import Lifetime, Plan, rounded

__all__ = ["Pool"]

#: ``cudaErrorMemoryAllocation``.
_OUT_OF_MEMORY = 2


class _Part:
    """Memory of one array, which returns to its pool with the array."""

    __slots__ = ("_pool", "_start")

    def __init__(self, pool: Pool, start: int):
        # The pool outlives its arrays.
        self._pool, self._start = pool, start

    def __del__(self) -> None:
        # The garbage collector may run this while the pool allocates, so it only takes note.
        self._pool.returned.append(self._start)


class Pool:
    """Device memory for one graph.

    The addresses in a graph stay valid as long as its pool exists, because nothing else allocates
    from it, and it returns memory to the driver only when it ends, after all of its arrays.

    Parameters
    ----------
    plan : Plan, optional
        Places of the arrays, in the order in which they are allocated. Arrays that do not follow
        the plan are placed elsewhere.
    smallest : int
        Fewest bytes that are allocated from the driver at a time.
    malloc, free : callable, optional
        Functions that allocate and free device memory. Default: those of CUDA's runtime.

    Attributes
    ----------
    lifetimes : list of Lifetime
        The arrays so far, in the order in which they were allocated.
    returned : collections.deque of int
        Addresses of arrays that are no longer used, and are not free yet.
    """

    def __init__(
        self,
        plan: Plan | None = None,
        *,
        smallest: int = 1,
        malloc: Callable[[int], int] | None = None,
        free: Callable[[int], Any] | None = None,
    ):
        self.lifetimes: list[Lifetime] = []
        self.returned: deque[int] = deque()
        self._malloc, self._free_memory = malloc or _malloc, free or _free
        self._smallest = smallest
        #: Blocks from the driver and their sizes.
        self._blocks: dict[int, int] = {}
        #: Free ranges: the address of each one's end by that of its start.
        self._free: dict[int, int] = {}
        #: Arrays in use: number of the allocation by address.
        self._used: dict[int, int] = {}
        self._places: tuple[tuple[int, int], ...] = ()
        self._base = 0
        if plan is not None and plan.size:
            self._base, self._places = self._grow(plan.size), plan.places

    def __del__(self) -> None:
        for address in self._blocks:
            with suppress(Exception):  # the process may be ending
                self._free_memory(address)

    @property
    def nbytes(self) -> int:
        """Bytes allocated from the driver."""
        return sum(self._blocks.values())

    @contextmanager
    def used(self) -> Iterator[None]:
        """Allocate all arrays of this thread from the pool."""
        import cupy

        with cupy.cuda.using_allocator(self._pointer):
            yield

    def _pointer(self, size: int) -> Any:
        """Return memory as CuPy's allocators do."""
        import cupy

        address, owner = self.allocate(size)
        device = cupy.cuda.runtime.getDevice()
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, size, owner, device), 0)

    def allocate(self, size: int) -> tuple[int, object]:
        """Return the address of `size` bytes, and the object that keeps them allocated.

        Raises
        ------
        MemoryError
            If there is not enough memory.
        """
        self._take_back()
        size, number = rounded(size), len(self.lifetimes)
        start = self._planned(number, size)
        if start is None:
            start = self._fitting(size)
        if start is None:
            start = self._grow(max(size, self._smallest))
        self._take(start, size)
        self._used[start] = number
        self.lifetimes.append(Lifetime(size, number))
        return start, _Part(self, start)

    def _take_back(self) -> None:
        while self.returned:
            start = self.returned.popleft()
            own = self.lifetimes[self._used.pop(start)]
            own.end = len(self.lifetimes)
            self._release(start, start + own.size)

    def _planned(self, number: int, size: int) -> int | None:
        """Return the planned address if the plan still holds."""
        if number >= len(self._places) or self._places[number][0] != size:
            return None
        start = self._base + self._places[number][1]
        is_free = any(begin <= start and start + size <= end for begin, end in self._free.items())
        return start if is_free else None

    def _fitting(self, size: int) -> int | None:
        """Return the start of the smallest free range that is large enough."""
        found = [(end - start, start) for start, end in self._free.items() if end - start >= size]
        return min(found)[1] if found else None

    def _grow(self, size: int) -> int:
        address = self._malloc(size)
        self._blocks[address] = size
        self._free[address] = address + size
        return address

    def _take(self, start: int, size: int) -> None:
        begin, end = next((begin, end) for begin, end in self._free.items() if begin <= start < end)
        del self._free[begin]
        if begin < start:
            self._free[begin] = start
        if start + size < end:
            self._free[start + size] = end

    def block_of(self, address: int) -> int:
        """Return the start of the block from the driver that an address is in."""
        return next(a for a, size in self._blocks.items() if a <= address < a + size)

    def _release(self, start: int, end: int) -> None:
        """Free a range, and join it with free ranges beside it in the same block."""
        block = self.block_of(start)
        if end < block + self._blocks[block] and end in self._free:
            end = self._free.pop(end)
        if start > block:
            before = next((a for a, stop in self._free.items() if stop == start), None)
            start = start if before is None else before
        self._free[start] = end


def _malloc(size: int) -> int:
    import cupy

    runtime = cupy.cuda.runtime
    try:
        return runtime.malloc(size)
    except runtime.CUDARuntimeError as error:
        if error.status != _OUT_OF_MEMORY:
            raise
    cupy.get_default_memory_pool().free_all_blocks()
    try:
        return runtime.malloc(size)
    except runtime.CUDARuntimeError as error:
        raise MemoryError(f"no device memory for {size} bytes of a CUDA graph") from error


def _free(address: int) -> None:
    from cupy.cuda import runtime

    runtime.free(address)
