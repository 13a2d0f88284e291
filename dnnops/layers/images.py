"""What layers over images share: arguments, single images and their text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import MAX_PARAMETER, is_int, shown
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.validate import as_tensor

__all__ = ["batched", "by_width", "size"]


def size(where: str, name: str, value: Any, minimum: int = 1) -> int:
    """Return an argument, an int of at least `minimum`.

    Raises
    ------
    DnnTypeError
        If `value` is not an int.
    DnnValueError
        If it is out of bounds.
    """
    if not is_int(value):
        raise DnnTypeError(f"{where}: {name} must be an int, got {shown(value)}")
    if not minimum <= value <= MAX_PARAMETER:
        raise DnnValueError(
            f"{where}: {name} must be between {minimum} and {MAX_PARAMETER}, got {value}"
        )
    return int(value)


def batched(
    where: str, x: Any, ndim: int, apply: Callable[[TensorVariable], TensorVariable]
) -> TensorVariable:
    """Apply a function of a batch with `ndim` dimensions to a batch or to a single element of it.

    Raises
    ------
    DnnTypeError
        If `x` has another number of dimensions.
    """
    x = as_tensor(f"{where}: the input must be a tensor", x)
    if x.type.ndim == ndim - 1:
        return apply(pt.expand_dims(x, 0))[0]
    if x.type.ndim != ndim:
        raise DnnTypeError(
            f"{where}: the input must have {ndim} dimensions, or {ndim - 1} without a batch, "
            f"got {x.type.ndim}"
        )
    return apply(x)


def by_width(axes: tuple[int, ...]) -> str:
    """Show the lengths of spatial axes as Torch does: width before height, time first."""
    *time, rows, columns = axes
    return ",".join(map(str, (*time, columns, rows)))
