"""Matrix products of device arrays with cuBLASLt, through the runtime library.

Unlike CuPy's calls of cuBLAS, these can be recorded as part of a CUDA graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dnnops.dtypes import DTYPE_CODES
from dnnops.errors import DnnNotSupportedError, DnnUnavailableError, DnnValueError
from dnnops.gpuarray.copying import add_copy
from dnnops.gpuarray.prepared.builder import CallBuilder
from dnnops.gpuarray.prepared.call import Number, PreparedCall
from dnnops.gpuarray.prepared.placed import Placed
from dnnops.runtime.build import CUDNN
from dnnops.runtime.op import empty_tensors, make_context, raise_status

__all__ = [
    "Layout",
    "ProductFactors",
    "ProductStep",
    "add_product",
    "has_contiguous_side",
    "layouts",
    "multiply",
    "products_available",
]


@cache
def products_available() -> bool:
    """Return whether the runtime library and cuBLASLt can be loaded."""
    try:
        return CUDNN.library.dnnops_cudnn_cublaslt_version() > 0
    except DnnUnavailableError:
        return False


def multiply(
    x: Any, y: Any, out: Any, alpha: float = 1.0, beta: float = 0.0, settings: int = 0
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
    settings : int
        See `dnnops.gpuarray.products.blas.product_settings`.

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
    factors = ProductFactors(alpha, beta, settings)
    try:
        call = _call(x, y, out, factors)
    except DnnNotSupportedError:
        # A kernel would have to copy elements that are not at multiples of their size. Only memory
        # of other libraries has them.
        x, y = _dense_copy(x), _dense_copy(y)
        call = _call(x, y, out, factors)
    call.run((x, y, out))


def _dense_copy(array: Any) -> Any:
    """Return a copy that is made byte by byte, since no kernel can load misaligned elements."""
    import cupy

    shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
    copied = cupy.ndarray(shape, np.uint8, array.data, strides).copy()
    return cupy.ndarray(array.shape, array.dtype, copied.data)


def _call(x: Any, y: Any, out: Any, factors: ProductFactors) -> PreparedCall:
    call = CallBuilder((x, y, out))
    add_product(call, x.dtype, call.operand(0), call.operand(1), call.operand(2), factors)
    return call.call()


class ProductFactors(NamedTuple):
    """Factors and settings of a product, as in `multiply`.

    Factors may be operands of the call on the host.
    """

    alpha: float | Number = 1.0
    beta: float | Number = 0.0
    settings: int = 0


@dataclass(frozen=True)
class ProductStep:
    """A matrix product as a step of a prepared call.

    Attributes
    ----------
    factors : ProductFactors
    dtype : str
    layouts : tuple of Layout
        The operands and the result.
    """

    factors: ProductFactors
    dtype: str
    layouts: tuple[Layout, Layout, Layout]

    def run(self, arrays: Sequence[Any]) -> None:
        """Compute the product; `arrays` are the values of all places."""
        import cupy

        tensors, result = empty_tensors(2), empty_tensors(1)
        for tensor, layout in zip((*tensors, *result), self.layouts, strict=True):
            place, offset = layout.array.address
            tensor.data = arrays[place].data.ptr + offset
            tensor.dtype = DTYPE_CODES[self.dtype]
            tensor.ndim = 3
            tensor.shape[:3] = layout.shape
            tensor.strides[:3] = layout.strides
        device = arrays[self.layouts[0].array.address.place].data.device_id
        context = make_context(cupy.cuda.get_current_stream().ptr, device)
        alpha, beta = (
            float(arrays[factor.place]) if isinstance(factor, Number) else factor
            for factor in (self.factors.alpha, self.factors.beta)
        )
        raise_status(
            CUDNN,
            CUDNN.library.dnnops_cudnn_product(
                ctypes.byref(context), self.factors.settings, alpha, beta, tensors, result
            ),
        )

    def encoded(self) -> tuple[Any, ...]:
        """Return the step for C."""
        code = DTYPE_CODES[self.dtype]
        operands = [(*x.array.address, code, x.shape, x.strides) for x in self.layouts]
        factors = [
            (0.0, factor.place) if isinstance(factor, Number) else (float(factor), -1)
            for factor in (self.factors.alpha, self.factors.beta)
        ]
        return 1, (self.factors.settings, *factors[0], *factors[1], *operands)


def add_product(
    call: CallBuilder, dtype: np.dtype, x: Placed, y: Placed, out: Placed, factors: ProductFactors
) -> None:
    """Add a matrix product, and the copies that it needs, to a prepared call.

    Parameters
    ----------
    call : CallBuilder
    dtype : numpy.dtype
    x, y, out : Placed
        See `multiply`. None is empty.
    factors : ProductFactors
    """
    found = layouts(call, dtype, x, y, out)
    call.steps.append(ProductStep(factors, dtype.name, found))


class Layout(NamedTuple):
    """An array as a batch of matrices.

    Attributes
    ----------
    array : Placed
        An operand, a transpose, or a copy of it.
    shape, strides : tuple of int
        Length and stride in bytes of the batch, the rows and the columns. The stride of the batch
        is 0 if all matrices are the same.
    """

    array: Placed
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]


def layouts(
    call: CallBuilder, dtype: np.dtype, x: Placed, y: Placed, out: Placed
) -> tuple[Layout, Layout, Layout]:
    """Return how cuBLASLt should read the operands of a product and write the result.

    Of each, the rows or the columns are contiguous; of the result, the rows. If that takes the
    transpose, the operands swap places.

    Parameters
    ----------
    call : CallBuilder
        Call that makes the copies.
    dtype : numpy.dtype
    x, y, out : Placed
        See `multiply`. None is empty.

    Raises
    ------
    DnnValueError
        If the result has gaps or its batch has several strides.
    """
    if out.strides[-1] != out.itemsize and out.shape[-1] > 1:
        x, y, out = y.transposed(), x.transposed(), out.transposed()
    batch = out.shape[:-2]
    target = _layout(out, batch) if has_contiguous_side(out) else None
    if target is None:
        raise DnnValueError(f"a product cannot be written to an array of strides {out.strides}")
    return _operand(call, dtype, x, batch), _operand(call, dtype, y, batch), target


def _operand(call: CallBuilder, dtype: np.dtype, array: Placed, batch: tuple[int, ...]) -> Layout:
    """Return the layout of an operand, or of a copy of it."""
    if array.is_aligned and has_contiguous_side(array):
        found = _layout(array, batch)
        if found is not None:
            return found
    copy = add_copy(call, dtype, array, array.shape)
    found = _layout(copy, batch)
    if found is None:  # it is broadcast along some of several axes
        found = _layout(add_copy(call, dtype, copy, (*batch, *array.shape[-2:])), batch)
    if found is None:
        raise AssertionError("a contiguous array has one stride")
    return found


def has_contiguous_side(array: Any) -> bool:
    """Return whether the rows or the columns of the matrices are contiguous, without overlap."""
    (rows, columns), (row, column) = array.shape[-2:], array.strides[-2:]
    size = array.itemsize
    return ((column == size or columns == 1) and (row >= columns * size or rows == 1)) or (
        (row == size or rows == 1) and (column >= rows * size or columns == 1)
    )


def _layout(array: Placed, batch: tuple[int, ...]) -> Layout | None:
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
