"""CUDA graphs, and how they are recorded."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dnnops.capture.memory import Pool
from dnnops.capture.table import LaunchTable
from dnnops.runtime.build import CUDNN
from dnnops.runtime.keeping import results_not_kept
from dnnops.runtime.op import raise_status

__all__ = ["Graph", "recorded"]


class Graph:
    """A CUDA graph.

    Attributes
    ----------
    nodes : int
        Number of kernels, copies and fills that were recorded.
    fills : int
        Number of fills that are not kernels, each of which makes a launch slower.
    executable : int or None
        Address of the ``cudaGraphExec_t``; None before `instantiate` is called.
    """

    def __init__(self, address: int | None, nodes: int, fills: int):
        self.nodes, self.fills = nodes, fills
        self._address = address
        self.executable: int | None = None
        self._destroy = CUDNN.library.dnnops_cudnn_graph_destroy

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may be ending
            self._destroy(self._address, self.executable)

    def instantiate(self, table: LaunchTable | None) -> None:
        """Make what can be launched, with the copies of a table. This is done once.

        Raises
        ------
        DnnError
            If CUDA fails, or the kernel that copies cannot be compiled.
        """
        import cupy

        stream = cupy.cuda.get_current_stream().ptr
        executable = ctypes.c_void_p()
        status = CUDNN.library.dnnops_cudnn_graph_instantiate(
            self._address,
            ctypes.byref(table.structure) if table else None,
            stream,
            ctypes.byref(executable),
        )
        raise_status(CUDNN, status)
        self.executable = executable.value
        address, self._address = self._address, None
        self._destroy(address, None)


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
            library.dnnops_cudnn_capture_end(stream.ptr, None, None, None)
            raise
        if is_trial:
            raise_status(CUDNN, library.dnnops_cudnn_capture_end(stream.ptr, None, None, None))
            return
        graph, nodes, fills = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_int64()
        status = library.dnnops_cudnn_capture_end(
            stream.ptr, ctypes.byref(graph), ctypes.byref(nodes), ctypes.byref(fills)
        )
        raise_status(CUDNN, status)
    recording.graph = Graph(graph.value, nodes.value, fills.value)
