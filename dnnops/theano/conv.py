"""Convolutions from several modules of Theano, with Theano's arguments."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor import as_tensor_variable

from dnnops import nnet
from dnnops.errors import DnnTypeError

__all__ = ["abstract_conv2d", "conv2d", "conv3d2d", "signal_conv2d"]


def abstract_conv2d(
    input: Any,
    filters: Any,
    input_shape: Any = None,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
) -> Any:
    """Convolve images; like `dnnops.nnet.conv2d`, but without the argument `image_shape`."""
    return nnet.conv2d(
        input,
        filters,
        input_shape,
        filter_shape,
        border_mode,
        subsample,
        filter_flip,
        None,
        filter_dilation,
        num_groups,
        unshared,
    )


def conv2d(
    input: Any,
    filters: Any,
    image_shape: Any = None,
    filter_shape: Any = None,
    border_mode: str = "valid",
    subsample: Any = (1, 1),
    **kwargs: Any,
) -> Any:
    """Convolve a batch of images, as ``theano.tensor.nnet.conv.conv2d`` did.

    Parameters
    ----------
    input : tensor_like, (batch, input channels, rows, columns)
    filters : tensor_like, (output channels, input channels, rows, columns)
        Filters, which are flipped.
    image_shape, filter_shape : sequence of int or None, optional
        Known shapes, with None for unknown sizes.
    border_mode : {'valid', 'full'}
    subsample : tuple of int
    **kwargs
        Options for unrolling Theano's loops; ignored.
    """
    return nnet.conv2d(input, filters, image_shape, filter_shape, border_mode, subsample)


def signal_conv2d(
    input: Any,
    filters: Any,
    image_shape: Any = None,
    filter_shape: Any = None,
    border_mode: str = "valid",
    subsample: Any = (1, 1),
    **kwargs: Any,
) -> Any:
    """Convolve each image with each filter, as ``theano.tensor.signal.conv.conv2d`` did.

    Parameters
    ----------
    input : tensor_like, ([images,] rows, columns)
    filters : tensor_like, ([filters,] rows, columns)
        Filters, which are flipped.
    image_shape, filter_shape : sequence of int or None, optional
        Known shapes, with None for unknown sizes.
    border_mode : {'valid', 'full'}
    subsample : tuple of int
    **kwargs
        Options for unrolling Theano's loops; ignored.

    Returns
    -------
    TensorVariable, ([images,] [filters,] rows, columns)

    Raises
    ------
    DnnTypeError
        If an operand doesn't have two or three axes.
    """
    images, taps = as_tensor_variable(input), as_tensor_variable(filters)
    for name, operand in (("input", images), ("filters", taps)):
        if operand.ndim not in (2, 3):
            raise DnnTypeError(f"conv2d: {name} has {operand.ndim} dimensions; expected 2 or 3")
    result = nnet.conv2d(
        _with_one_channel(images),
        _with_one_channel(taps),
        _with_one_channel_shape(image_shape),
        _with_one_channel_shape(filter_shape),
        border_mode,
        subsample,
    )
    if taps.ndim == 2:
        result = result[:, 0]
    return result if images.ndim == 3 else result[0]


def _with_one_channel(images: Any) -> Any:
    return images[None, None] if images.ndim == 2 else images[:, None]


def _with_one_channel_shape(shape: Any) -> Any:
    if shape is None:
        return None
    *number, rows, columns = shape
    return (*(number or (1,)), 1, rows, columns)


def conv3d2d(
    signals: Any,
    filters: Any,
    signals_shape: Any = None,
    filters_shape: Any = None,
    border_mode: Any = "valid",
) -> Any:
    """Convolve videos, as ``theano.tensor.nnet.conv3d2d.conv3d`` did.

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
