"""Replays of CUDA graphs: the copies before and after a launch, in one call of C code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnnops.capture.graph import Graph
from dnnops.errors import DnnError
from dnnops.runtime.build import CUDNN
from dnnops.runtime.op import raise_status

__all__ = ["Replay", "Upload"]

#: Words of a ``dnnops_copy``: the destination, the source and the number of bytes.
_TO, _FROM, _BYTES, _WORDS = range(4)


class Upload:
    """A host value that is copied to the device before each launch, through page-locked memory.

    Two buffers take turns, so that a launch need not wait for the copy of the one before it.

    Parameters
    ----------
    cell : list
        Storage of the value, an array or a number of the target's shape and dtype.
    target : cupy.ndarray
        C-contiguous device array.

    Attributes
    ----------
    cell : list
    target : cupy.ndarray
    addresses : list of int
        Addresses of the buffers.
    """

    def __init__(self, cell: list[Any], target: Any):
        import cupy

        self.cell, self.target = cell, target
        self._memory = [cupy.cuda.alloc_pinned_memory(max(target.nbytes, 1)) for _ in range(2)]
        self._arrays = [
            np.frombuffer(memory, target.dtype, target.size).reshape(target.shape)
            for memory in self._memory
        ]
        self.addresses = [memory.ptr for memory in self._memory]

    def store(self, turn: int) -> None:
        """Store the value in a buffer.

        Raises
        ------
        DnnError
            If the shape is different.
        """
        value = self.cell[0]
        if value.shape != self.target.shape:
            raise DnnError(f"a captured array had shape {self.target.shape}, not {value.shape}")
        np.copyto(self._arrays[turn], value, casting="no")


class Replay:
    """What a call of a captured function does on the device.

    Parameters
    ----------
    graph : Graph
    arguments : sequence of tuple
        Storage of each argument, its value when the graph was captured, and the array that the
        graph reads. Values of replays have the shape and strides of the first one.
    uploads : sequence of Upload
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

        self._graph, self._uploads, self._outputs = graph, uploads, outputs
        self._uploaded = [cupy.cuda.Event(disable_timing=True) for _ in range(2 if uploads else 0)]
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
            (upload, add(upload.target.data.ptr, 0, upload.target.nbytes, _FROM))
            for upload in uploads
        ]
        self._before = len(copies)
        self._new: list[tuple[int, Any, Any, int]] = []
        self._copied: list[int] = []
        for position in copied:
            array = outputs[position]
            if isinstance(array, cupy.ndarray) and array.flags.c_contiguous:
                at = add(0, array.data.ptr, array.nbytes, _TO)
                self._new.append((position, array.shape, array.dtype, at))
            else:
                self._copied.append(position)
        self._after = len(copies) - self._before
        words = [word for copy in copies for word in copy]
        self._words = (ctypes.c_int64 * len(words))(*words)
        self._ndarray, self._current_stream = cupy.ndarray, cupy.cuda.get_current_stream
        self._launch = CUDNN.library.dnnops_cudnn_graph_replay

    def run(self) -> list[Any]:
        """Copy arguments and host values to the device, launch the graph, and return the outputs.

        Raises
        ------
        DnnError
            If a host value has another shape, or CUDA fails.
        """
        words = self._words
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
            for upload, at in self._staged:
                upload.store(turn)
                words[at] = upload.addresses[turn]
            uploaded = event.ptr
        outputs = [*self._outputs]
        for position, shape, dtype, at in self._new:
            outputs[position] = new = self._ndarray(shape, dtype)
            words[at] = new.data.ptr
        status = self._launch(
            self._graph.executable,
            words,
            self._before,
            self._after,
            uploaded,
            self._current_stream().ptr,
        )
        if status:
            raise_status(CUDNN, status)
        for position in self._copied:
            outputs[position] = outputs[position].copy()
        return outputs
