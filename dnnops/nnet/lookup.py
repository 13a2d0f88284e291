"""Embedding: the rows of a table that integers select."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnTypeError
from dnnops.nnet.validate import as_tensor, float_tensor

__all__ = ["embedding"]


def embedding(indices: Any, table: Any) -> TensorVariable:
    """Select rows of a table.

    Parameters
    ----------
    indices : integer tensor_like
        Rows to select, of any shape. Negative indices count from the end.
    table : tensor_like, (rows, size)
        A float16, float32 or float64 matrix.

    Returns
    -------
    TensorVariable, (\\*indices.shape, size)
        The selected rows. The gradient with respect to `table` sums those of equal indices.

    Raises
    ------
    DnnTypeError
        If `indices` are not integers, or if `table` is not a matrix of a floating-point dtype.
    IndexError
        When the function runs, if an index is out of bounds.
    """
    found = as_tensor("embedding: indices must be an integer tensor", indices)
    if found.type.dtype not in pt.type.integer_dtypes:
        raise DnnTypeError(f"embedding: indices must be an integer tensor, got {found.type}")
    return float_tensor("embedding", "table", table, 2)[found]
