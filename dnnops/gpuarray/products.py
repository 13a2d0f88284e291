"""Matrix products of device arrays with cuBLASLt, through the runtime library.

Unlike CuPy's calls of cuBLAS, these can be recorded as part of a CUDA graph.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

from dnnops.dtypes import DTYPE_CODES
from dnnops.errors import DnnUnavailableError, DnnValueError
from dnnops.gpuarray.copying import contiguous_copy
from dnnops.runtime.build import CUDNN
from dnnops.runtime.op import empty_tensors, make_context, raise_status

__all__ = ["Layout", "has_contiguous_side", "layouts", "multiply", "products_available"]


@cache
def products_available() -> bool:
    """Return whether the runtime library and cuBLASLt can be loaded."""
    try:
        return CUDNN.library.dnnops_cudnn_cublaslt_version() > 0
    except DnnUnavailableError:
        return False


def multiply(
    x: Any, y: Any, out: Any, alpha: float = 1.0, beta: float = 0.0, allow_tf32: bool = False
) -> None:
    """Compute ``out = alpha * x @ y + beta * out`` on the current stream.

    Parameters
    ----------
    x : cupy.ndarray
        Array (..., rows, inner), float16, bfloat16, float32 or float64.
    y : cupy.ndarray
        Array (..., inner, columns) of the same dtype.
    out : cupy.ndarray
        Array (..., rows, columns) of the same dtype, whose rows or columns are contiguous. `x` and
        `y` are broadcast to its leading axes.
    alpha, beta : float
        Scaling factors. If `beta` is 0, the values in `out` are ignored.
    allow_tf32 : bool
        Whether float32 numbers may be rounded to TF32.

    Raises
    ------
    DnnError
        If cuBLASLt fails.
    """
    if not out.size:
        return
    if not x.shape[-1]:
        if beta:
            out *= out.dtype.type(beta)
        else:
            out.fill(0)
        return
    import cupy

    tensors, result = empty_tensors(2), empty_tensors(1)
    for tensor, layout in zip((*tensors, *result), layouts(x, y, out), strict=True):
        tensor.data = layout.array.data.ptr
        tensor.dtype = DTYPE_CODES[layout.array.dtype.name]
        tensor.ndim = 3
        tensor.shape[:3] = layout.shape
        tensor.strides[:3] = layout.strides
    context = make_context(cupy.cuda.get_current_stream().ptr, x.device.id)
    raise_status(
        CUDNN,
        CUDNN.library.dnnops_cudnn_product(
            ctypes.byref(context), int(allow_tf32), alpha, beta, tensors, result
        ),
    )


class Layout(NamedTuple):
    """An array as a batch of matrices.

    Attributes
    ----------
    array : cupy.ndarray
        An operand, a transpose, or a copy of it.
    shape, strides : tuple of int
        Length and stride in bytes of the batch, the rows and the columns. The stride of the batch
        is 0 if all matrices are the same.
    """

    array: Any
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]


def layouts(x: Any, y: Any, out: Any) -> tuple[Layout, Layout, Layout]:
    """Return how cuBLASLt should read the operands of a product and write the result.

    Of each, the rows or the columns are contiguous; of the result, the rows. If that takes the
    transpose, the operands swap places.

    Parameters
    ----------
    x, y, out : cupy.ndarray
        See `multiply`. None is empty.

    Raises
    ------
    DnnValueError
        If the result has gaps or its batch has several strides.
    """
    if out.strides[-1] != out.itemsize and out.shape[-1] > 1:
        x, y, out = y.swapaxes(-1, -2), x.swapaxes(-1, -2), out.swapaxes(-1, -2)
    batch = out.shape[:-2]
    target = _layout(out, batch) if has_contiguous_side(out) else None
    if target is None:
        raise DnnValueError(f"a product cannot be written to an array of strides {out.strides}")
    return _operand(x, batch), _operand(y, batch), target


def _operand(array: Any, batch: tuple[int, ...]) -> Layout:
    """Return the layout of an operand, or of a copy of it."""
    import cupy

    if not has_contiguous_side(array):
        array = contiguous_copy(array)
    for copied in (
        lambda: array,
        lambda: contiguous_copy(array),
        # It is broadcast along some of several axes.
        lambda: contiguous_copy(
            cupy.get_array_module(array).broadcast_to(array, (*batch, *array.shape[-2:]))
        ),
    ):
        if (found := _layout(copied(), batch)) is not None:
            return found
    raise AssertionError("a contiguous array has one stride")


def has_contiguous_side(array: Any) -> bool:
    """Return whether the rows or the columns of the matrices are contiguous, without overlap."""
    (rows, columns), (row, column) = array.shape[-2:], array.strides[-2:]
    size = array.itemsize
    return ((column == size or columns == 1) and (row >= columns * size or rows == 1)) or (
        (row == size or rows == 1) and (column >= rows * size or columns == 1)
    )


def _layout(array: Any, batch: tuple[int, ...]) -> Layout | None:
    """Return the layout of an array, or None if its batch has several strides."""
    missing = len(batch) - (array.ndim - 2)
    step, length = 0, 1
    # From the last axis: each must continue where the axes after it end.
    for axis in range(len(batch) - 1, -1, -1):
        if batch[axis] == 1:
            continue
        own = axis - missing
        stride = array.strides[own] if own >= 0 and array.shape[own] > 1 else 0
        if length == 1:
            step = stride
        elif stride != step * length:
            return None
        length *= batch[axis]
    if step < 0:
        return None
    return Layout(array, (length, *array.shape[-2:]), (step, *array.strides[-2:]))
