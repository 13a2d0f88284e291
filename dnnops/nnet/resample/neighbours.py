"""Convert between images and matrices of their neighborhoods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnNeighborhoodError, DnnTypeError, DnnValueError
from dnnops.nnet.checks import checked
from dnnops.nnet.pool.geometry import MAX_WINDOW
from dnnops.nnet.validate import (
    MAX_PARAMETER,
    as_tensor,
    int_vector,
    is_int,
    one_of,
    show_shape,
    vector_entries,
)

__all__ = ["images2neibs", "neibs2images"]

MODES = ("valid", "half", "full", "ignore_borders", "wrap_centered")


def images2neibs(
    ten4: Any, neib_shape: Any, neib_step: Any = None, mode: str = "valid"
) -> TensorVariable:
    """Cut images into neighborhoods, each of which becomes a row of a matrix.

    Parameters
    ----------
    ten4 : tensor_like, (batch, channels, rows, columns)
        Images of any dtype.
    neib_shape : int vector or sequence of 2 ints
        Number of rows and columns of a neighborhood. Each of them, and their product, must be at
        most ``2**26``. May be symbolic, like `neib_step`.
    neib_step : int vector or sequence of 2 ints, optional
        Distance from one neighborhood to the next. The default is `neib_shape`, so that
        neighborhoods don't overlap.
    mode : {'valid', 'half', 'full', 'ignore_borders', 'wrap_centered'}
        Treatment of the borders. With 'valid', the neighborhoods must fill the image exactly.
        'ignore_borders' drops the pixels left over at the end. 'half' and 'full' are like 'valid'
        after padding each side with zeros: by half a neighborhood, or by a whole one minus one
        pixel. With 'wrap_centered', neighborhoods are centered on every `neib_step`-th pixel and
        wrap around at the border; `neib_shape` must be odd.

    Returns
    -------
    TensorVariable, (batch * channels * neighborhoods, rows * columns of a neighborhood)
        The neighborhoods, ordered by image, channel, row and column.

    Raises
    ------
    DnnTypeError
        If `ten4` does not have 4 dimensions, or if sizes are not ints.
    DnnValueError
        If `mode` is invalid.
    DnnNeighborhoodError
        If the neighborhoods don't fit. Shapes that are not known statically are checked when the
        compiled function is called.

    Notes
    -----
    Neighborhoods that don't overlap are extracted by permuting axes, without indexing single
    pixels.
    """
    where = "images2neibs"
    x = _tensor4(where, "ten4", ten4)
    one_of(where, "mode", mode, MODES)
    shape = _positive(where, "neib_shape", neib_shape, MAX_WINDOW)
    if all(map(is_int, shape)) and shape[0] * shape[1] > MAX_WINDOW:
        raise DnnValueError(
            f"{where}: neighborhoods of neib_shape must have at most {MAX_WINDOW} elements, got"
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
        # Copy shared pixels into each neighborhood, so that none overlap. Move the axis to the
        # front, because the gradient of indexing the first axis is implemented in C.
        x = x.swapaxes(0, axis)[index.flatten()].swapaxes(0, axis)
    return _blocks(x, counts, shape)


def neibs2images(
    neibs: Any, neib_shape: Any, original_shape: Any, mode: str = "valid"
) -> TensorVariable:
    """Reassemble images from neighborhoods that don't overlap.

    Parameters
    ----------
    neibs : tensor_like, (batch * channels * neighborhoods, rows * columns of a neighborhood)
        Matrix returned by `images2neibs` without `neib_step`.
    neib_shape : int vector or sequence of 2 ints
        Number of rows and columns of a neighborhood.
    original_shape : int vector or sequence of 4 ints
        Shape of the images.
    mode : {'valid', 'ignore_borders'}
        The mode passed to `images2neibs`. With 'ignore_borders', the dropped pixels are set to 0.

    Returns
    -------
    TensorVariable
        Images of shape `original_shape`.

    Raises
    ------
    DnnTypeError
        If `neibs` is not a matrix, or if sizes are not ints.
    DnnValueError
        If `mode` is invalid or the sizes do not match. Sizes that are not known statically are
        checked when the compiled function is called.
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
            f"{where}: neibs of shape {show_shape(matrix.type.shape)} do not match original_shape"
            f" {given} and neib_shape {(rows, columns)}, which require shape {wanted}"
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
    """Pad images with zeros."""
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
    """Return the number of neighborhoods that fit along an axis."""
    rest = size - length
    if drops_rest:
        # No neighborhoods fit if they are larger than the image.
        return max(rest // step + 1, 0) if is_int(rest // step) else pt.maximum(rest // step + 1, 0)
    problem = (
        "images2neibs: neighborhoods of neib_shape, neib_step apart, must fill the images of"
        " ten4 exactly (mode='ignore_borders' drops the remainder)"
    )
    fits = (rest >= 0, _equal(rest % step, 0))
    return checked(rest, problem, *fits, error=DnnNeighborhoodError) // step + 1


def _centres(size: Any, length: Any, step: Any) -> Any:
    """Return the number of centers along an axis whose neighborhoods wrap around."""
    problem = (
        "images2neibs: with mode='wrap_centered', neib_shape must be odd and at most the size of"
        " the images, ten4"
    )
    fits = (_equal(length % 2, 1), size >= length)
    last = checked(size - 1, problem, *fits, error=DnnNeighborhoodError)
    return last // step + 1


def _blocks(x: TensorVariable, counts: Sequence[Any], shape: Sequence[Any]) -> TensorVariable:
    """Return the non-overlapping neighborhoods that fill the images."""
    batch, channels = _sizes(x)[:2]
    (down, across), (rows, columns) = counts, shape
    grid = x.reshape((batch, channels, down, rows, across, columns))
    matrix = grid.dimshuffle(0, 1, 2, 4, 3, 5)
    return matrix.reshape((batch * channels * down * across, rows * columns))
