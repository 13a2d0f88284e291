"""Convolutions from several modules of Theano, with Theano's arguments."""

from __future__ import annotations

from typing import Any

from pytensor.tensor import as_tensor_variable

from dnnops import nnet
from dnnops.arguments import is_int
from dnnops.errors import DnnShapeError, DnnTypeError
from dnnops.nnet.validate import shape_argument

__all__ = ["abstract_conv2d", "conv2d", "signal_conv2d"]


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

    Raises
    ------
    DnnShapeError
        If the known shapes have different numbers of input channels.
    """
    shapes = {"image_shape": image_shape, "filter_shape": filter_shape}
    given, wanted = (shape_argument("conv2d", *item, 4)[1] for item in shapes.items())
    if is_int(given) and is_int(wanted) and given != wanted:
        raise DnnShapeError(
            f"conv2d: image_shape has {given} channels, but filter_shape has {wanted}"
        )
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
