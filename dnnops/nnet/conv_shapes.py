"""Shapes of convolutions and of their gradients, by the names that they have in Theano.

Sizes may be ints, symbolic ints, or None where nothing is known; None gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.nnet._validate import is_int, static_int

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
        (batch, input channels, spatial...).
    kernel_shape : sequence of int, symbolic int or None
        (output channels, input channels, spatial...).
    border_mode : {'valid', 'half', 'full'}, int, or tuple
        As `conv2d` takes it; ints may be symbolic.
    subsample, filter_dilation : sequence of int or symbolic int
        For each spatial axis; `filter_dilation` is 1 if not given.

    Returns
    -------
    tuple
        (batch, output channels, spatial...).

    Raises
    ------
    DnnValueError
        If padding is negative, or a sequence has another length.
    """
    where = "get_conv_output_shape"
    spatial = _spatial(
        where,
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
        The sizes of image and filters on the axis.
    border_mode : {'valid', 'half', 'full'}, int, or pair of ints
        The padding: on both sides, or before and after.
    subsample, dilation : int, symbolic int or None

    Returns
    -------
    int, symbolic int or None

    Raises
    ------
    DnnValueError
        If `border_mode` is another word, or padding is negative.
    """
    if _unknown(image_shape, kernel_shape, border_mode, subsample, dilation):
        return None
    reach = _reach(kernel_shape, dilation)
    pads = _padding("get_conv_shape_1axis", border_mode, reach)
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
    """Return the shape of a convolution's filters, as far as image and output tell it.

    Parameters
    ----------
    image_shape, top_shape : sequence of int, symbolic int or None
        (batch, channels, spatial...) of image and output.
    border_mode, subsample, filter_dilation
        As for `get_conv_output_shape`.
    num_groups : int
    unshared : bool
        Must be false.

    Returns
    -------
    tuple
        Theano's: (output channels // num_groups, input channels, spatial...), None on axes with a
        stride or with 'half' padding, where several sizes are possible.

    Raises
    ------
    DnnValueError
        If padding is negative, or a sequence has another length.
    DnnNotSupportedError
        If `unshared` is true.
    """
    where = "get_conv_gradweights_shape"
    if unshared:
        raise DnnNotSupportedError(f"{where}: unshared=True is not supported")
    spatial = _spatial(
        where,
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
    """Return the size of the filters on one spatial axis: None if several are possible.

    Arguments and errors as for `get_conv_shape_1axis`; `top_shape` is the output's size.
    """
    if _unknown(image_shape, top_shape, border_mode, subsample, dilation):
        return None
    if not _is_one(subsample) or _is_word(border_mode, "half"):
        return None
    if _is_word(border_mode, "full"):
        reach = top_shape - image_shape
    else:
        padding = _padding("get_conv_gradweights_shape_1axis", border_mode, 0)
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
    """Return the shape of a convolution's image, as far as filters and output tell it.

    Parameters
    ----------
    kernel_shape : sequence of int, symbolic int or None
        (output channels, input channels // num_groups, spatial...).
    top_shape : sequence of int, symbolic int or None
        (batch, output channels, spatial...) of the output.
    border_mode, subsample, filter_dilation
        As for `get_conv_output_shape`.
    num_groups : int

    Returns
    -------
    tuple
        (batch, input channels, spatial...), None on axes with a stride, where several sizes are
        possible.

    Raises
    ------
    DnnValueError
        If padding is negative, or a sequence has another length.
    """
    spatial = _spatial(
        "get_conv_gradinputs_shape",
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
    """Return the size of the image on one spatial axis: None if several are possible.

    Arguments and errors as for `get_conv_shape_1axis`; `top_shape` is the output's size.
    """
    if _unknown(kernel_shape, top_shape, border_mode, subsample, dilation):
        return None
    if not _is_one(subsample):
        return None
    reach = _reach(kernel_shape, dilation)
    begin, end = _padding("get_conv_gradinputs_shape_1axis", border_mode, reach)
    return _plus(top_shape + reach, (-begin, -end))


def check_conv_gradinputs_shape(
    image_shape: Sequence[Any],
    kernel_shape: Sequence[Any],
    output_shape: Sequence[Any],
    border_mode: Any,
    subsample: Sequence[Any],
    filter_dilation: Sequence[Any] | None = None,
) -> bool:
    """Tell whether a convolution can have an output of a shape.

    Parameters
    ----------
    image_shape, kernel_shape, output_shape : sequence of int, symbolic int or None
    border_mode, subsample, filter_dilation
        As for `get_conv_output_shape`.

    Returns
    -------
    bool
        False if it cannot: True also where sizes that aren't known would have to tell.
    """
    ranks = {len(image_shape), len(kernel_shape), len(output_shape), len(subsample) + 2}
    if filter_dilation is not None:
        ranks.add(len(filter_dilation) + 2)
    if len(ranks) != 1:
        return False
    computed = get_conv_output_shape(
        image_shape, kernel_shape, border_mode, subsample, filter_dilation
    )
    sizes = zip(map(static_int, output_shape), map(static_int, computed), strict=True)
    return all(given is None or size is None or given == size for given, size in sizes)


def _spatial(
    where: str,
    one_axis: Callable[..., Any],
    first: Sequence[Any],
    second: Sequence[Any],
    border_mode: Any,
    subsample: Sequence[Any],
    filter_dilation: Sequence[Any] | None,
) -> list[Any]:
    count = len(subsample)
    per_axis = border_mode if isinstance(border_mode, tuple) else (border_mode,) * count
    dilation = (1,) * count if filter_dilation is None else filter_dilation
    if not len(first) == len(second) == len(per_axis) == len(dilation) == count:
        raise DnnValueError(
            f"{where}: shapes of {len(first) + 2} and {len(second) + 2} entries, and"
            f" {len(per_axis)} paddings, {count} strides and {len(dilation)} dilations don't fit"
            " together"
        )
    axes = zip(first, second, per_axis, subsample, dilation, strict=True)
    return [one_axis(*axis) for axis in axes]


def _unknown(*values: Any) -> bool:
    # `None in values` would compare symbolic values, which is no question.
    return any(value is None for value in values)


def _is_one(value: Any) -> bool:
    return is_int(value) and value == 1


def _is_word(border_mode: Any, word: str) -> bool:
    return isinstance(border_mode, str) and border_mode == word


def _reach(kernel: Any, dilation: Any) -> Any:
    """How far the last tap is from the first one."""
    return (kernel - 1) if _is_one(dilation) else (kernel - 1) * dilation


def _padding(where: str, border_mode: Any, reach: Any) -> tuple[Any, Any]:
    if isinstance(border_mode, str):
        if border_mode == "half":
            return ((reach + 1) // 2,) * 2
        if border_mode in ("full", "valid"):
            return (reach if border_mode == "full" else 0,) * 2
        raise DnnValueError(
            f"{where}: border_mode must be 'valid', 'half', 'full', an int or a pair of ints, got"
            f" {border_mode!r}"
        )
    pads = border_mode if isinstance(border_mode, tuple) else (border_mode, border_mode)
    if len(pads) != 2 or any(is_int(pad) and pad < 0 for pad in pads):
        raise DnnValueError(
            f"{where}: border_mode must be at least 0, or a pair of such, got {border_mode!r}"
        )
    return pads[0], pads[1]


def _plus(size: Any, pads: tuple[Any, Any]) -> Any:
    for pad in pads:
        if not (is_int(pad) and pad == 0):
            size = size + pad
    return size
