"""Copy device arrays from one memory layout to another.

CuPy's kernel for assignments moves one element at a time. The packed elementwise kernels move 16
bytes at a time where rows of memory are adjacent in both arrays, as in parts of channels-last
images or the heads of attention.
"""

from __future__ import annotations

from typing import Any

from pytensor.scalar.basic import identity

from dnnops.dtypes import DTYPES
from dnnops.gpuarray.layout import common_order
from dnnops.gpuarray.packed import LEAST_SIZE, pack_width, packed_kernel, packed_operands

__all__ = ["contiguous_copy", "copy_into"]


def copy_into(target: Any, source: Any) -> None:
    """Copy an array into another one of the same shape, ``target[...] = source``.

    Parameters
    ----------
    target, source : cupy.ndarray
        They may have different dtypes, and must not overlap.
    """
    dtype = target.dtype.name
    is_large = target.size >= LEAST_SIZE and source.shape == target.shape
    if is_large and source.dtype == target.dtype and dtype in DTYPES:
        order = common_order([target], target.shape)
        if order is not None:
            target, source = target.transpose(order), source.transpose(order)
        width = pack_width([dtype])
        packed = packed_operands([source], [True], [target], width)
        if packed is not None:
            kernel = packed_kernel(
                identity, (dtype,), (dtype,), packed.kinds, packed.result_kinds, width
            )
            size = target.size
            kernel(*packed.arguments, *packed.numbers, size, target, size=-(-size // width))
            return
    target[...] = source


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
