"""Reduce axes that other axes follow in memory, viewed as columns of matrices.

CuPy's kernel for these axes loads one element at a time. The dnnops kernels load 16 bytes at a time
where the number of columns allows it, and keep several loads in flight. If there are too few
columns to occupy the GPU, the rows are split into parts, which a second kernel combines. The order
of the operations is the same in every run.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnnops.dtypes import numpy_dtype
from dnnops.gpuarray.reduction_source import Arithmetic, Kernels, apply, processors

if TYPE_CHECKING:
    from dnnops.gpuarray.prepared.pending import Pending
    from dnnops.gpuarray.prepared.placed import Placed

__all__ = ["ColumnConfig", "ColumnReduction", "Columns", "column_config", "columns_of"]

PACK_BYTES = 16
#: Bytes of memory that are read at once, and of a row that a block should read at least, and at
#: best.
SECTOR_BYTES, MIN_TILE_BYTES, TILE_BYTES = 32, 64, 512
#: A block reads this much in about the time that a second kernel takes.
MIN_DIVIDED_BYTES = 1 << 18
#: Part of the multiprocessors that must have a block, if each has at most one.
MIN_OCCUPIED = 0.75
#: Threads of a block if a multiprocessor runs one, or several.
MAX_THREADS, THREADS = 1024, 256
#: More columns of a thread would not fit into its registers, and a block's not into shared memory.
MAX_WIDTH = 8
_MAX_INT = 2**31 - 1


class Columns(NamedTuple):
    """Number of matrices, their rows and columns, and the shape of the result."""

    matrices: int
    rows: int
    columns: int
    shape: tuple[int, ...]


class ColumnConfig(NamedTuple):
    """Distribution of columns over a GPU.

    Attributes
    ----------
    threads : int
        Threads of a block.
    lanes : int
        Packs of columns of a block.
    tiles : int
        Number of blocks that have all columns.
    parts : int
        Number of parts that the rows are split into.
    """

    threads: int
    lanes: int
    tiles: int
    parts: int


@functools.lru_cache(maxsize=4096)
def columns_of(shape: tuple[int, ...], axes: tuple[int, ...]) -> Columns | None:
    """View a contiguous array as matrices whose columns are reduced.

    Parameters
    ----------
    shape : tuple of int
    axes : tuple of int
        Axes to reduce.

    Returns
    -------
    Columns or None
        None if no axes follow those to reduce, if there are others between those, or if the array
        has no elements.
    """
    matrices = rows = columns = 1
    for axis, size in enumerate(shape):
        if axis not in axes:
            if rows == 1:
                matrices *= size
            else:
                columns *= size
        elif columns == 1:
            rows *= size
        elif size != 1:
            return None
    if columns == 1 or 0 in shape:
        return None
    kept = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    return Columns(matrices, rows, columns, kept)


@functools.lru_cache(maxsize=1024)
def column_config(packs: int, rows: int, pack_bytes: int, processors: int) -> ColumnConfig | None:
    """Choose the distribution of columns over a GPU with `processors` multiprocessors.

    Parameters
    ----------
    packs : int
        Number of packs in a row, times the number of matrices.
    rows : int
        Rows of a matrix.
    pack_bytes : int
        Bytes of a pack: of the columns that a thread loads at once.
    processors : int

    Returns
    -------
    ColumnConfig or None
        None if there are too many columns or rows.
    """
    threads, parts = MAX_THREADS, 1
    sector = SECTOR_BYTES // pack_bytes
    # Threads in further rows of a block would have less than one round of loads.
    useful_rows = -(-rows // min(16, 64 // pack_bytes))
    lanes = _spread(packs, processors, sector)
    if lanes > MAX_THREADS // 2:
        threads = THREADS
        lanes = min(max(THREADS // useful_rows, 32), THREADS)
    else:
        lanes = max(lanes, min(packs, MIN_TILE_BYTES // pack_bytes))
        uses_few = -(-packs // lanes) < MIN_OCCUPIED * processors
        if uses_few and lanes * pack_bytes * rows > MIN_DIVIDED_BYTES:
            lanes = _spread(packs, -(-packs * pack_bytes // TILE_BYTES), sector)
            parts = max(1, processors // -(-packs // lanes))
    tiles = -(-packs // lanes)
    threads = -(-lanes * min(threads // lanes, useful_rows) // 32) * 32
    if max(tiles * parts, rows) > _MAX_INT:
        return None
    return ColumnConfig(threads, lanes, tiles, parts)


def _spread(packs: int, blocks: int, unit: int) -> int:
    """Return the packs of each of at most `blocks` blocks: a multiple of `unit`, or all."""
    return min(packs, -(-packs // (blocks * unit)) * unit)


class ColumnReduction:
    """Reduction of columns, compiled when it is first called.

    Parameters
    ----------
    arithmetic : Arithmetic
    """

    def __init__(self, arithmetic: Arithmetic):
        self.arithmetic = arithmetic
        self._kernels = Kernels(arithmetic, "column_reduction.cuh", "WIDTH")

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
            None if the array doesn't consist of columns to reduce.
        """
        return apply(self._add, x, axes)

    def _add(self, x: Pending, axes: tuple[int, ...]) -> Placed | None:
        """Add the launches to the call that `x` is part of, and return where the result is."""
        from dnnops.gpuarray.prepared.call import ALIGNMENT, KernelStep

        found = columns_of(x.shape, axes) if x.flags.c_contiguous else None
        remainder, itemsize = x.placed.remainder, x.itemsize
        # Memory from other libraries may be unaligned.
        if found is None or remainder % itemsize:
            return None
        matrices, rows, columns, shape = found
        # An address without remainder is a multiple of all widths.
        aligned = (remainder or ALIGNMENT) // itemsize
        width = math.gcd(self._max_width, columns, aligned)
        inner, device = columns // width, x.device
        accumulator, count = self._accumulator_bytes, processors(device)
        config = column_config(matrices * inner, rows, width * itemsize, count)
        if config is None:
            return None
        threads, lanes, tiles, parts = config
        out = x.call.new(shape, self._result_dtype)
        bytes_of_parts = out.size * parts * accumulator
        partial = x.call.new((bytes_of_parts,), np.dtype("int8")) if parts > 1 else out
        sizes = [np.int64(matrices * inner), np.int64(inner), np.int64(rows)]
        reduce = self._kernels.get(device, width, "reduce_columns")
        addresses = [array.address for array in (x.placed, out, partial)]
        arguments = [*addresses, *sizes, np.int32(lanes), np.int32(parts)]
        x.call.steps.append(KernelStep(reduce, tiles * parts, threads, arguments))
        if parts > 1:
            last = column_config(out.size, parts, accumulator, count)
            assert last is not None  # there are fewer columns and rows than before
            sizes = [np.int64(out.size), np.int64(columns), np.int64(parts)]
            finish = self._kernels.get(device, width, "finish_columns")
            arguments = [partial.address, out.address, *sizes, np.int32(last.lanes)]
            x.call.steps.append(KernelStep(finish, last.tiles, last.threads, arguments))
        return out

    @functools.cached_property
    def _max_width(self) -> int:
        return min(MAX_WIDTH, PACK_BYTES // numpy_dtype(self.arithmetic.in_dtype).itemsize)

    @functools.cached_property
    def _accumulator_bytes(self) -> int:
        return self.arithmetic.accumulator_bytes

    @functools.cached_property
    def _result_dtype(self) -> Any:
        return numpy_dtype(self.arithmetic.out_dtype)
