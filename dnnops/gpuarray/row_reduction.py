"""Reduce the last axes of contiguous arrays, viewed as rows.

CuPy's reduction kernels load one element at a time, and reach about half of a GPU's memory
bandwidth in a sum over all elements. The dnnops kernels load 16 bytes at a time, keep several loads
in flight, and read each row once. If there are too few rows to occupy the GPU, they are split into
parts, which a second kernel combines. The order of the operations is the same in every run.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from dnnops.dtypes import DTYPES, HALF_DTYPES, numpy_dtype
from dnnops.runtime.build import c_code_dir

__all__ = [
    "MIN_ROW_BYTES",
    "Arithmetic",
    "RowReduction",
    "launch_config",
    "row_source",
    "rows_of",
    "split_axes",
]

#: Shorter rows are left to CuPy: too many of their elements don't belong to full packs of 16 bytes.
MIN_ROW_BYTES = 512

THREADS, LOADS, PACK_BYTES = 256, 4, 16
#: Number of blocks that a multiprocessor runs at once.
BLOCKS = 4
_MAX_GRID = 2**31 - 1


class Arithmetic(NamedTuple):
    """C++ types and expressions of a reduction.

    Attributes
    ----------
    in_dtype, out_dtype : str
        Dtypes of the operand and the result.
    accumulator : str
        C++ type of the accumulator.
    identity : str
        Initial value of the accumulator.
    premap : str
        Expression in terms of `x`, an element converted to the accumulator's type.
    combine : str
        Expression that combines the accumulators `a` and `b`.
    """

    in_dtype: str
    out_dtype: str
    accumulator: str
    identity: str
    premap: str
    combine: str


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
    if not x.flags.c_contiguous or x.size == 0:
        return None
    rows = length = 1
    for axis, size in enumerate(x.shape):
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
    if packs <= 32 * LOADS * 2 and rows * 32 >= processors * THREADS:
        lanes, parts = 32, 1
    else:
        lanes = THREADS
        # Use as many blocks as run at once, or so many that an incomplete last wave doesn't
        # matter. Each thread of a part should have work for at least two rounds of loads.
        wanted = at_once // rows if at_once % rows == 0 else -(-4 * at_once // rows)
        parts = max(1, min(wanted, packs // (THREADS * LOADS * 2)))
    per_block = THREADS // lanes
    blocks = -(-rows // per_block) * parts
    return LaunchConfig(lanes, parts, blocks) if blocks <= _MAX_GRID else None


def _stored(dtype: str) -> str:
    return "unsigned short" if dtype in HALF_DTYPES else DTYPES[dtype].c_type


def row_source(arithmetic: Arithmetic) -> str:
    """Return the CUDA source of a row reduction; compiling it requires the macro LANES.

    Parameters
    ----------
    arithmetic : Arithmetic

    Returns
    -------
    str
    """
    of = arithmetic
    value, result = "element", f"({DTYPES[of.out_dtype].c_type})value"
    if of.in_dtype in HALF_DTYPES:
        value = f"Number<{DTYPES[of.in_dtype].code}>::acc(element)"
    if of.out_dtype in HALF_DTYPES:
        result = f"Number<{DTYPES[of.out_dtype].code}>::bits({result})"
    declared = f"""
using Stored = {_stored(of.in_dtype)};
using Result = {_stored(of.out_dtype)};
using Acc = {of.accumulator};
#define IDENTITY ((Acc){of.identity})
DEVICE Acc premapped(Acc x) {{ return {of.premap}; }}
DEVICE Acc acc_of(Stored element) {{ return premapped((Acc){value}); }}
DEVICE Acc combine(Acc a, Acc b) {{ return {of.combine}; }}
DEVICE Result result_of(Acc value) {{ return {result}; }}
"""
    files = ("gpu/kernels/kernel.cuh", "gpu/kernels/numbers.cuh", "gpu/reduction/row_reduction.cuh")
    kernel, numbers, rows = ((c_code_dir() / f).read_text(encoding="utf-8") for f in files)
    return f"{kernel}{numbers}{declared}{rows}"


@functools.cache
def _processors(device: int) -> int:
    import cupy

    return cupy.cuda.Device(device).attributes["MultiProcessorCount"]


class RowReduction:
    """Reduction of rows, compiled when it is first called.

    Parameters
    ----------
    arithmetic : Arithmetic
    """

    def __init__(self, arithmetic: Arithmetic):
        self.arithmetic = arithmetic
        self._kernels: dict[tuple[int, int, str], Any] = {}

    def _kernel(self, device: int, lanes: int, name: str) -> Any:
        import cupy

        key = (device, lanes, name)
        if key not in self._kernels:
            module = cupy.RawModule(
                code=row_source(self.arithmetic),
                options=("-std=c++17", f"-DLANES={lanes}"),
                backend="nvrtc",
            )
            self._kernels[key] = module.get_function(name)
        return self._kernels[key]

    def __call__(self, x: Any, axes: tuple[int, ...]) -> Any:
        """Reduce an array on the current device.

        Parameters
        ----------
        x : cupy.ndarray
        axes : tuple of int
            Axes to reduce.

        Returns
        -------
        cupy.ndarray or None
            None if the array doesn't consist of rows to reduce, or if they are too short or too
            many.
        """
        import cupy

        found = rows_of(x, axes)
        # Memory from other libraries may be unaligned.
        if found is None or x.data.ptr % x.itemsize:
            return None
        rows, length = found
        device = x.data.device_id
        config = launch_config(rows, length, x.itemsize, _processors(device))
        if config is None:
            return None
        shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
        out = cupy.empty(shape, self._result_dtype)
        partial = cupy.empty(rows * config.parts, "float64") if config.parts > 1 else out
        reduce = self._kernel(device, config.lanes, "reduce_rows")
        sizes = (np.int64(rows), np.int64(length), np.int64(config.parts))
        reduce((config.blocks,), (THREADS,), (x, out, partial, *sizes))
        if config.parts > 1:
            finish = self._kernel(device, config.lanes, "finish_rows")
            finish((rows,), (THREADS,), (partial, out, sizes[2]))
        return out

    @functools.cached_property
    def _result_dtype(self) -> Any:
        return numpy_dtype(self.arithmetic.out_dtype)
