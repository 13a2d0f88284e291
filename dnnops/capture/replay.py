"""Replays of CUDA graphs, and the copies that differ from launch to launch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from threading import get_ident
from typing import Any

from dnnops.capture.graph import Graph
from dnnops.capture.plan import rounded
from dnnops.capture.staging import Buffers, Upload
from dnnops.capture.table import LaunchTable
from dnnops.runtime.build import CUDNN
from dnnops.runtime.headers import GPU, structure
from dnnops.runtime.op import raise_status

__all__ = ["Replay"]

#: Words of a ``dnnops_copy``: the destination, the source and the number of bytes.
_TO, _FROM, _BYTES, _WORDS = range(4)
#: Uploads of at most so many bytes are read by the graph itself; others are copied before it.
_READ_BYTES = 1 << 14
#: Results of at most so many bytes in all are small. Allocating one takes longer than all else that
#: a call does for it in Python, so memory for several calls is allocated at once.
_SMALL_BYTES, _CALLS = 1 << 12, 16
_ALIGNMENT = 256


class _Copies:
    """An array of ``dnnops_copy``, of each of which one word changes from call to call."""

    def __init__(self) -> None:
        self._copies: list[tuple[int, int, int]] = []

    def add(self, to: int, source: int, nbytes: int, changing: int) -> int:
        """Add a copy, and return the position of the word that changes."""
        self._copies.append((to, source, nbytes))
        return _WORDS * (len(self._copies) - 1) + changing

    def __len__(self) -> int:
        return len(self._copies)

    def sizes(self) -> list[int]:
        """Return the bytes of each copy."""
        return [copy[_BYTES] for copy in self._copies]

    def words(self) -> Any:
        """Return the words of all copies, an array of ctypes."""
        words = [word for copy in self._copies for word in copy]
        return (ctypes.c_int64 * len(words))(*words)


class Replay:
    """What a call of a captured function does on the device.

    Parameters
    ----------
    graph : Graph
        It is instantiated here.
    arguments : sequence of tuple
        Storage of each argument, its value when the graph was captured, and the array that the
        graph reads. Values of replays have the shape and strides of the first one.
    uploads : sequence of Upload
        The host values that the graph reads.
    outputs : sequence
        The function's outputs: arrays that the graph writes, or other objects.
    copied : sequence of int
        Positions of the outputs of which the caller gets a copy.
    """

    def __init__(
        self,
        graph: Graph,
        arguments: Sequence[tuple[list[Any], Any, Any]],
        uploads: Sequence[Upload],
        outputs: Sequence[Any],
        copied: Sequence[int],
    ):
        import cupy

        self._graph, self._outputs = graph, outputs
        copies = _Copies()
        self._blocks: list[tuple[list[Any], int]] = []
        self._assigned: list[tuple[list[Any], Any]] = []
        for cell, value, own in arguments:
            # The graph's array has no gaps, so neither has an array of the same strides.
            if value.strides == own.strides:
                self._blocks.append((cell, copies.add(own.data.ptr, 0, own.nbytes, _FROM)))
            else:
                self._assigned.append((cell, own))
        read = [upload for upload in uploads if upload.nbytes <= _READ_BYTES]
        read_at = [copies.add(upload.to, 0, upload.nbytes, _FROM) for upload in read]
        before = len(copies)
        self._add_results(copies, outputs, copied)
        self._words = copies.words()
        self._table = self._tabled(copies.sizes(), before, read, read_at)
        self._stage([upload for upload in uploads if upload.nbytes > _READ_BYTES])
        graph.instantiate(self._table)
        self._launched = structure("dnnops_replay", GPU)(
            executable=graph.executable,
            table=self._table.structure.memory if self._table else None,
            copies=ctypes.addressof(self._words),
            copy_count=len(copies),
            uploads=ctypes.addressof(self._upload_words),
            upload_count=len(self._staged),
        )
        self._parameters = ctypes.byref(self._launched)
        self._ndarray, self._allocate = cupy.ndarray, cupy.cuda.alloc
        self._current_stream = cupy.cuda.get_current_stream
        self._launch = CUDNN.library.dnnops_cudnn_graph_replay

    def _add_results(self, copies: _Copies, outputs: Sequence[Any], copied: Sequence[int]) -> None:
        """Add the copies of outputs, most of which are made by the graph."""
        import cupy

        self._small: list[tuple[int, Any, Any, int, int]] = []
        self._new: list[tuple[int, Any, Any, int]] = []
        self._copied: list[int] = []
        self._small_bytes = 0
        for position in copied:
            array = outputs[position]
            if not isinstance(array, cupy.ndarray) or not array.flags.c_contiguous:
                self._copied.append(position)
                continue
            at = copies.add(0, array.data.ptr, array.nbytes, _TO)
            end = self._small_bytes + rounded(array.nbytes, _ALIGNMENT)
            if end > _SMALL_BYTES:
                self._new.append((position, array.shape, array.dtype, at))
                continue
            self._small.append((position, array.shape, array.dtype, at, self._small_bytes))
            self._small_bytes = end
        self._memory, self._memory_owner, self._calls_left = None, (0, 0), 0
        self._next_small: tuple[tuple[int, int], list[tuple[int, Any]]] | None = None

    def _tabled(
        self, sizes: Sequence[int], before: int, read: Sequence[Upload], read_at: Sequence[int]
    ) -> LaunchTable | None:
        """Return the table of the graph's copies, with places for the uploads that it reads."""
        self._read: list[tuple[Buffers, int]] = []
        if not sizes:
            return None
        table = LaunchTable(sizes[:before], sizes[before:], [upload.nbytes for upload in read])
        self._read = [
            (Buffers(upload, address, table.structure.slot_bytes, table.slots, table), at)
            for upload, address, at in zip(read, table.values_at, read_at, strict=True)
        ]
        return table

    def _stage(self, uploads: Sequence[Upload]) -> None:
        """Make two buffers for each upload, so that a launch need not wait for the one before."""
        import cupy

        copies = _Copies()
        self._staged: list[tuple[Buffers, int]] = []
        for upload in uploads:
            stride = rounded(upload.nbytes, _ALIGNMENT)
            memory = cupy.cuda.alloc_pinned_memory(2 * stride)
            buffers = Buffers(upload, memory.ptr, stride, 2, memory)
            self._staged.append((buffers, copies.add(upload.to, 0, upload.nbytes, _FROM)))
        self._upload_words = copies.words()
        number = 2 if uploads else 0
        self._uploaded = [cupy.cuda.Event(disable_timing=True) for _ in range(number)]
        self._turn = 0

    def run(self) -> list[Any]:
        """Launch the graph, which copies arguments and host values, and return the outputs.

        Raises
        ------
        DnnError
            If a host value has another shape or dtype, or CUDA fails.
        CUDARuntimeError
            If an earlier launch has failed.
        """
        words = self._words
        stream = self._current_stream().ptr
        slot = uploaded = None
        if self._table is not None:
            number, slot = self._table.next_slot()
            for buffers, at in self._read:
                words[at] = buffers.store(number)
            for cell, at in self._blocks:
                words[at] = cell[0].data.ptr
        for cell, own in self._assigned:
            if cell[0] is not own:
                own[...] = cell[0]
        if self._staged:
            self._turn = turn = 1 - self._turn
            event = self._uploaded[turn]
            event.synchronize()  # the buffers are free
            for buffers, at in self._staged:
                self._upload_words[at] = buffers.store(turn)
            uploaded = event.ptr
        outputs = [*self._outputs]
        if self._small:
            owner = stream, get_ident()
            for position, new in self._arrays_for_small(owner):
                outputs[position] = new
        for position, shape, dtype, at in self._new:
            outputs[position] = new = self._ndarray(shape, dtype)
            words[at] = new.data.ptr
        status = self._launch(self._parameters, slot, uploaded, stream)
        if status:
            raise_status(CUDNN, status)
        for position in self._copied:
            outputs[position] = outputs[position].copy()
        if self._small:
            # While the device works, so the next call launches sooner. The results of this one do
            # not need the memory.
            with suppress(MemoryError):
                self._next_small = owner, self._new_small(owner)
        return outputs

    def _arrays_for_small(self, owner: tuple[int, int]) -> list[tuple[int, Any]]:
        """Return the positions of the small results, and arrays that this launch writes."""
        made, self._next_small = self._next_small, None
        return made[1] if made and made[0] == owner else self._new_small(owner)

    def _new_small(self, owner: tuple[int, int]) -> list[tuple[int, Any]]:
        """Make arrays for the small results, and let the next launch write them."""
        memory, start = self._memory_for_small(owner)
        found = []
        for position, shape, dtype, at, offset in self._small:
            new = self._ndarray(shape, dtype, memory + (start + offset))
            self._words[at] = new.data.ptr
            found.append((position, new))
        return found

    def _memory_for_small(self, owner: tuple[int, int]) -> tuple[Any, int]:
        """Return memory, and where in it the small results of a call start.

        The arrays own it together, and it goes back to the pool of the stream in which it was
        allocated. `owner` is that stream's number and a thread's, because a number may stand for a
        stream of each thread.
        """
        if self._calls_left == 0 or owner != self._memory_owner:
            self._memory = self._allocate(_CALLS * self._small_bytes)
            self._memory_owner, self._calls_left = owner, _CALLS
        self._calls_left -= 1
        memory = self._memory
        if self._calls_left == 0:
            self._memory = None
        return memory, self._calls_left * self._small_bytes
