"""Find out how the threads of an elementwise kernel access arrays.

In kernels for large arrays, each thread computes several adjacent elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dnnops.dtypes import numpy_dtype

if TYPE_CHECKING:
    from dnnops.gpuarray.prepared.placed import Placed

__all__ = [
    "DENSE",
    "LEAST_SIZE",
    "REPEATED",
    "ROWS",
    "SCALAR",
    "STORED",
    "STRIDED",
    "Access",
    "dense_rows",
    "merged_axes",
    "pack_width",
    "packed_access",
    "repetition",
    "strided_access",
]

#: Minimum number of elements for which a packed kernel is used.
LEAST_SIZE = 1 << 20
#: Bytes that a thread loads or stores at once, of the array with the largest elements.
_BYTES = 16
#: Maximum number of elements with an array that isn't dense, whose indices take 32 bits.
_MAX_INDEXED_SIZE = 2**31 - 1
#: Number of axes before the rows of an array.
_OUTER_AXES = 3

#: Kinds of arrays: a host number; a number in device memory; an array of the result's shape, dense
#: or of dense rows with any strides; a smaller array, of which each element is repeated several
#: times in a row, and the whole sequence over and over again; or an array of any strides. Results
#: are dense, of dense rows, or of any strides.
SCALAR, STORED, DENSE, ROWS, REPEATED = "scalar", "stored", "dense", "rows", "repeated"
STRIDED = "strided"


def repetition(array: Placed, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return how the elements of a contiguous array repeat when it is broadcast to `shape`.

    Parameters
    ----------
    array : Placed
        Array with length 1 along the broadcast axes.
    shape : tuple of int
        Shape to broadcast to, in C order.

    Returns
    -------
    tuple of int or None
        How many times each element is repeated in a row, and the number of elements of `array`.
        None if the axes that aren't broadcast are not adjacent.
    """
    axes = [axis for axis, length in enumerate(array.shape) if length != 1]
    if not axes:
        return math.prod(shape), 1
    first, last = axes[0], axes[-1]
    if array.shape[first : last + 1] != shape[first : last + 1]:
        return None
    return math.prod(shape[last + 1 :]), array.size


