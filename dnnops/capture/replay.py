"""Replays of CUDA graphs: the copies before and after a launch, in one call of C code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from threading import get_ident
from typing import Any

from dnnops.capture.graph import Graph
from dnnops.capture.staging import Staging
from dnnops.runtime.build import CUDNN
from dnnops.runtime.op import raise_status

__all__ = ["Replay"]

#: Words of a ``dnnops_copy``: the destination, the source and the number of bytes.
_TO, _FROM, _BYTES, _WORDS = range(4)
#: Results of at most so many bytes in all are small. Allocating one takes longer than all else that
#: a call does for it in Python, so memory for several calls is allocated at once.
_SMALL_BYTES, _CALLS = 1 << 12, 16
_ALIGNMENT = 256


class Replay:
    """What a call of a captured function does on the device.

    Parameters
    ----------
    graph : Graph
    arguments : sequence of tuple
        Storage of each argument, its value when the graph was captured, and the array that the
        graph reads. Values of replays have the shape and strides of the first one.
    staging : Staging
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
        staging: Staging,
        outputs: Sequence[Any],
        copied: Sequence[int],
    ):
        import cupy

        self._graph, self._staging, self._outputs = graph, staging, outputs
        number = 2 if staging.copies else 0
        self._uploaded = [cupy.cuda.Event(disable_timing=True) for _ in range(number)]
        self._turn = 0
        # The copies before the launch come first. Of each, one word changes from call to call.
        copies: list[tuple[int, int, int]] = []

        def add(to: int, source: int, nbytes: int, changing: int) -> int:
            copies.append((to, source, nbytes))
            return _WORDS * (len(copies) - 1) + changing

        self._blocks: list[tuple[list[Any], int]] = []
        self._assigned: list[tuple[list[Any], Any]] = []
        for cell, value, own in arguments:
            # The graph's array has no gaps, so neither has an array of the same strides.
            if value.strides == own.strides:
                self._blocks.append((cell, add(own.data.ptr, 0, own.nbytes, _FROM)))
            else:
                self._assigned.append((cell, own))
        self._staged = [
            (addresses, add(target, 0, nbytes, _FROM))
            for target, addresses, nbytes in staging.copies
        ]
        self._before = len(copies)
        self._small: list[tuple[int, Any, Any, int, int]] = []
        self._new: list[tuple[int, Any, Any, int]] = []
        self._copied: list[int] = []
        self._small_bytes = 0
        for position in copied:
            array = outputs[position]
            if not isinstance(array, cupy.ndarray) or not array.flags.c_contiguous:
                self._copied.append(position)
                continue
            at = add(0, array.data.ptr, array.nbytes, _TO)
            end = self._small_bytes + -(-max(array.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
            if end > _SMALL_BYTES:
                self._new.append((position, array.shape, array.dtype, at))
                continue
            self._small.append((position, array.shape, array.dtype, at, self._small_bytes))
            self._small_bytes = end
        self._memory, self._memory_owner, self._calls_left = None, (0, 0), 0
        self._after = len(copies) - self._before
        words = [word for copy in copies for word in copy]
        self._words = (ctypes.c_int64 * len(words))(*words)
        self._ndarray, self._allocate = cupy.ndarray, cupy.cuda.alloc
        self._current_stream = cupy.cuda.get_current_stream
        self._launch = CUDNN.library.dnnops_cudnn_graph_replay

    def run(self) -> list[Any]:
        """Copy arguments and host values to the device, launch the graph, and return the outputs.

        Raises
        ------
        DnnError
            If a host value has another shape or dtype, or CUDA fails.
        """
        words = self._words
        stream = self._current_stream().ptr
        for cell, at in self._blocks:
            words[at] = cell[0].data.ptr
        for cell, own in self._assigned:
            if cell[0] is not own:
                own[...] = cell[0]
        uploaded = None
        if self._staged:
            self._turn = turn = 1 - self._turn
            event = self._uploaded[turn]
            event.synchronize()  # the buffers are free
            self._staging.store(turn)
            for addresses, at in self._staged:
                words[at] = addresses[turn]
            uploaded = event.ptr
        outputs = [*self._outputs]
        if self._small:
            memory, start = self._memory_for_small(stream)
            for position, shape, dtype, at, offset in self._small:
                outputs[position] = new = self._ndarray(shape, dtype, memory + (start + offset))
                words[at] = new.data.ptr
        for position, shape, dtype, at in self._new:
            outputs[position] = new = self._ndarray(shape, dtype)
            words[at] = new.data.ptr
        status = self._launch(
            self._graph.executable,
            words,
            self._before,
            self._after,
            uploaded,
            stream,
        )
        if status:
            raise_status(CUDNN, status)
        for position in self._copied:
            outputs[position] = outputs[position].copy()
        return outputs

    def _memory_for_small(self, stream: int) -> tuple[Any, int]:
        """Return memory, and where in it the small results of a call start.

        The arrays own it together, and it goes back to the pool of the stream in which it was
        allocated. A number may stand for a stream of each thread.
        """
        owner = stream, get_ident()
        if self._calls_left == 0 or owner != self._memory_owner:
            self._memory = self._allocate(_CALLS * self._small_bytes)
            self._memory_owner, self._calls_left = owner, _CALLS
        self._calls_left -= 1
        memory = self._memory
        if self._calls_left == 0:
            self._memory = None
        return memory, self._calls_left * self._small_bytes
