"""Functions and Op classes of ``theano.tensor`` that PyTensor no longer has."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.type import TensorType, discrete_dtypes

from dnnops.errors import DnnValueError
from dnnops.theano import tensor as functions
from dnnops.theano.ops import OpName

__all__ = [
    "AllocDiag",
    "CumprodOp",
    "CumsumOp",
    "DiffOp",
    "Flatten",
    "MaxAndArgmax",
    "Mean",
    "Rebroadcast",
    "RepeatOp",
    "Tensor",
    "Tile",
    "TopKOp",
    "Tri",
    "argtopk",
    "check_and_normalize_axes",
    "div_proxy",
    "float16_atol",
    "float16_rtol",
    "float32_atol",
    "float32_rtol",
    "float64_atol",
    "float64_rtol",
    "isinf_",
    "isnan_",
    "join_",
    "python_all",
    "python_any",
    "python_complex",
    "topk",
    "topk_and_argtopk",
]

Tensor = TensorType
#: Default tolerances of comparisons by dtype.
float16_atol, float16_rtol = 5e-3, 1e-2
float32_atol, float32_rtol = 1e-5, 1e-5
float64_atol, float64_rtol = 1e-8, 1.0000000000000001e-05
isinf_ = pt.isinf
isnan_ = pt.isnan
join_ = pt.join
python_all, python_any, python_complex = all, any, complex


def topk_and_argtopk(
    x: Any, kth: Any, axis: int | None = -1, sorted: bool = True, idx_dtype: str = "int64"
) -> tuple[Any, Any]:
    """Return the largest elements along an axis, in descending order, and their indices.

    Parameters
    ----------
    x : tensor
    kth : int or scalar
        Number of elements, up to the size of the axis. If it is negative, the smallest are taken.
    axis : int or None
        The axis; None for all elements of the flattened tensor.
    sorted : bool
        Ignored: the elements are in order.
    idx_dtype : str
        Dtype of the indices.

    Returns
    -------
    values, indices : TensorVariable

    Raises
    ------
    DnnValueError
        If `kth` is 0.
    ValueError
        When a function is called, if `kth` is larger than the size of the axis.
    """
    x, axis = (functions.flatten(x), 0) if axis is None else (pt.as_tensor_variable(x), axis)
    if isinstance(kth, (int, np.integer)) and kth == 0:
        raise DnnValueError("topk: kth must not be 0")
    count: Any = pt.as_tensor_variable(kth)
    size = x.shape[axis]
    count = CheckAndRaise(ValueError, "topk: kth must not be 0 or exceed the size of the axis")(
        count, pt.neq(count, 0) & (pt.abs(count) <= size)
    )
    order: Any = pt.moveaxis(pt.argsort(x, axis=axis), axis, -1)
    begin = pt.switch(count > 0, size - count, 0)
    chosen = order[..., begin : begin + pt.abs(count)][..., ::-1]
    indices = pt.moveaxis(chosen, -1, axis)
    return pt.take_along_axis(x, indices, axis), indices.astype(idx_dtype)


def topk(
    x: Any, kth: Any, axis: int | None = -1, sorted: bool = True, idx_dtype: str = "int64"
) -> Any:
    """Return the values of :func:`topk_and_argtopk`.

    Parameters
    ----------
    x, kth, axis, sorted, idx_dtype
        As for :func:`topk_and_argtopk`.

    Returns
    -------
    TensorVariable

    Raises
    ------
    DnnValueError, ValueError
        As for :func:`topk_and_argtopk`.
    """
    return topk_and_argtopk(x, kth, axis, sorted, idx_dtype)[0]


def argtopk(
    x: Any, kth: Any, axis: int | None = -1, sorted: bool = True, idx_dtype: str = "int64"
) -> Any:
    """Return the indices of :func:`topk_and_argtopk`.

    Parameters
    ----------
    x, kth, axis, sorted, idx_dtype
        As for :func:`topk_and_argtopk`.

    Returns
    -------
    TensorVariable, of `idx_dtype`

    Raises
    ------
    DnnValueError, ValueError
        As for :func:`topk_and_argtopk`.
    """
    return topk_and_argtopk(x, kth, axis, sorted, idx_dtype)[1]


def div_proxy(x: Any, y: Any) -> Any:
    """Divide with ``int_div`` if both operands are integers, else with ``true_div``.

    Parameters
    ----------
    x, y : tensor
        Operands that broadcast.

    Returns
    -------
    TensorVariable
    """
    x, y = pt.as_tensor_variable(x), pt.as_tensor_variable(y)
    both = x.type.dtype in discrete_dtypes and y.type.dtype in discrete_dtypes
    return pt.int_div(x, y) if both else pt.true_div(x, y)


def check_and_normalize_axes(x: Any, axis: Any) -> list[int]:
    """Return the non-negative numbers of axes; none for None.

    Parameters
    ----------
    x : tensor
    axis : int, sequence of int, constant or None

    Returns
    -------
    list of int

    Raises
    ------
    DnnValueError
        If an axis is out of range.
    TypeError
        If one is not an integer.
    """
    ndim = pt.as_tensor_variable(x).type.ndim
    if axis is None:
        return []
    axes = [operator.index(one) for one in np.ravel(getattr(axis, "data", axis))]
    if not all(-ndim <= one < ndim for one in axes):
        raise DnnValueError(f"axes {axes} are out of range for {ndim} dimensions")
    return [one % ndim for one in axes]


# Op classes, whose instances are functions


def _rebroadcast(*axes: tuple[int, bool]) -> Any:
    def apply(x: Any) -> Any:
        x = functions.unbroadcast(x, *(axis for axis, one in axes if not one))
        return functions.addbroadcast(x, *(axis for axis, one in axes if one))

    return apply


def _flatten(outdim: int = 1) -> Any:
    return partial(functions.flatten, ndim=outdim)


def _tile(ndim: int) -> Any:
    return partial(functions.tile, ndim=ndim)


def _cumulative(function: Any, axis: int | None = None) -> Any:
    return partial(function, axis=axis)


def _diff(n: int = 1, axis: int = -1) -> Any:
    return partial(pt.diff, n=n, axis=axis)


def _repeat(axis: int | None = None) -> Any:
    return partial(functions.repeat, axis=axis)


def _tri(dtype: str | None = None) -> Any:
    return partial(pt.tri, dtype=dtype)


def _max_and_argmax(axis: Any) -> Any:
    return lambda x: pt.max_and_argmax(x, axis=axis)


def _mean(axis: Any = None) -> Any:
    return partial(functions.mean, axis=axis)


def _topk(
    axis: int = -1,
    sorted: bool = True,
    idx_dtype: str = "int64",
    return_values: bool = True,
    return_indices: bool = True,
) -> Any:
    def apply(x: Any, kth: Any) -> Any:
        both = topk_and_argtopk(x, kth, axis, sorted, idx_dtype)
        kept = [r for r, keep in zip(both, (return_values, return_indices), strict=True) if keep]
        return kept[0] if len(kept) == 1 else kept

    return apply


def _alloc_diag(offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return partial(pt.basic.alloc_diag, offset=offset, axis1=axis1, axis2=axis2)


AllocDiag = OpName("AllocDiag", _alloc_diag, pt.basic.AllocDiag)
Rebroadcast = OpName("Rebroadcast", _rebroadcast)
Flatten = OpName("Flatten", _flatten)
Tile = OpName("Tile", _tile)
CumsumOp = OpName("CumsumOp", partial(_cumulative, pt.cumsum))
CumprodOp = OpName("CumprodOp", partial(_cumulative, pt.cumprod))
DiffOp = OpName("DiffOp", _diff)
RepeatOp = OpName("RepeatOp", _repeat)
Tri = OpName("Tri", _tri)
MaxAndArgmax = OpName("MaxAndArgmax", _max_and_argmax)
Mean = OpName("Mean", _mean)
TopKOp = OpName("TopKOp", _topk)
