"""Names of ``theano.tensor.nnet.conv3d2d``: convolution of videos, and diagonals of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor import as_tensor_variable

from dnnops import nnet
from dnnops.errors import DnnNotSupportedError
from dnnops.theano.ops import OpName

__all__ = [
    "DiagonalSubtensor",
    "IncDiagonalSubtensor",
    "conv3d",
    "diagonal_subtensor",
    "get_diagonal_subtensor_view",
    "inc_diagonal_subtensor",
]


def conv3d(
    signals: Any,
    filters: Any,
    signals_shape: Any = None,
    filters_shape: Any = None,
    border_mode: Any = "valid",
) -> Any:
    """Convolve videos.

    Parameters
    ----------
    signals : tensor_like, (batch, time, input channels, rows, columns)
    filters : tensor_like, (output channels, time, input channels, rows, columns)
        Filters, which are flipped.
    signals_shape, filters_shape : sequence of int or None, optional
        Known shapes, with None for unknown sizes.
    border_mode : {'valid', 'full', 'half'} or tuple of three of them
        Border mode of all axes, or of time, rows and columns.

    Returns
    -------
    TensorVariable, (batch, time, output channels, rows, columns)
    """
    to_channels_first = (0, 2, 1, 3, 4)
    videos = as_tensor_variable(signals).dimshuffle(to_channels_first)
    taps = as_tensor_variable(filters).dimshuffle(to_channels_first)
    if isinstance(border_mode, (tuple, list)):
        if len(set(border_mode)) > 1:
            videos = _padded(videos, taps, border_mode)
            signals_shape = None
            border_mode = ("valid",)
        border_mode = border_mode[0]
    result = nnet.conv3d(
        videos,
        taps,
        _reordered(signals_shape, to_channels_first),
        _reordered(filters_shape, to_channels_first),
        border_mode,
    )
    return result.dimshuffle(to_channels_first)


def _reordered(shape: Any, order: tuple[int, ...]) -> Any:
    return None if shape is None else tuple(shape[axis] for axis in order)


def _padded(videos: Any, taps: Any, modes: Any) -> Any:
    """Pad videos with zeros, with a separate border mode for each axis."""
    pads = [
        nnet.border_mode_to_pad(mode, 1, [taps.shape[axis]])[0]
        for axis, mode in enumerate(modes, 2)
    ]
    sizes = [videos.shape[axis] + sum(sides) for axis, sides in enumerate(pads, 2)]
    zeros = pt.zeros((*videos.shape[:2], *sizes), dtype=videos.type.dtype)
    inside = (slice(begin, begin + videos.shape[axis]) for axis, (begin, _) in enumerate(pads, 2))
    return pt.set_subtensor(zeros[:, :, *inside], videos)


def get_diagonal_subtensor_view(x: np.ndarray, i0: Any, i1: Any) -> np.ndarray:
    """Return a view of an array's diagonals that begin in its last column and run down and left.

    Parameters
    ----------
    x : ndarray
    i0, i1 : int
        Axes of the rows and columns.

    Returns
    -------
    ndarray
        View whose element ``[t, k]`` on these axes is ``x[t + columns - 1 - k, k]``, so that axis
        `i0` has ``rows - columns + 1`` elements.

    Raises
    ------
    DnnNotSupportedError
        If there are fewer rows than columns.
    """
    i0, i1 = int(i0), int(i1)
    if x.shape[i0] < x.shape[i1]:
        raise DnnNotSupportedError(
            f"get_diagonal_subtensor_view: axis {i0} must not be shorter than axis {i1}, got the"
            f" shape {x.shape}"
        )
    below = x[(slice(None),) * (i0 % x.ndim) + (slice(x.shape[i1] - 1, None),)]
    strides = list(x.strides)
    strides[i1] -= strides[i0]
    return np.lib.stride_tricks.as_strided(below, below.shape, strides)


def _diagonal_indices(x: Any, i0: Any, i1: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the elements of the diagonals, axes `i0` and `i1` first, and the order of axes."""
    i0, i1 = (int(pt.get_underlying_scalar_constant_value(axis)) % x.type.ndim for axis in (i0, i1))
    order = (i0, i1, *(axis for axis in range(x.type.ndim) if axis not in (i0, i1)))
    columns = pt.arange(x.shape[i1])
    lines = pt.arange(x.shape[i0] - x.shape[i1] + 1)[:, None]
    first = x.dimshuffle(order)
    return first[lines + x.shape[i1] - 1 - columns, columns], order


def _inverse(order: tuple[int, ...]) -> list[int]:
    return [order.index(axis) for axis in range(len(order))]


def diagonal_subtensor(x: Any, i0: Any, i1: Any) -> Any:
    """Return the diagonals of a tensor; see `get_diagonal_subtensor_view`.

    Parameters
    ----------
    x : tensor
    i0, i1 : int or constant scalar
        Axes of the lines and the columns.

    Returns
    -------
    TensorVariable
    """
    found, order = _diagonal_indices(as_tensor_variable(x), i0, i1)
    return found.dimshuffle(_inverse(order))


def inc_diagonal_subtensor(x: Any, i0: Any, i1: Any, amt: Any) -> Any:
    """Add `amt` to the diagonals of a tensor; see `get_diagonal_subtensor_view`.

    Parameters
    ----------
    x : tensor
    i0, i1 : int or constant scalar
        Axes of the lines and the columns.
    amt : tensor
        What is added, of the shape of the diagonals.

    Returns
    -------
    TensorVariable, of the shape of `x`
    """
    found, order = _diagonal_indices(as_tensor_variable(x), i0, i1)
    return pt.inc_subtensor(found, as_tensor_variable(amt).dimshuffle(order)).dimshuffle(
        _inverse(order)
    )


DiagonalSubtensor = OpName("DiagonalSubtensor", lambda inplace=False: diagonal_subtensor)
IncDiagonalSubtensor = OpName("IncDiagonalSubtensor", lambda inplace=False: inc_diagonal_subtensor)
