"""Neighbourhoods of images as the rows of a matrix, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet._validate import (
    MAX_PARAMETER,
    as_tensor,
    int_vector,
    is_int,
    one_of,
    show_shape,
    vector_entries,
)
from dnnops.nnet.checks import checked
from dnnops.nnet.pool_geometry import MAX_WINDOW

__all__ = ["images2neibs", "neibs2images"]

MODES = ("valid", "half", "full", "ignore_borders", "wrap_centered")


def images2neibs(
    ten4: Any, neib_shape: Any, neib_step: Any = None, mode: str = "valid"
) -> TensorVariable:
    """Cut images into neighbourhoods, each of which becomes a row of a matrix.

    Parameters
    ----------
    ten4 : tensor_like, (batch, channels, rows, columns)
        Of any dtype.
    neib_shape : int vector or sequence of 2 ints
        The rows and columns of a neighbourhood, ``2**26`` at most, also of their product. Like
        `neib_step` it may be symbolic.
    neib_step : int vector or sequence of 2 ints, optional
        How far a neighbourhood is from the next one; `neib_shape` if not given: they don't overlap.
    mode : {'valid', 'half', 'full', 'ignore_borders', 'wrap_centered'}
        'valid': the neighbourhoods must fill the image exactly. 'ignore_borders': what is left at
        the end is dropped. 'half' and 'full': as 'valid', of images with zeros around them, half a
        neighbourhood or a whole one less a pixel on each side. 'wrap_centered': they are centred on
        every `neib_step`-th pixel, and go on at the opposite side of the image; `neib_shape` must
        be odd.

    Returns
    -------
    TensorVariable, (batch * channels * neighbourhoods, rows * columns of one)
        In the order of images, channels, and neighbourhoods along rows and columns.

    Raises
    ------
    DnnTypeError
        If `ten4` has another rank, or sizes are no ints.
    DnnValueError
        If there is no such mode, or neighbourhoods don't fit; at the call, if the types don't tell.

    Notes
    -----
    Neighbourhoods that don't overlap are made by moving axes, without an index for each pixel.
    """
    where = "images2neibs"
    x = _tensor4(where, "ten4", ten4)
    one_of(where, "mode", mode, MODES)
    shape = _positive(where, "neib_shape", neib_shape, MAX_WINDOW)
    if all(map(is_int, shape)) and shape[0] * shape[1] > MAX_WINDOW:
        raise DnnValueError(
            f"{where}: neighbourhoods of neib_shape must have at most {MAX_WINDOW} elements, got"
            f" {shape}"
        )
    apart = neib_step is None or neib_step is neib_shape
    step = shape if apart else _positive(where, "neib_step", neib_step)
    if mode in ("half", "full"):
        before = [size // 2 if mode == "half" else size - 1 for size in shape]
        x = _framed(x, before, before)
    sizes = _sizes(x)
    ways = zip(sizes[2:], shape, step, strict=True)
    if mode == "wrap_centered":
        counts = [_centres(*way) for way in ways]
    else:
        counts = [_windows(*way, mode == "ignore_borders") for way in ways]
        if apart or (shape == step and all(map(is_int, shape))):
            if mode == "ignore_borders":
                x = x[:, :, : counts[0] * shape[0], : counts[1] * shape[1]]
            return _blocks(x, counts, shape)
    for axis, (count, length, distance) in enumerate(zip(counts, shape, step, strict=True), 2):
        index = pt.arange(count)[:, None] * distance + pt.arange(length)
        if mode == "wrap_centered":
            index = (index - length // 2) % sizes[axis]
        # What neighbourhoods share is copied for each of them; then they don't overlap. Indices of
        # the first axis have a gradient in C.
        x = x.swapaxes(0, axis)[index.flatten()].swapaxes(0, axis)
    return _blocks(x, counts, shape)


def neibs2images(
    neibs: Any, neib_shape: Any, original_shape: Any, mode: str = "valid"
) -> TensorVariable:
    """Put images together again from neighbourhoods that don't overlap.

    Parameters
    ----------
    neibs : tensor_like, (batch * channels * neighbourhoods, rows * columns of one)
        What `images2neibs` returns without `neib_step`.
    neib_shape : int vector or sequence of 2 ints
        The rows and columns of a neighbourhood.
    original_shape : int vector or sequence of 4 ints
        The images' shape.
    mode : {'valid', 'ignore_borders'}
        That of `images2neibs`. With 'ignore_borders', what was dropped is 0.

    Returns
    -------
    TensorVariable, of `original_shape`

    Raises
    ------
    DnnTypeError
        If `neibs` is no matrix, or sizes are no ints.
    DnnValueError
        If `mode` is invalid; at the call, if the sizes do not match.
    """
    where = "neibs2images"
    matrix = as_tensor(f"{where}: neibs must be a matrix", neibs)
    if matrix.type.ndim != 2:
        raise DnnTypeError(f"{where}: neibs must have 2 dimensions, got {matrix.type.ndim}")
    one_of(where, "mode", mode, ("valid", "ignore_borders"))
    rows, columns = _positive(where, "neib_shape", neib_shape, MAX_WINDOW)
    batch, channels, *sizes = vector_entries(
        int_vector(where, "original_shape", original_shape, 4), 4
    )
    given = [batch, channels, *sizes]
    if any(is_int(size) and size < 0 for size in given):
        raise DnnValueError(f"{where}: original_shape must not be negative, got {given}")
    down, across = sizes[0] // rows, sizes[1] // columns
    wanted = (batch * channels * down * across, rows * columns)
    pairs = zip(matrix.type.shape, wanted, strict=True)
    if any(is_int(a) and is_int(b) and a != b for a, b in pairs):
        raise DnnValueError(
            f"{where}: neibs of shape {show_shape(matrix.type.shape)} are not those of images of"
            f" original_shape {given} and neib_shape {(rows, columns)}, which are {wanted}"
        )
    grid = matrix.reshape((batch, channels, down, across, rows, columns))
    covered = (down * rows, across * columns)
    images = grid.dimshuffle(0, 1, 2, 4, 3, 5).reshape((batch, channels, *covered))
    if mode == "valid":
        exact = map(_equal, sizes, covered)
        return checked(images, f"{where}: neib_shape must divide the images' sizes", *exact)
    rest = [size - cover for size, cover in zip(sizes, covered, strict=True)]
    return _framed(images, (0, 0), rest)


def _tensor4(where: str, name: str, value: Any) -> TensorVariable:
    x = as_tensor(f"{where}: {name} must be a tensor", value)
    if x.type.ndim != 4:
        raise DnnTypeError(f"{where}: {name} must have 4 dimensions, got {x.type.ndim}")
    return x


def _sizes(x: TensorVariable) -> list[Any]:
    return [x.shape[i] if size is None else size for i, size in enumerate(x.type.shape)]


def _framed(x: TensorVariable, before: Sequence[Any], after: Sequence[Any]) -> TensorVariable:
    """Put zeros around images."""
    batch, channels, *sizes = _sizes(x)
    framed = [n + b + a for n, b, a in zip(sizes, before, after, strict=True)]
    zeros = pt.zeros((batch, channels, *framed), dtype=x.type.dtype)
    rows, columns = (slice(b, b + n) for b, n in zip(before, sizes, strict=True))
    return pt.set_subtensor(zeros[:, :, rows, columns], x)


def _equal(a: Any, b: Any) -> Any:
    return bool(a == b) if is_int(a) and is_int(b) else pt.eq(a, b)


def _positive(where: str, name: str, value: Any, maximum: int = MAX_PARAMETER) -> tuple[Any, Any]:
    first, second = (
        checked(
            entry,
            f"{where}: {name} must be between 1 and {maximum}",
            entry >= 1,
            entry <= maximum,
        )
        for entry in vector_entries(int_vector(where, name, value, 2), 2)
    )
    return first, second


def _windows(size: Any, length: Any, step: Any, drops_rest: bool) -> Any:
    """How many neighbourhoods lie within an axis."""
    rest = size - length
    if drops_rest:
        # None of a neighbourhood that is larger than the image.
        return max(rest // step + 1, 0) if is_int(rest // step) else pt.maximum(rest // step + 1, 0)
    problem = (
        "images2neibs: neighbourhoods of neib_shape, neib_step apart, must fill the images of"
        " ten4 exactly (mode='ignore_borders' drops what is left)"
    )
    return checked(rest, problem, rest >= 0, _equal(rest % step, 0)) // step + 1


def _centres(size: Any, length: Any, step: Any) -> Any:
    """How many pixels of an axis are centres of neighbourhoods that go on at its other end."""
    problem = (
        "images2neibs: with mode='wrap_centered', neib_shape must be odd and at most the size of"
        " the images, ten4"
    )
    last = checked(size - 1, problem, _equal(length % 2, 1), size >= length)
    return last // step + 1


def _blocks(x: TensorVariable, counts: Sequence[Any], shape: Sequence[Any]) -> TensorVariable:
    """The neighbourhoods of images that they fill, without overlapping."""
    batch, channels = _sizes(x)[:2]
    (down, across), (rows, columns) = counts, shape
    grid = x.reshape((batch, channels, down, rows, across, columns))
    matrix = grid.dimshuffle(0, 1, 2, 4, 3, 5)
    return matrix.reshape((batch * channels * down * across, rows * columns))
