"""Page-locked memory in which the kernels of a CUDA graph find what differs between launches."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from threading import Lock
from typing import Any

from dnnops.capture.plan import rounded
from dnnops.errors import DnnError
from dnnops.runtime.headers import GPU, structure

__all__ = ["LaunchTable"]

#: A launch waits if none of the slots is free. Large slots are fewer, but not fewer than this.
_MOST_SLOTS, _FEWEST_SLOTS = 128, 8
_MOST_BYTES = 1 << 20
_ALIGNMENT = 16
#: The numbers of launches have 32 bits.
_WRAPPED = 1 << 32
#: ``cudaErrorNotReady``, which CuPy returns instead of raising an error.
_NOT_READY = 600
#: Seconds between two looks at whether a slot is free.
_PAUSE_S = 5e-5

#: Memory of tables that were dropped while a launch was still to read its slot. It must not be used
#: for anything else before.
_still_read: deque[tuple[Any, ...]] = deque()
_freeing = Lock()


class LaunchTable:
    """Addresses, and small host values, of launches that have begun but have not ended yet.

    Parameters
    ----------
    before, after : sequence of int
        Bytes of each copy before the graph's nodes, and after them.
    values : sequence of int
        Bytes of each place for host values in a slot, which copies before the graph's nodes read.

    Attributes
    ----------
    slots : int
        Number of slots, which launches use one after the other.
    values_at : list of int
        Address of each place for host values in the first slot.
    structure : ctypes.Structure
        The ``dnnops_launch_table``.
    """

    def __init__(self, before: Sequence[int], after: Sequence[int], values: Sequence[int] = ()):
        import cupy

        _free_read()
        header = structure("dnnops_table_header", GPU)
        words = (len(before) + len(after)) * ctypes.sizeof(structure("dnnops_copy", GPU))
        sizes = [rounded(size, _ALIGNMENT) for size in (words, *values)]
        offsets = [*accumulate(sizes)]
        slot_bytes = offsets.pop()
        self.slots = _MOST_SLOTS
        while self.slots > _FEWEST_SLOTS and self.slots * slot_bytes > _MOST_BYTES:
            self.slots //= 2
        self._memory = cupy.cuda.alloc_pinned_memory(
            ctypes.sizeof(header) + self.slots * slot_bytes
        )
        address = self._memory.ptr
        ctypes.memset(address, 0, ctypes.sizeof(header))
        self._header = header.from_address(address)
        self._counters = cupy.zeros(2, "uint32")
        # Launches may be on other streams than the one that sets the counters.
        cupy.cuda.get_current_stream().synchronize()
        self._first_slot = address + ctypes.sizeof(header)
        self.values_at = [self._first_slot + offset for offset in offsets]
        self.structure = structure("dnnops_launch_table", GPU)(
            memory=address,
            slot_bytes=slot_bytes,
            slots=self.slots,
            counters=self._counters.data.ptr,
            before=len(before),
            bytes_before=sum(before),
            after=len(after),
            bytes_after=sum(after),
        )

    def __del__(self) -> None:
        with suppress(Exception):  # it may be incomplete, or the interpreter may be ending
            if not _is_read(self._header):
                _still_read.append((self._header, self._memory, self._counters))

    def next_slot(self) -> tuple[int, int]:
        """Return the number and the address of the slot for the next launch, once it is free.

        Raises
        ------
        CUDARuntimeError
            If the device has failed, and no slot is free.
        DnnError
            If no slot is free although all launches have ended.
        """
        if self._is_full():
            self._wait()
        number = self._header.launched % self.slots
        return number, self._first_slot + number * self.structure.slot_bytes

    def _is_full(self) -> bool:
        header = self._header
        return (header.launched - header.read) % _WRAPPED >= self.slots

    def _wait(self) -> None:
        import cupy

        runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream().ptr
        while self._is_full():
            if runtime.streamQuery(stream) == _NOT_READY:
                time.sleep(_PAUSE_S)
                continue
            # The launches are on other streams, or the device has failed, which this raises.
            cupy.cuda.Device().synchronize()
            if self._is_full():
                raise DnnError("launches of a CUDA graph have ended without reading their slots")


def _free_read() -> None:
    """Release memory that all launches have read."""
    # The garbage collector may append to the queue at any time. Whatever interrupts this, the queue
    # has the memory until it has been read.
    with _freeing:
        for _ in range(len(_still_read)):
            if _is_read(_still_read[0][0]):
                _still_read.popleft()
            else:
                _still_read.rotate(-1)


def _is_read(header: Any) -> bool:
    """Return whether all launches have read their slots."""
    return bool(header.launched == header.read)
