"""Checks of shapes and conversion of border modes to padding, under their Theano names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import is_int, is_sequence, shown
from dnnops.errors import DnnNotSupportedError, DnnShapeError, DnnTypeError, DnnValueError
from dnnops.nnet.checks import checked
from dnnops.nnet.validate import as_tensor, shape_argument, sizes_argument, static_int

__all__ = ["assert_conv_shape", "assert_shape", "border_mode_to_pad"]


def assert_conv_shape(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Check that the output of a convolution can have the given shape.

    The batch size and the number of channels must not be negative. The spatial sizes must be
    positive.

    Parameters
    ----------
    shape : sequence of int or symbolic int
        Shape of the output, (batch, channels, spatial...).

    Returns
    -------
    tuple
        The sizes. Symbolic sizes that are invalid raise DnnShapeError when they are computed.

    Raises
    ------
    DnnTypeError
        If `shape` is not a sequence of ints.
    DnnValueError
        If a constant size is too small.
    """
    where = "assert_conv_shape"
    if not is_sequence(shape):
        raise DnnTypeError(f"{where}: shape must be a sequence of sizes, got {shown(shape)}")
    sizes = []
    for axis, size in enumerate(shape):
        is_scalar = getattr(getattr(size, "type", None), "ndim", None) == 0
        if not (is_int(size) or (isinstance(size, Variable) and is_scalar)):
            raise DnnTypeError(f"{where}: an entry of shape must be an int, got {shown(size)}")
        known = static_int(size)
        least = 0 if axis < 2 else 1
        problem = f"{where}: the output shape must be at least {least} on axis {axis}"
        if known is not None and known < least:
            raise DnnValueError(f"{problem}, got {known}")
        if known is None:
            size = checked(size, problem, pt.ge(size, least), error=DnnShapeError)
        sizes.append(size)
    return tuple(sizes)


def assert_shape(x: Any, expected_shape: Any, msg: str = "Unexpected shape.") -> TensorVariable:
    """Check the shape of a tensor when it is computed.

    Parameters
    ----------
    x : tensor_like
        Tensor to check.
    expected_shape : None, or sequence of int, symbolic int or None
        Size of each axis; None accepts any size.
    msg : str
        Message of the error.

    Returns
    -------
    TensorVariable
        `x` with a check that raises DnnShapeError if its shape differs.

    Raises
    ------
    DnnTypeError
        If an argument has an invalid type.
    DnnValueError
        If `expected_shape` is invalid or contradicts the static shape of `x`.
    """
    if not isinstance(msg, str):
        raise DnnTypeError(f"assert_shape: msg must be a str, got {shown(msg)}")
    x = as_tensor("assert_shape: x must be a tensor", x)
    if x.type.dtype.startswith("complex"):
        raise DnnTypeError(f"assert_shape: x must be real, got {x.type}")
    sizes = shape_argument(
        "assert_shape", f"expected_shape (for x of {x.type})", expected_shape, x.type.ndim
    )
    told = [(i, size) for i, size in enumerate(sizes) if size is not None]
    static = x.type.shape
    if any(is_int(size) and static[i] not in (None, size) for i, size in told):
        raise DnnShapeError(f"assert_shape: {msg} x is {static}, expected_shape {sizes}")
    fits = [pt.eq(x.shape[i], size) for i, size in told if static[i] != size]
    result: TensorVariable = checked(x, msg, *fits, error=DnnShapeError)
    return result


def border_mode_to_pad(mode: Any, convdim: int, kshp: Sequence[Any]) -> tuple[tuple[Any, Any], ...]:
    """Return the padding before and after each spatial axis.

    Parameters
    ----------
    mode : {'valid', 'half', 'full'}, or tuple of ints or pairs of ints
        Border mode, as for `conv2d`.
    convdim : int
        Number of spatial axes.
    kshp : sequence of int or symbolic int
        Spatial sizes of the dilated filters.

    Returns
    -------
    tuple of pairs
        Padding (before, after) of each spatial axis.

    Raises
    ------
    DnnNotSupportedError
        If a tuple inside `mode` does not have two entries.
    DnnTypeError
        If `convdim` or `kshp` has an invalid type.
    DnnValueError
        If `mode` is otherwise invalid, or if `kshp` has the wrong length.
    """
    where = "border_mode_to_pad"
    if not is_int(convdim):
        raise DnnTypeError(f"{where}: convdim must be an int, got {shown(convdim)}")
    kshp = sizes_argument(where, "kshp, with one entry for each of convdim axes,", kshp, (convdim,))
    if None in kshp:
        raise DnnTypeError(f"{where}: kshp must hold ints, got {shown(kshp)}")
    if isinstance(mode, tuple):
        if len(mode) != convdim:
            raise DnnValueError(f"{where}: mode must have {convdim} entries, got {shown(mode)}")
        return tuple(_sides(where, entry) for entry in mode)
    if isinstance(mode, str) and mode in ("valid", "half", "full"):
        kinds = {"valid": lambda k: 0, "half": lambda k: k // 2, "full": lambda k: k - 1}
        return tuple((kinds[mode](size),) * 2 for size in kshp[:convdim])
    raise DnnValueError(
        f"{where}: mode must be 'valid', 'half', 'full' or a tuple of {convdim} entries, got"
        f" {shown(mode)}"
    )


def _sides(where: str, entry: Any) -> tuple[int, int]:
    sides = entry if isinstance(entry, tuple) else (entry, entry)
    if not all(is_int(side) and side >= 0 for side in sides):
        raise DnnValueError(
            f"{where}: entries of mode must be non-negative ints or pairs of them, got"
            f" {shown(entry)}"
        )
    if len(sides) != 2:
        raise DnnNotSupportedError(
            f"{where}: entries of mode must be ints or pairs, got {shown(entry)}"
        )
    return int(sides[0]), int(sides[1])
