"""Functions that prepend a column to a matrix."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnTypeError
from dnnops.nnet.validate import as_tensor

__all__ = ["prepend_0_to_each_row", "prepend_1_to_each_row", "prepend_scalar_to_each_row"]


def prepend_scalar_to_each_row(val: Any, mat: Any) -> TensorVariable:
    """Prepend a column to a matrix, with a scalar in every row.

    Parameters
    ----------
    val : number or scalar variable
        Value of the new column, which is cast to the dtype of `mat`.
    mat : tensor_like, (rows, columns)
        Matrix to extend.

    Returns
    -------
    TensorVariable, (rows, columns + 1)

    Raises
    ------
    DnnTypeError
        If `val` is not a scalar or `mat` is not a matrix.
    """
    where = "prepend_scalar_to_each_row"
    matrix = as_tensor(f"{where}: mat must be a matrix", mat)
    value = as_tensor(f"{where}: val must be a scalar", val)
    if matrix.type.ndim != 2:
        raise DnnTypeError(f"{where}: mat must be a matrix, got {matrix.type}")
    if value.type.ndim != 0 or value.type.dtype.startswith("complex"):
        raise DnnTypeError(f"{where}: val must be a scalar, got {value.type}")
    column = pt.full((matrix.shape[0], 1), pt.cast(value, matrix.type.dtype))
    return pt.concatenate([column, matrix], axis=1)


def prepend_0_to_each_row(mat: Any) -> TensorVariable:
    """Prepend a column of zeros to a matrix; see `prepend_scalar_to_each_row`."""
    return prepend_scalar_to_each_row(0, mat)


def prepend_1_to_each_row(mat: Any) -> TensorVariable:
    """Prepend a column of ones to a matrix; see `prepend_scalar_to_each_row`."""
    return prepend_scalar_to_each_row(1, mat)
