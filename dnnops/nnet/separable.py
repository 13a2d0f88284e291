"""Convolutions made of others: depthwise-separable ones, and causal ones of sequences."""

from __future__ import annotations

from typing import Any

from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet._validate import (
    MAX_PARAMETER,
    float_tensor,
    int_tuple,
    is_int,
    shape_argument,
    shown,
)
from dnnops.nnet.conv import conv1d, convolve, refuse_unshared

__all__ = ["causal_conv1d", "separable_conv2d", "separable_conv3d"]


def separable_conv2d(
    input: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    num_channels: int,
    input_shape: Any = None,
    depthwise_filter_shape: Any = None,
    pointwise_filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
) -> TensorVariable:
    """Convolve each channel on its own, then mix the channels pixel by pixel.

    Parameters
    ----------
    input : tensor_like, (batch, channels, rows, columns)
        The images.
    depthwise_filters : tensor_like, (depthwise channels, 1, filter rows, filter columns)
        As many for each channel of the images: `num_channels` divides their number.
    pointwise_filters : tensor_like, (output channels, depthwise channels, 1, 1)
        What mixes the results.
    num_channels : int
        The number of channels of `input`.
    input_shape, depthwise_filter_shape, pointwise_filter_shape : None, or sequence of 4 entries
        What is known of the shapes when the graph is built.
    border_mode, subsample, filter_flip, filter_dilation
        Of the first convolution: see `conv2d`.

    Returns
    -------
    TensorVariable, (batch, output channels, rows, columns)

    Raises
    ------
    DnnTypeError, DnnValueError
        As for `conv2d`.
    """
    filters = [depthwise_filters, depthwise_filter_shape, pointwise_filters, pointwise_filter_shape]
    return _separable(
        "separable_conv2d",
        2,
        input,
        input_shape,
        *filters,
        border_mode=border_mode,
        subsample=subsample,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_channels,
    )


def separable_conv3d(
    input: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    num_channels: int,
    input_shape: Any = None,
    depthwise_filter_shape: Any = None,
    pointwise_filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
) -> TensorVariable:
    """Convolve each channel of a volume on its own, then mix the channels voxel by voxel.

    As `separable_conv2d`, with three spatial axes and shapes of 5 entries.
    """
    filters = [depthwise_filters, depthwise_filter_shape, pointwise_filters, pointwise_filter_shape]
    return _separable(
        "separable_conv3d",
        3,
        input,
        input_shape,
        *filters,
        border_mode=border_mode,
        subsample=subsample,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_channels,
    )


def _separable(
    where: str,
    ndim: int,
    input: Any,
    input_shape: Any,
    depthwise: Any,
    depthwise_shape: Any,
    pointwise: Any,
    pointwise_shape: Any,
    **params: Any,
) -> TensorVariable:
    names = {
        "filters": "depthwise_filters",
        "filter_shape": "depthwise_filter_shape",
        "num_groups": "num_channels",
    }
    mixed = {
        "input": "the depthwise convolution",
        "filters": "pointwise_filters",
        "filter_shape": "pointwise_filter_shape",
    }
    channels = convolve(
        where, ndim, input, depthwise, input_shape, depthwise_shape, names, **params
    )
    return convolve(where, ndim, channels, pointwise, None, pointwise_shape, mixed)


def causal_conv1d(
    input: Any,
    filters: Any,
    filter_shape: Any,
    input_shape: Any = None,
    subsample: int = 1,
    filter_flip: bool = True,
    filter_dilation: int = 1,
    num_groups: int = 1,
    unshared: bool = False,
) -> TensorVariable:
    """Convolve sequences so that no output depends on what comes after it.

    Parameters
    ----------
    input : tensor_like, (batch, input channels, length)
        The sequences.
    filters : tensor_like, (output channels, input channels // num_groups, filter length)
        The filters.
    filter_shape : sequence of 3 entries
        Their shape; the last entry must be an int, from which the padding follows. None if the
        static type of `filters` tells it.
    input_shape : None, or sequence of 3 entries
        What is known of the sequences' shape when the graph is built.
    subsample : int
        The stride.
    filter_flip, num_groups
        See `conv2d`.
    filter_dilation : int
        The distance between neighboring filter taps.
    unshared : bool
        Locally connected filters: not supported.

    Returns
    -------
    TensorVariable, (batch, output channels, (length - 1) // subsample + 1)
        The sequences are padded with ``(filter length - 1) * filter_dilation`` zeros at the front.

    Raises
    ------
    DnnTypeError, DnnValueError, DnnNotSupportedError
        As for `conv2d`; also if the filters' length isn't known.
    """
    where = "causal_conv1d"
    refuse_unshared(where, unshared)
    if not is_int(filter_dilation):
        raise DnnTypeError(f"{where}: filter_dilation must be an int, got {shown(filter_dilation)}")
    (filter_dilation,) = int_tuple(where, "filter_dilation", filter_dilation, 1, 1)
    filters = float_tensor(where, "filters", filters, 3)
    length = shape_argument(where, "filter_shape", filter_shape, 3)[2]
    length = filters.type.shape[2] if length is None else length
    if not isinstance(length, int):
        raise DnnValueError(
            f"{where}: the last entry of filter_shape must be an int, because the padding follows"
            f" from it, got {shown(filter_shape)}"
        )
    padding = max(length - 1, 0) * filter_dilation
    if padding > MAX_PARAMETER:
        raise DnnValueError(
            f"{where}: a filter_shape of length {length} with filter_dilation {filter_dilation}"
            f" reaches over more than {MAX_PARAMETER} elements"
        )
    return conv1d(
        input,
        filters,
        input_shape,
        filter_shape,
        border_mode=((padding, 0),),
        subsample=subsample,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
    )
