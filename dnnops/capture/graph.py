"""CUDA graphs, and the host memory that they read."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from dnnops.capture.memory import Pool
from dnnops.errors import DnnError
from dnnops.runtime.build import CUDNN
from dnnops.runtime.keeping import results_not_kept
from dnnops.runtime.op import raise_status

__all__ = ["Graph", "Staging", "recorded"]


class Graph:
    """A CUDA graph that can be launched.

    Attributes
    ----------
    nodes : int
        Number of kernels, copies and fills.
    """

    def __init__(self, executable: int, nodes: int):
        self._executable, self.nodes = executable, nodes
        self._launch = CUDNN.library.dnnops_cudnn_graph_launch

    def launch(self, stream: int) -> None:
        """Run the graph on a stream."""
        if status := self._launch(self._executable, stream):
            raise_status(CUDNN, status)

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may be ending
            CUDNN.library.dnnops_cudnn_graph_destroy(self._executable)


class _Recording:
    graph: Graph


@contextmanager
def recorded(pool: Pool, stream: Any, *, is_trial: bool = False) -> Iterator[_Recording]:
    """Record what runs within a ``with`` block instead of running it.

    Parameters
    ----------
    pool : Pool
        Memory for arrays that are allocated in the block.
    stream : cupy.cuda.Stream
        Stream on which the block runs, and nothing else.
    is_trial : bool
        Whether to discard what was recorded.

    Yields
    ------
    object
        Has the attribute ``graph`` after the block, unless it was a trial.

    Raises
    ------
    DnnError
        If the work cannot be recorded, for example because it waits for the device.
    """
    library = CUDNN.library
    recording = _Recording()
    with pool.used(), stream, results_not_kept():
        raise_status(CUDNN, library.dnnops_cudnn_capture_begin(stream.ptr))
        try:
            yield recording
        except BaseException:
            library.dnnops_cudnn_capture_end(stream.ptr, None, None)
            raise
        if is_trial:
            raise_status(CUDNN, library.dnnops_cudnn_capture_end(stream.ptr, None, None))
            return
        executable, nodes = ctypes.c_void_p(), ctypes.c_int64()
        status = library.dnnops_cudnn_capture_end(
            stream.ptr, ctypes.byref(executable), ctypes.byref(nodes)
        )
        raise_status(CUDNN, status)
    assert executable.value is not None
    recording.graph = Graph(executable.value, nodes.value)


class Staging:
    """Copies host arrays of one shape to a device array, through page-locked memory.

    Two buffers take turns, so that a copy need not wait for the one before it.

    Parameters
    ----------
    target : cupy.ndarray
        C-contiguous device array.
    """

    def __init__(self, target: Any):
        import cupy

        self.target = target
        self._buffers = []
        for _ in range(2):
            memory = cupy.cuda.alloc_pinned_memory(max(target.nbytes, 1))
            array = np.frombuffer(memory, target.dtype, target.size).reshape(target.shape)
            self._buffers.append((memory, array, cupy.cuda.Event(disable_timing=True)))

    def copy(self, value: Any, stream: Any) -> None:
        """Copy a host array.

        Parameters
        ----------
        value : numpy.ndarray
            Array of the shape of the target.
        stream : cupy.cuda.Stream
            Stream that copies.

        Raises
        ------
        DnnError
            If the shape is different.
        """
        if value.shape != self.target.shape:
            raise DnnError(f"a captured array had shape {self.target.shape}, not {value.shape}")
        memory, array, copied = self._buffers[0]
        self._buffers.reverse()
        copied.synchronize()
        np.copyto(array, value, casting="no")
        self.target.data.copy_from_host_async(memory.ptr, self.target.nbytes, stream)
        copied.record(stream)
