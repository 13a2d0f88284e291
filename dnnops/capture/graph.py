"""CUDA graphs, and the memory that they use."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from dnnops.errors import DnnError, DnnNotSupportedError
from dnnops.runtime.build import CUDNN
from dnnops.runtime.op import raise_status

__all__ = ["Graph", "Pool", "Staging", "recorded"]


class Pool:
    """Device memory for one graph.

    The addresses in a graph stay valid as long as its pool exists, because nothing else allocates
    from it and it returns no memory to the driver.
    """

    def __init__(self) -> None:
        import cupy

        self._freed: list[int] = []
        freed, runtime = self._freed, cupy.cuda.runtime

        # CuPy passes a size and a device, or an address and a device.
        def free(address: int, device: int) -> None:
            freed.append(address)
            with suppress(runtime.CUDARuntimeError):  # the process may be ending
                runtime.free(address)

        allocator = cupy.cuda.PythonFunctionAllocator(
            lambda size, device: runtime.malloc(size), free
        )
        self._pool = cupy.cuda.MemoryPool(allocator.malloc)

    @property
    def has_shrunk(self) -> bool:
        """Whether memory was returned to the driver, for example because too little was left."""
        return bool(self._freed)

    @property
    def nbytes(self) -> int:
        """Bytes allocated from the driver."""
        return self._pool.total_bytes()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Allocate all arrays of this thread from the pool."""
        import cupy

        with cupy.cuda.using_allocator(self._allocate):
            yield

    def _allocate(self, size: int) -> Any:
        """Allocate memory that keeps CuPy's pool alive.

        CuPy's own memory refers to its pool weakly. A pool that ends frees memory that arrays still
        use, such as results that a node keeps for its next call.
        """
        import cupy

        memory = self._pool.malloc(size)
        # A tuple releases its last item first.
        owner = (self._pool, memory)
        owned = cupy.cuda.UnownedMemory(memory.ptr, size, owner, memory.device_id)
        return cupy.cuda.MemoryPointer(owned, 0)


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
def recorded(pool: Pool) -> Iterator[_Recording]:
    """Record what runs within a ``with`` block instead of running it.

    Parameters
    ----------
    pool : Pool
        Memory for arrays that are allocated in the block.

    Yields
    ------
    object
        Has the attribute ``graph`` after the block.

    Raises
    ------
    DnnError
        If the work cannot be recorded, for example because it waits for the device.
    """
    import cupy

    library = CUDNN.library
    recording = _Recording()
    stream = cupy.cuda.Stream(non_blocking=True)
    with pool.used(), stream:
        raise_status(CUDNN, library.dnnops_cudnn_capture_begin(stream.ptr))
        try:
            yield recording
        except BaseException:
            library.dnnops_cudnn_capture_end(stream.ptr, None, None)
            raise
        executable, nodes = ctypes.c_void_p(), ctypes.c_int64()
        status = library.dnnops_cudnn_capture_end(
            stream.ptr, ctypes.byref(executable), ctypes.byref(nodes)
        )
        raise_status(CUDNN, status)
    assert executable.value is not None
    recording.graph = Graph(executable.value, nodes.value)
    if pool.has_shrunk:
        raise DnnNotSupportedError("device memory ran out during the capture")


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
