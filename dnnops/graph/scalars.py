"""Numbers that are passed to cuDNN by value."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from dnnops.dtypes import numpy_dtype
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.graph.names import dtype_of
from dnnops.graph.tensors import Tensor

__all__ = ["as_host_number"]


def as_host_number(tensor: Tensor, value: Any) -> np.ndarray:
    """Return a number that is passed by value, as an array on the host.

    Parameters
    ----------
    tensor : Tensor
        Tensor whose data type the number gets.
    value : number or array of one element
        The number.

    Raises
    ------
    DnnTypeError
        If it is not a number.
    DnnValueError
        If the data type has no such number: an integer that is too large, or not an integer.
    """
    dtype = dtype_of(tensor.data_type)
    if dtype is None or dtype.startswith("float8"):
        raise DnnTypeError(
            f"tensor {tensor.name!r}: numbers of type {tensor.data_type.name} are not supported"
        )
    try:
        number = value.item() if hasattr(value, "item") else value
    except ValueError:
        number = None
    if not isinstance(number, Real):
        raise DnnTypeError(f"tensor {tensor.name!r} is a number, got {value!r}")
    try:
        array = np.array(number).astype(numpy_dtype(dtype))
    except (OverflowError, ValueError) as error:
        raise DnnValueError(f"tensor {tensor.name!r}: {value!r} is not {dtype}") from error
    if array.dtype.kind in "iub" and array.item() != number:
        raise DnnValueError(f"tensor {tensor.name!r}: {value!r} is not {dtype}")
    return array
