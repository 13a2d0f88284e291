"""Operands that are combined with each other, and the dtype that they get together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.variable import TensorVariable

from dnnops.nnet.validate import as_floating, as_tensor, cast_integers, float_tensor

__all__ = ["float_operands", "real_operands"]


def real_operands(where: str, **values: Any) -> dict[str, TensorVariable]:
    """Return operands of one operation as floating-point tensors, without widening one another.

    Operands without a floating-point dtype of their own get the dtype to which those that have one
    are promoted: integers, bools, Python and NumPy numbers, arrays without axes unless their dtype
    is narrower than NumPy's default, and lists of numbers. If no operand has one, integers and
    bools are converted as by `dnnops.nnet.validate.as_floating`, and numbers and lists get their
    dtype.

    Parameters
    ----------
    where : str
        Name of the function, for error messages.
    **values : tensor_like
        Operands by the names of their arguments.

    Returns
    -------
    dict of str to TensorVariable

    Raises
    ------
    DnnTypeError
        If an operand cannot be converted to a tensor, or if its dtype is not supported.
    """
    tensors = _together(where, values)
    return {name: as_floating(where, name, x) for name, x in tensors.items()}


def float_operands(
    where: str, values: Mapping[str, Any], ndims: Mapping[str, int] | None = None
) -> list[TensorVariable]:
    """Like `real_operands`, but refuse variables and arrays of integers, and other ranks.

    Parameters
    ----------
    where : str
        Name of the function, for error messages.
    values : mapping of str to tensor_like
        Operands by the names of their arguments.
    ndims : mapping of str to int, optional
        Expected ranks. An operand that is not listed may have any rank.

    Raises
    ------
    DnnTypeError
        If an operand cannot be converted to a tensor, or if its rank or dtype is invalid.
    """
    ranks = {} if ndims is None else ndims
    tensors = _together(where, values, keep_integers=True)
    return [float_tensor(where, name, x, ranks.get(name)) for name, x in tensors.items()]


def _together(
    where: str, values: Mapping[str, Any], keep_integers: bool = False
) -> dict[str, TensorVariable]:
    """Convert operands to tensors, and those without a dtype of their own to that of the others."""
    tensors = {
        name: as_tensor(f"{where}: {name} must be a tensor or array-like", value)
        for name, value in values.items()
    }
    kinds = {name: np.dtype(x.type.dtype).kind for name, x in tensors.items()}
    typed = {name for name, value in values.items() if _has_dtype(value)}
    floats = {name for name in typed if kinds[name] == "f"}
    if dtypes := [tensors[name].type.dtype for name in floats]:
        kept = typed if keep_integers else floats
    else:
        kept = typed
        found = [as_floating(where, n, tensors[n]) for n in typed if kinds[n] in "biu"]
        dtypes = [x.type.dtype for x in found]
    if not dtypes:
        return tensors
    dtype = np.result_type(*dtypes).name
    return {
        name: x if name in kept or kinds[name] not in "biuf" else _cast(x, dtype)
        for name, x in tensors.items()
    }


def _has_dtype(value: Any) -> bool:
    """Return whether the user has chosen the dtype of a value, rather than Python or NumPy."""
    if isinstance(value, Variable):
        return True
    if isinstance(value, (list, tuple)):
        return any(map(_has_dtype, value))
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.ndim > 0 or value.dtype != np.float64
    return getattr(value, "ndim", 0) > 0


def _cast(x: TensorVariable, dtype: str) -> TensorVariable:
    if isinstance(x, Constant):  # so that no wide constant stays in the graph
        return pt.constant(x.data.astype(dtype))
    return cast_integers(x, dtype)
