"""CUDA graphs, and how they are recorded."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dnnops.capture.memory import Pool
from dnnops.runtime.build import CUDNN
from dnnops.runtime.keeping import results_not_kept
from dnnops.runtime.op import raise_status

__all__ = ["Graph", "recorded"]


class Graph:
    """A CUDA graph that can be launched.

    Attributes
    ----------
    executable : int
        Address of the ``cudaGraphExec_t``.
    nodes : int
        Number of kernels, copies and fills.
    fills : int
        Number of fills that are not kernels, each of which makes a launch slower.
    """

    def __init__(self, executable: int, nodes: int, fills: int):
        self.executable, self.nodes, self.fills = executable, nodes, fills

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may be ending
            CUDNN.library.dnnops_cudnn_graph_destroy(self.executable)


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
        executable, nodes, fills = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_int64()
        status = library.dnnops_cudnn_capture_end(
            stream.ptr, ctypes.byref(executable), ctypes.byref(nodes), ctypes.byref(fills)
        )
        raise_status(CUDNN, status)
    assert executable.value is not None
    recording.graph = Graph(executable.value, nodes.value, fills.value)
