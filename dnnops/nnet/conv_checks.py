"""Checks of shapes, and padding as numbers, by the names that they have in Theano."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from dnnops.arguments import is_int, is_sequence, shown
from dnnops.errors import DnnNotSupportedError, DnnTypeError, DnnValueError
from dnnops.nnet._validate import as_tensor, shape_argument, sizes_argument, static_int
from dnnops.nnet.checks import checked

__all__ = ["assert_conv_shape", "assert_shape", "border_mode_to_pad"]


def assert_conv_shape(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Check that there is a convolution's output of this shape.

    Parameters
    ----------
    shape : sequence of int or symbolic int
        (batch, channels, spatial...).

    Returns
    -------
    tuple
        The sizes. Those that are symbolic raise DnnValueError when they are computed, if the first
        two are negative or the others not positive.

    Raises
    ------
    DnnTypeError
        If `shape` is no sequence of ints.
    DnnValueError
        If a size that is known is too small.
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
        problem = (
            f"{where}: shape, of a convolution's output, must be {least} or more on axis {axis}"
        )
        if known is not None and known < least:
            raise DnnValueError(f"{problem}, got {known}")
        if known is None:
            size = checked(size, problem, pt.ge(size, least))
        sizes.append(size)
    return tuple(sizes)


def assert_shape(x: Any, expected_shape: Any, msg: str = "Unexpected shape.") -> TensorVariable:
    """Check the shape of a tensor when it is computed.

    Parameters
    ----------
    x : tensor_like
    expected_shape : None, or sequence of int, symbolic int or None
        A size for each axis; None stands for any.
    msg : str
        What the error says.

    Returns
    -------
    TensorVariable
        `x`, which raises DnnValueError if its shape differs.

    Raises
    ------
    DnnTypeError, DnnValueError
        If `expected_shape` is something else, or contradicts the static shape of `x`.
    """
    if not isinstance(msg, str):
        raise DnnTypeError(f"assert_shape: msg must be a str, got {shown(msg)}")
    x = as_tensor("assert_shape: x must be a tensor", x)
    if x.type.dtype.startswith("complex"):
        raise DnnTypeError(f"assert_shape: x must be real, got {x.type}")
    sizes = shape_argument(
        "assert_shape", f"expected_shape, beside x of {x.type},", expected_shape, x.type.ndim
    )
    told = [(i, size) for i, size in enumerate(sizes) if size is not None]
    static = x.type.shape
    if any(is_int(size) and static[i] not in (None, size) for i, size in told):
        raise DnnValueError(f"assert_shape: {msg} x is {static}, expected_shape {sizes}")
    fits = [pt.eq(x.shape[i], size) for i, size in told if static[i] != size]
    result: TensorVariable = checked(x, msg, *fits)
    return result


def border_mode_to_pad(mode: Any, convdim: int, kshp: Sequence[Any]) -> tuple[tuple[Any, Any], ...]:
    """Return the padding before and after each spatial axis.

    Parameters
    ----------
    mode : {'valid', 'half', 'full'}, or tuple of ints or pairs of ints
        A `border_mode`, as `conv2d` takes it.
    convdim : int
        The number of spatial axes.
    kshp : sequence of int or symbolic int
        The spatial sizes of the filters, dilated.

    Returns
    -------
    tuple of pairs

    Raises
    ------
    DnnNotSupportedError
        If an entry of `mode` has more or fewer than two sides.
    DnnValueError
        If `mode` is anything else.
    """
    where = "border_mode_to_pad"
    if not is_int(convdim):
        raise DnnTypeError(f"{where}: convdim must be an int, got {shown(convdim)}")
    kshp = sizes_argument(where, "kshp, an entry for each of convdim axes,", kshp, (convdim,))
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
            f"{where}: entries of mode must be ints of 0 or more, or pairs of them, got"
            f" {shown(entry)}"
        )
    if len(sides) != 2:
        raise DnnNotSupportedError(f"{where}: mode must give an axis two sides, got {shown(entry)}")
    return int(sides[0]), int(sides[1])