@functools.lru_cache(maxsize=4096)
def dense_rows(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[int, ...] | None:
    """Return the rows of adjacent elements that an array consists of.

    Parameters
    ----------
    shape : tuple of int
    strides : tuple of int
        Strides in bytes.
    itemsize : int

    Returns
    -------
    tuple of int or None
        The length of a row, the lengths of the second and the third of three axes before it, and
        the strides of these three axes in elements. None if there are more such axes.
    """
    axes: list[tuple[int, int]] = []
    for length, stride in zip(shape, strides, strict=True):
        if length == 1:
            continue
        if axes and axes[-1][1] == length * stride:
            axes[-1] = (axes[-1][0] * length, stride)
        else:
            axes.append((length, stride))
    if not axes or axes[-1][1] != itemsize or len(axes) > _OUTER_AXES + 1:
        return None
    if any(stride < 0 or stride % itemsize for _, stride in axes):
        return None
    *outer, (run, _) = [(1, 0)] * (_OUTER_AXES + 1 - len(axes)) + axes
    return (run, outer[1][0], outer[2][0], *(stride // itemsize for _, stride in outer))


class Access(NamedTuple):
    """How a kernel accesses its operands and results.

    Attributes
    ----------
    kinds, result_kinds : tuple of str
        Kind of each operand and of each result.
    numbers : tuple of tuple of int
        What the kind of each operand needs, and then that of each result: lengths and strides.
    width : int
        Number of adjacent elements per thread.
    lengths : tuple of int
        Lengths of the axes of strided arrays; empty if there are none.
    """

    kinds: tuple[str, ...]
    result_kinds: tuple[str, ...]
    numbers: tuple[tuple[int, ...], ...]
    width: int
    lengths: tuple[int, ...] = ()


def packed_access(
    operands: Sequence[Placed | str], results: Sequence[Placed], width: int
) -> Access | None:
    """Return how a packed kernel accesses some operands and results.

    Parameters
    ----------
    operands : sequence of Placed or str
        Arrays with their axes in memory order, or the kinds of numbers.
    results : sequence of Placed
        Arrays for the results, of the same shape.
    width : int
        Number of elements per thread, from `pack_width`.

    Returns
    -------
    Access or None
        None if a packed kernel can't be used.
    """
    shape, size = results[0].shape, results[0].size
    found: list[tuple[str, tuple[int, ...]]] = []
    for x in operands:
        if isinstance(x, str):
            found.append((x, ()))
        elif x.shape == shape:
            found.append(_packed_kind(x, size, width))
        else:
            repeats = repetition(x, shape) if x.c_contiguous else None
            if repeats is None or size > _MAX_INDEXED_SIZE:
                return None
            found.append((REPEATED, repeats))
    found += [_packed_kind(z, size, width) for z in results]
    kinds = tuple(kind for kind, _ in found)
    if "" in kinds:
        return None
    numbers = tuple(numbers for _, numbers in found)
    return Access(kinds[: len(operands)], kinds[len(operands) :], numbers, width)


def _packed_kind(array: Placed, size: int, width: int) -> tuple[str, tuple[int, ...]]:
    """Return the kind of an array of the result's shape and its numbers; '' if it has none."""
    if array.remainder % _BYTES:
        return "", ()
    if array.c_contiguous:
        return DENSE, ()
    rows = dense_rows(array.shape, array.strides, array.itemsize)
    if rows is None or size > _MAX_INDEXED_SIZE:
        return "", ()
    run, _, _, *strides = rows
    # The elements of a thread are in one row, at a multiple of their number.
    return ("", ()) if any(n % width for n in (run, *strides)) else (ROWS, rows)


def strided_access(operands: Sequence[Placed | str], results: Sequence[Placed]) -> Access:
    """Return how a kernel with one element per thread accesses operands and results.

    Parameters
    ----------
    operands, results : sequence
        As for `packed_access`. Elements are at multiples of their size.

    Returns
    -------
    Access
    """
    shape = results[0].shape
    strides: list[tuple[int, ...] | None] = []
    kinds = []
    for x in (*operands, *results):
        if isinstance(x, str):
            kind, steps = x, None
        elif x.size == 1:
            kind, steps = STORED, None
        elif x.shape == shape and x.c_contiguous:
            kind, steps = DENSE, None
        else:
            kind, steps = STRIDED, _element_strides(x, shape)
        kinds.append(kind)
        strides.append(steps)
    # A result of one element is written where its only thread is.
    kinds[len(operands) :] = [DENSE if k == STORED else k for k in kinds[len(operands) :]]
    lengths, merged = merged_axes(shape, [steps for steps in strides if steps is not None])
    walks = iter(merged)
    numbers = tuple(() if steps is None else next(walks) for steps in strides)
    if not any(kind == STRIDED for kind in kinds):
        lengths = ()
    count = len(operands)
    return Access(tuple(kinds[:count]), tuple(kinds[count:]), numbers, 1, lengths)


def _element_strides(x: Placed, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides in elements, 0 where the array is broadcast."""
    return tuple(
        step // x.itemsize if length == whole or length != 1 else 0
        for step, length, whole in zip(x.strides, x.shape, shape, strict=True)
    )


def merged_axes(
    shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Merge axes over which all arrays continue, and drop those of length 1.

    Parameters
    ----------
    shape : tuple of int
    strides : sequence of tuple of int
        Strides of each array.

    Returns
    -------
    lengths : tuple of int
        At least one.
    strides : list of tuple of int
    """
    lengths: list[int] = []
    columns: list[list[int]] = []
    for axis, length in enumerate(shape):
        steps = [array[axis] for array in strides]
        if length == 1:
            continue
        if columns and all(
            before == step * length for before, step in zip(columns[-1], steps, strict=True)
        ):
            lengths[-1] *= length
            columns[-1] = steps
        else:
            lengths.append(length)
            columns.append(steps)
    if not lengths:
        return (1,), [(0,) for _ in strides]
    return tuple(lengths), [tuple(column[i] for column in columns) for i in range(len(strides))]


def pack_width(dtypes: Sequence[str]) -> int:
    """Return the number of elements per thread for arrays of these dtypes.

    Parameters
    ----------
    dtypes : sequence of str

    Returns
    -------
    int
    """
    return _BYTES // max(numpy_dtype(dtype).itemsize for dtype in dtypes)
