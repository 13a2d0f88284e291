"""Reduce the last axes of contiguous arrays, viewed as rows.

CuPy's reduction kernels load one element at a time, and reach about half of a GPU's memory
bandwidth in a sum over all elements. The dnnops kernels load 16 bytes at a time, keep several loads
in flight, and read each row once. If there are too few rows to occupy the GPU, they are split into
parts, which a second kernel combines. The order of the operations is the same in every run.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnnops.dtypes import numpy_dtype
from dnnops.gpuarray.reduction_source import Arithmetic, Kernels, apply, processors

if TYPE_CHECKING:
    from dnnops.gpuarray.prepared.pending import Pending
    from dnnops.gpuarray.prepared.placed import Placed

__all__ = ["MIN_ROW_BYTES", "RowReduction", "launch_config", "rows_of", "split_axes"]

#: Shorter rows are left to CuPy: too many of their elements don't belong to full packs of 16 bytes.
MIN_ROW_BYTES = 512

THREADS, LOADS, PACK_BYTES = 256, 4, 16
#: Number of blocks that a multiprocessor runs at once.
BLOCKS = 4
#: Times in units of a round of loads by all threads that run at once: a round with few threads,
#: which only takes its latency, and what a block takes to begin and to combine its threads' values.
LATENCY, OVERHEAD = 0.6, 0.5
_MAX_GRID = 2**31 - 1


class LaunchConfig(NamedTuple):
    """Distribution of rows over a GPU: threads per row, parts per row, and number of blocks."""

    lanes: int
    parts: int
    blocks: int


def rows_of(x: Any, axes: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the number and length of the rows of an array that are reduced.

    Parameters
    ----------
    x : cupy.ndarray
    axes : tuple of int
        Axes to reduce.

    Returns
    -------
    tuple of int or None
        Number of rows, and their length. None if the elements to reduce are not adjacent in
        memory.
    """
    return _rows(x.shape, axes) if x.flags.c_contiguous else None


@functools.lru_cache(maxsize=4096)
def _rows(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, int] | None:
    rows = length = 1
    for axis, size in enumerate(shape):
        if size == 0:
            return None
        if axis in axes:
            length *= size
        elif length == 1:
            rows *= size
        elif size != 1:
            return None
    return rows, length


def split_axes(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split the axes to reduce into the trailing axes of the array and the others."""
    inner = []
    for axis in reversed(range(len(shape))):
        if axis in axes:
            inner.append(axis)
        elif shape[axis] != 1:
            break
    return tuple(reversed(inner)), tuple(axis for axis in axes if axis not in inner)


@functools.lru_cache(maxsize=1024)
def launch_config(rows: int, length: int, itemsize: int, processors: int) -> LaunchConfig | None:
    """Choose the distribution of rows over a GPU with `processors` multiprocessors.

    Returns
    -------
    LaunchConfig or None
        None if the rows are too short, or if there are too many of them.
    """
    if length * itemsize < MIN_ROW_BYTES:
        return None
    packs = length * itemsize // PACK_BYTES
    at_once = processors * BLOCKS

    def estimated_time(lanes: int) -> float:
        rounds = -(-packs // (lanes * LOADS))
        waves, left = divmod(rows * lanes / THREADS, at_once)
        last = max(left / at_once, LATENCY) * rounds + OVERHEAD if left else 0
        return waves * (rounds + OVERHEAD) + last

    # Of equal times, the most threads a row: few rows then use more of the GPU.
    lanes, parts = min((THREADS, 128, 64, 32), key=estimated_time), 1
    if lanes == THREADS:
        # Use as many blocks as run at once, or so many that an incomplete last wave doesn't
        # matter. Each thread of a part should have work for at least two rounds of loads.
        wanted = at_once // rows if at_once % rows == 0 else -(-4 * at_once // rows)
        parts = max(1, min(wanted, packs // (THREADS * LOADS * 2)))
    blocks = -(-rows * lanes // THREADS) * parts
    return LaunchConfig(lanes, parts, blocks) if blocks <= _MAX_GRID else None


class RowReduction:
    """Reduction of rows, compiled when it is first called.

    Parameters
    ----------
    arithmetic : Arithmetic
    """

    def __init__(self, arithmetic: Arithmetic):
        self.arithmetic = arithmetic
        self._kernels = Kernels(arithmetic, "row_reduction.cuh", "LANES")

    def __call__(self, x: Any, axes: tuple[int, ...]) -> Any:
        """Reduce an array on the current device.

        Parameters
        ----------
        x : cupy.ndarray or Pending
        axes : tuple of int
            Axes to reduce.

        Returns
        -------
        cupy.ndarray or Pending or None
            None if the array doesn't consist of rows to reduce, or if they are too short or too
            many.
        """
        return apply(self._add, x, axes)

    def _add(self, x: Pending, axes: tuple[int, ...]) -> Placed | None:
        """Add the launches to the call that `x` is part of, and return where the result is."""
        from dnnops.gpuarray.prepared.call import KernelStep

        found = rows_of(x, axes)
        # Memory from other libraries may be unaligned.
        if found is None or x.placed.remainder % x.itemsize:
            return None
        rows, length = found
        device = x.device
        config = launch_config(rows, length, x.itemsize, processors(device))
        if config is None:
            return None
        shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
        out = x.call.new(shape, self._result_dtype)
        partial = (
            x.call.new((rows * config.parts,), np.dtype("float64")) if config.parts > 1 else out
        )
        reduce = self._kernels.get(device, config.lanes, "reduce_rows")
        addresses = [array.address for array in (x.placed, out, partial)]
        sizes = (np.int64(rows), np.int64(length), np.int32(config.parts))
        x.call.steps.append(KernelStep(reduce, config.blocks, THREADS, [*addresses, *sizes]))
        if config.parts > 1:
            finish = self._kernels.get(device, config.lanes, "finish_rows")
            arguments = [partial.address, out.address, sizes[2]]
            x.call.steps.append(KernelStep(finish, rows, THREADS, arguments))
        return out

    @functools.cached_property
    def _result_dtype(self) -> Any:
        return numpy_dtype(self.arithmetic.out_dtype)
