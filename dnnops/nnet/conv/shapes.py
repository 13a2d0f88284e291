"""Shapes of convolutions and of their gradients, under their Theano names.

Sizes are ints, symbolic ints, or None if unknown. A result that depends on None is None. The size
of an output is negative if the filters are larger than the padded image by more than one pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dnnops.errors import DnnError, DnnTypeError, DnnValueError
from dnnops.hints import value_hint
from dnnops.nnet.conv.op import refuse_unshared
from dnnops.nnet.validate import (
    int_tuple,
    is_int,
    is_sequence,
    shown,
    size_argument,
    sizes_argument,
    static_int,
)

__all__ = [
    "check_conv_gradinputs_shape",
    "get_conv_gradinputs_shape",
    "get_conv_gradinputs_shape_1axis",
    "get_conv_gradweights_shape",
    "get_conv_gradweights_shape_1axis",
    "get_conv_output_shape",
    "get_conv_shape_1axis",
]


def get_conv_output_shape(
    image_shape: Sequence[Any],
    kernel_shape: Sequence[Any],
    border_mode: Any,
    subsample: Sequence[Any],
    filter_dilation: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """Return the shape of a convolution's output.

    Parameters
    ----------
    image_shape : sequence of int, symbolic int or None
        Shape of the images, (batch, input channels, spatial...).
    kernel_shape : sequence of int, symbolic int or None
        Shape of the filters, (output channels, input channels, spatial...).
    border_mode : {'valid', 'half', 'full'}, int, or tuple
        Border mode, as for `conv2d`; its ints may be symbolic.
    subsample, filter_dilation : sequence of int or symbolic int
        Stride and dilation of the filters on each spatial axis. The dilation is 1 by default.

    Returns
    -------
    tuple
        Shape of the output, (batch, output channels, spatial...).

    Raises
    ------
    DnnTypeError
        If an argument has an invalid type.
    DnnValueError
        If a size or the padding is negative, or if a sequence has the wrong length.
    """
    where = "get_conv_output_shape"
    image_shape = sizes_argument(where, "image_shape", image_shape, (3, 4, 5))
    kernel_shape = _kernel_shape(where, kernel_shape, "image_shape", len(image_shape))
    spatial = _spatial(
        where,
        "image_shape",
        get_conv_shape_1axis,
        image_shape[2:],
        kernel_shape[-(len(image_shape) - 2) :],
        border_mode,
        subsample,
        filter_dilation,
    )
    return (image_shape[0], kernel_shape[0], *spatial)


def get_conv_shape_1axis(
    image_shape: Any, kernel_shape: Any, border_mode: Any, subsample: Any, dilation: Any = 1
) -> Any:
    """Return the size of a convolution's output on one spatial axis.

    Parameters
    ----------
    image_shape, kernel_shape : int, symbolic int or None
        Sizes of the image and of the filters on the axis.
    border_mode : {'valid', 'half', 'full'}, int, or pair of ints
        Padding on both sides, or the padding before and after.
    subsample, dilation : int, symbolic int or None
        Stride and dilation of the filters.

    Returns
    -------
    int, symbolic int or None
        Size of the output.

    Raises
    ------
    DnnTypeError
        If an argument has an invalid type.
    DnnValueError
        If `border_mode` is an unknown string, or if a size or the padding is negative.
    """
    where = "get_conv_shape_1axis"
    image_shape = size_argument(where, "image_shape", image_shape)
    kernel_shape = size_argument(where, "kernel_shape", kernel_shape)
    border_mode = _border(where, border_mode)
    subsample = size_argument(where, "subsample", subsample, 1)
    dilation = size_argument(where, "dilation", dilation, 1)
    if _unknown(image_shape, kernel_shape, border_mode, subsample, dilation):
        return None
    reach = _reach(kernel_shape, dilation)
    pads = _padding(border_mode, reach)
    if _is_one(subsample):
        return _plus(image_shape - reach, pads)
    return _plus(image_shape - (reach + 1), pads) // subsample + 1


def get_conv_gradweights_shape(
    image_shape: Sequence[Any],
    top_shape: Sequence[Any],
    border_mode: Any,
    subsample: Sequence[Any],
    filter_dilation: Sequence[Any] | None = None,
    num_groups: int = 1,
    unshared: bool = False,
) -> tuple[Any, ...]:
    """Return the shape of a convolution's filters, as far as the other shapes determine it.

    Parameters
    ----------
    image_shape, top_shape : sequence of int, symbolic int or None
        Shapes of the images and of the output, (batch, channels, spatial...).
    border_mode, subsample, filter_dilation
        See `get_conv_output_shape`.
    num_groups : int
        Number of groups of channels.
    unshared : bool
        Must be False.

    Returns
    -------
    tuple
        Shape of the filters in Theano's form,
        (output channels // num_groups, input channels, spatial...). The size is None on axes with a
        stride or with 'half' padding, because several sizes are possible.

    Raises
    ------
    DnnTypeError
        If an argument has an invalid type.
    DnnValueError
        If a size or the padding is negative, or if a sequence has the wrong length.
    DnnNotSupportedError
        If `unshared` is true.
    """
    where = "get_conv_gradweights_shape"
    refuse_unshared(where, unshared)
    image_shape = sizes_argument(where, "image_shape", image_shape, (3, 4, 5))
    rank = len(image_shape)
    beside = f"top_shape (for an image_shape of {rank} entries)"
    top_shape = _top_shape(where, beside, top_shape, (rank,))
    num_groups = _groups(where, num_groups)
    spatial = _spatial(
        where,
        "image_shape",
        get_conv_gradweights_shape_1axis,
        image_shape[2:],
        top_shape[2:],
        border_mode,
        subsample,
        filter_dilation,
    )
    channels = top_shape[1]
    if num_groups > 1 and channels is not None:
        channels = channels // num_groups
    return (channels, image_shape[1], *spatial)


def get_conv_gradweights_shape_1axis(
    image_shape: Any, top_shape: Any, border_mode: Any, subsample: Any, dilation: Any = 1
) -> Any:
    """Return the size of the filters on one spatial axis, or None if several are possible.

    `top_shape` is the size of the output. See `get_conv_shape_1axis` for the other arguments and
    the errors.
    """
    where = "get_conv_gradweights_shape_1axis"
    image_shape = size_argument(where, "image_shape", image_shape)
    top_shape = size_argument(where, "top_shape", top_shape, None)
    border_mode = _border(where, border_mode)
    subsample = size_argument(where, "subsample", subsample, 1)
    dilation = size_argument(where, "dilation", dilation, 1)
    if _unknown(image_shape, top_shape, border_mode, subsample, dilation):
        return None
    if not _is_one(subsample) or _is_word(border_mode, "half"):
        return None
    if _is_word(border_mode, "full"):
        reach = top_shape - image_shape
    else:
        padding = _padding(border_mode, 0)
        reach = _plus(image_shape - top_shape, padding)
    return (reach if _is_one(dilation) else reach // dilation) + 1


def get_conv_gradinputs_shape(
    kernel_shape: Sequence[Any],
    top_shape: Sequence[Any],
    border_mode: Any,
    subsample: Sequence[Any],
    filter_dilation: Sequence[Any] | None = None,
    num_groups: int = 1,
) -> tuple[Any, ...]:
    """Return the shape of a convolution's images, as far as the other shapes determine it.

    Parameters
    ----------
    kernel_shape : sequence of int, symbolic int or None
        Shape of the filters, (output channels, input channels // num_groups, spatial...).
    top_shape : sequence of int, symbolic int or None
        Shape of the output, (batch, output channels, spatial...).
    border_mode, subsample, filter_dilation
        See `get_conv_output_shape`.
    num_groups : int
        Number of groups of channels.

    Returns
    -------
    tuple
        Shape of the images, (batch, input channels, spatial...). The size is None on axes with a
        stride, because several sizes are possible.

    Raises
    ------
    DnnTypeError
        If an argument has an invalid type.
    DnnValueError
        If a size or the padding is negative, or if a sequence has the wrong length.
    """
    where = "get_conv_gradinputs_shape"
    top_shape = _top_shape(where, "top_shape", top_shape, (3, 4, 5))
    kernel_shape = _kernel_shape(where, kernel_shape, "top_shape", len(top_shape))
    num_groups = _groups(where, num_groups)
    spatial = _spatial(
        where,
        "top_shape",
        get_conv_gradinputs_shape_1axis,
        kernel_shape[-(len(top_shape) - 2) :],
        top_shape[2:],
        border_mode,
        subsample,
        filter_dilation,
    )
    channels = kernel_shape[1]
    if num_groups > 1 and channels is not None:
        channels = channels * num_groups
    return (top_shape[0], channels, *spatial)


def get_conv_gradinputs_shape_1axis(
    kernel_shape: Any, top_shape: Any, border_mode: Any, subsample: Any, dilation: Any = 1
) -> Any:
    """Return the size of the images on one spatial axis, or None if several are possible.

    `top_shape` is the size of the output. See `get_conv_shape_1axis` for the other arguments and
    the errors.
    """
    where = "get_conv_gradinputs_shape_1axis"
    kernel_shape = size_argument(where, "kernel_shape", kernel_shape)
    top_shape = size_argument(where, "top_shape", top_shape, None)
    border_mode = _border(where, border_mode)
    subsample = size_argument(where, "subsample", subsample, 1)
    dilation = size_argument(where, "dilation", dilation, 1)
    if _unknown(kernel_shape, top_shape, border_mode, subsample, dilation):
        return None
    if not _is_one(subsample):
        return None
    reach = _reach(kernel_shape, dilation)
    begin, end = _padding(border_mode, reach)
    return _plus(top_shape + reach, (-begin, -end))


def check_conv_gradinputs_shape(
    image_shape: Sequence[Any],
    kernel_shape: Sequence[Any],
    output_shape: Sequence[Any],
    border_mode: Any,
    subsample: Sequence[Any],
    filter_dilation: Sequence[Any] | None = None,
) -> bool:
    """Return whether the output of a convolution can have the given shape.

    Parameters
    ----------
    image_shape, kernel_shape, output_shape : sequence of int, symbolic int or None
        Shapes of the images, of the filters and of the output.
    border_mode, subsample, filter_dilation
        See `get_conv_output_shape`.

    Returns
    -------
    bool
        False if the known sizes rule it out, True otherwise.
    """
    where = "check_conv_gradinputs_shape"
    given: dict[str, tuple[Any, int | None]] = {
        "image_shape": (image_shape, 0),
        "kernel_shape": (kernel_shape, 0),
        "output_shape": (output_shape, None),
        "subsample": (subsample, 1),
        "filter_dilation": (() if filter_dilation is None else filter_dilation, 1),
    }
    for name, (value, minimum) in given.items():
        if not is_sequence(value):
            raise DnnTypeError(f"{where}: {name} must be a sequence of sizes, got {shown(value)}")
        sizes_argument(where, name, value, (len(value),), minimum)
    ranks = {len(image_shape), len(kernel_shape), len(output_shape), len(subsample) + 2}
    if filter_dilation is not None:
        ranks.add(len(filter_dilation) + 2)
    if len(ranks) != 1:
        return False
    computed = get_conv_output_shape(
        image_shape, kernel_shape, border_mode, subsample, filter_dilation
    )
    output_shape = sizes_argument(where, "output_shape", output_shape, (len(image_shape),), None)
    sizes = zip(map(static_int, output_shape), map(static_int, computed), strict=True)
    return all(given is None or size is None or given == size for given, size in sizes)


def _kernel_shape(where: str, kernel_shape: Any, beside: str, rank: int) -> tuple[Any, ...]:
    # Unshared filters have the output's spatial sizes between output channels and input channels.
    name = f"kernel_shape (for a {beside} of {rank} entries)"
    return sizes_argument(where, name, kernel_shape, (rank, 2 * rank - 2))


def _top_shape(where: str, name: str, shape: Any, lengths: Sequence[int]) -> tuple[Any, ...]:
    """Check the shape of an output, whose spatial sizes may be negative."""
    sizes = sizes_argument(where, name, shape, lengths, None)
    sizes_argument(where, name, sizes[:2], (2,))
    return sizes


def _groups(where: str, num_groups: Any) -> int:
    return int_tuple(where, "num_groups", num_groups, 1, 1)[0]


def _spatial(
    where: str,
    shape_name: str,
    one_axis: Callable[..., Any],
    first: Sequence[Any],
    second: Sequence[Any],
    border_mode: Any,
    subsample: Sequence[Any],
    filter_dilation: Sequence[Any] | None,
) -> list[Any]:
    count = len(first)
    beside = f" (for {shape_name} of {count + 2} entries)"
    per_axis = border_mode if isinstance(border_mode, tuple) else (border_mode,) * count
    if len(per_axis) != count:
        raise DnnValueError(
            f"{where}: border_mode{beside} must have {count} entries, got {shown(border_mode)}"
        )
    per_axis = tuple(_border(where, pad) for pad in per_axis)
    steps = sizes_argument(where, f"subsample{beside}", subsample, (count,), 1)
    dilation: Sequence[Any] = (1,) * count
    if filter_dilation is not None:
        dilation = sizes_argument(where, f"filter_dilation{beside}", filter_dilation, (count,), 1)
    axes = zip(first, second, per_axis, steps, dilation, strict=True)
    return [one_axis(*axis) for axis in axes]


def _unknown(*values: Any) -> bool:
    # `None in values` would compare symbolic values with None.
    return any(value is None for value in values)


def _is_one(value: Any) -> bool:
    return is_int(value) and value == 1


def _is_word(border_mode: Any, word: str) -> bool:
    return isinstance(border_mode, str) and border_mode == word


def _reach(kernel: Any, dilation: Any) -> Any:
    """Return the distance from the first to the last tap."""
    return (kernel - 1) if _is_one(dilation) else (kernel - 1) * dilation


def _border(where: str, border_mode: Any) -> Any:
    """Check the padding of one axis: a mode, a size, a pair of sizes, or None if unknown."""
    if border_mode is None:
        return None
    if isinstance(border_mode, str) and border_mode in ("valid", "half", "full"):
        return border_mode
    pair = border_mode if isinstance(border_mode, tuple) else (border_mode, border_mode)
    try:
        pads = sizes_argument(where, "border_mode", pair, (2,))
    except DnnError as error:
        kind = DnnValueError if isinstance(border_mode, str) else type(error)
        raise kind(
            f"{where}: border_mode must be 'valid', 'half', 'full', a non-negative int or a pair of"
            f" such ints, got {shown(border_mode)}{value_hint('border_mode', border_mode)}"
        ) from None
    return None if _unknown(*pads) else pads


def _padding(border_mode: Any, reach: Any) -> tuple[Any, Any]:
    if isinstance(border_mode, str):
        if border_mode == "half":
            return ((reach + 1) // 2,) * 2
        return (reach if border_mode == "full" else 0,) * 2
    return border_mode[0], border_mode[1]


def _plus(size: Any, pads: tuple[Any, Any]) -> Any:
    for pad in pads:
        if not (is_int(pad) and pad == 0):
            size = size + pad
    return size
