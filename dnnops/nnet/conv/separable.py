"""Depthwise-separable convolutions, and causal convolutions of sequences."""

from __future__ import annotations

from typing import Any

from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.conv.op import conv1d, convolve, refuse_unshared
from dnnops.nnet.operands import float_operands
from dnnops.nnet.validate import (
    MAX_PARAMETER,
    int_tuple,
    is_int,
    shape_argument,
    shown,
)

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
    """Convolve each channel separately, then mix the channels pixel by pixel.

    Parameters
    ----------
    input : tensor_like, (batch, channels, rows, columns)
        Images.
    depthwise_filters : tensor_like, (depthwise channels, 1, filter rows, filter columns)
        Filters of the first convolution, the same number for each channel: the number of depthwise
        channels must be a multiple of `num_channels`.
    pointwise_filters : tensor_like, (output channels, depthwise channels, 1, 1)
        Filters that mix the depthwise channels.
    num_channels : int
        Number of channels of `input`.
    input_shape, depthwise_filter_shape, pointwise_filter_shape : None, or sequence of 4 entries
        Shapes, as far as they are known when the graph is built.
    border_mode, subsample, filter_flip, filter_dilation
        Parameters of the first convolution: see `conv2d`.

    Returns
    -------
    TensorVariable, (batch, output channels, rows, columns)

    Raises
    ------
    DnnTypeError, DnnValueError
        See `conv2d`.
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
    """Convolve each channel of a volume separately, then mix the channels voxel by voxel.

    See `separable_conv2d`. Here, there are three spatial axes, and shapes have 5 entries.
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
    operands = {
        "input": input,
        "depthwise_filters": depthwise,
        "pointwise_filters": pointwise,
    }
    input, depthwise, pointwise = float_operands(where, operands)
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
    """Convolve sequences so that no output depends on later inputs.

    The sequences are padded with ``(filter length - 1) * filter_dilation`` zeros at the front.

    Parameters
    ----------
    input : tensor_like, (batch, input channels, length)
        Sequences.
    filters : tensor_like, (output channels, input channels // num_groups, filter length)
        Filters.
    filter_shape : sequence of 3 entries
        Shape of the filters. The last entry must be an int, because the padding depends on it. May
        be None if the static type of `filters` has the filter length.
    input_shape : None, or sequence of 3 entries
        Shape of the sequences, as far as it is known when the graph is built.
    subsample : int
        Stride.
    filter_flip, num_groups
        See `conv2d`.
    filter_dilation : int
        Distance between neighboring filter taps.
    unshared : bool
        Whether the filters are locally connected, which is not supported.

    Returns
    -------
    TensorVariable, (batch, output channels, (length - 1) // subsample + 1)

    Raises
    ------
    DnnTypeError, DnnValueError, DnnNotSupportedError
        See `conv2d`. DnnValueError is also raised if the filter length is not known.
    """
    where = "causal_conv1d"
    refuse_unshared(where, unshared)
    if not is_int(filter_dilation):
        raise DnnTypeError(f"{where}: filter_dilation must be an int, got {shown(filter_dilation)}")
    (filter_dilation,) = int_tuple(where, "filter_dilation", filter_dilation, 1, 1)
    input, filters = float_operands(where, {"input": input, "filters": filters}, {"filters": 3})
    length = shape_argument(where, "filter_shape", filter_shape, 3)[2]
    length = filters.type.shape[2] if length is None else length
    if not isinstance(length, int):
        raise DnnValueError(
            f"{where}: the last entry of filter_shape must be an int, because the padding depends"
            f" on it, got {shown(filter_shape)}"
        )
    padding = max(length - 1, 0) * filter_dilation
    if padding > MAX_PARAMETER:
        raise DnnValueError(
            f"{where}: a filter_shape of length {length} with filter_dilation {filter_dilation}"
            f" spans more than {MAX_PARAMETER} elements"
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
