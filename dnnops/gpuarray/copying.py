"""Copy device arrays from one memory layout to another, and between devices.

CuPy's kernel for assignments moves one element at a time. The packed elementwise kernels move 16
bytes at a time where rows of memory are adjacent in both arrays, as in parts of channels-last
images or the heads of attention.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dnnops.dtypes import DTYPES
from dnnops.errors import DnnNotSupportedError
from dnnops.gpuarray.device import on_device
from dnnops.gpuarray.elementwise.packed import LEAST_SIZE
from dnnops.gpuarray.elementwise.step import copy_step
from dnnops.gpuarray.layout import common_order, dense_order, inverse
from dnnops.gpuarray.prepared.builder import CallBuilder
from dnnops.gpuarray.prepared.call import KernelStep
from dnnops.gpuarray.prepared.placed import Placed

__all__ = ["add_copy", "contiguous_copy", "copied_to_device", "copy_into", "placed_copy"]

#: Value of ``cudaErrorPeerAccessAlreadyEnabled``.
_ALREADY_ENABLED = 704


def copy_into(target: Any, source: Any) -> None:
    """Copy an array into another one of the same shape, ``target[...] = source``.

    Parameters
    ----------
    target, source : cupy.ndarray
        They may have different dtypes, and must not overlap.
    """
    dtype = target.dtype.name
    if source.shape == target.shape and source.dtype == target.dtype and dtype in DTYPES:
        if not target.size:
            return
        step = placed_copy(dtype, Placed.of(source, 1), Placed.of(target, 0))
        if step is not None:
            step.run([target, source])
            return
    target[...] = source


def placed_copy(dtype: str, source: Placed, target: Placed) -> KernelStep | None:
    """Return the launch that copies an array, in the order of the target's memory.

    Parameters
    ----------
    dtype : str
    source, target : Placed
        Arrays of one shape, which must not overlap.

    Returns
    -------
    KernelStep or None
        None if a kernel cannot access the arrays.
    """
    order = common_order([target], target.shape)
    return copy_step(dtype, source.transpose(order), target.transpose(order))


def contiguous_copy(array: Any) -> Any:
    """Return a C-contiguous copy of an array.

    Parameters
    ----------
    array : cupy.ndarray

    Returns
    -------
    cupy.ndarray
    """
    if array.size < LEAST_SIZE:
        return array.copy(order="C")
    import cupy

    copy = cupy.empty(array.shape, array.dtype)
    copy_into(copy, array)
    return copy


def copied_to_device(array: Any, device: int) -> Any:
    """Copy an array to another device, in the order of the current streams of both devices.

    The copy starts after the work that computes the array, and later work on either device waits
    for it. The host does not wait.

    Parameters
    ----------
    array : cupy.ndarray
    device : int
        Number of the other device.

    Returns
    -------
    cupy.ndarray
        Array without gaps in memory, whose axes have the same order in memory.
    """
    source_device = array.device.id
    order = dense_order(array)
    memory = array if order is None else array.transpose(order)
    with on_device(source_device) as cupy:
        if not memory.flags.c_contiguous:
            memory = contiguous_copy(memory)
        source_stream = cupy.cuda.get_current_stream()
        computed = _recorded(source_stream)
    with on_device(device) as cupy:
        _enable_access(device, source_device)
        stream = cupy.cuda.get_current_stream()
        copy = cupy.empty(memory.shape, memory.dtype)
        stream.wait_event(computed)
        cupy.cuda.runtime.memcpyPeerAsync(
            copy.data.ptr, device, memory.data.ptr, source_device, memory.nbytes, stream.ptr
        )
        copied = _recorded(stream)
    # CuPy's pool may give the memory to later work on that stream, which must not overwrite it yet.
    with on_device(source_device):
        source_stream.wait_event(copied)
    return copy if order is None else copy.transpose(inverse(order))


def _recorded(stream: Any) -> Any:
    """Return an event that occurs when a stream of the current device has done its work so far."""
    import cupy

    event = cupy.cuda.Event(disable_timing=True)
    event.record(stream)
    return event


@cache
def _enable_access(device: int, peer: int) -> None:
    """Let the current device read a peer's memory, which spares the copy a stop on the host."""
    import cupy

    runtime = cupy.cuda.runtime
    if not runtime.deviceCanAccessPeer(device, peer):
        return
    try:
        runtime.deviceEnablePeerAccess(peer)
    except runtime.CUDARuntimeError as error:
        # CuPy's own kernels may have enabled it.
        if error.status != _ALREADY_ENABLED:
            raise


def add_copy(call: CallBuilder, dtype: np.dtype, source: Placed, shape: tuple[int, ...]) -> Placed:
    """Add a C-contiguous copy to a prepared call.

    Parameters
    ----------
    call : CallBuilder
    dtype : numpy.dtype
    source : Placed
        Array that is broadcast to `shape`.
    shape : tuple of int

    Returns
    -------
    Placed

    Raises
    ------
    DnnNotSupportedError
        If a kernel cannot access the array.
    """
    copy = call.new(shape, dtype)
    if copy.size:
        step = copy_step(dtype.name, source.with_axes_before(len(shape)), copy)
        if step is None:
            raise DnnNotSupportedError(
                f"a kernel cannot copy an array of strides {source.strides} and {dtype} elements"
            )
        call.steps.append(step)
    return copy
