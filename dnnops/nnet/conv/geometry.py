"""Sizes and padding of convolutions, for ints and symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.hints import value_hint
from dnnops.nnet.validate import (
    MAX_PARAMETER,
    int_tuple,
    is_int,
    shown,
    sizes_argument,
    switch,
)

#: Largest extent of a padded image or of a dilated filter, since the libraries use 32-bit ints.
MAX_EXTENT = 2**30 - 1

#: A canonical border mode: a name, or a pair (begin, end) for each spatial axis.
BorderMode = Literal["half", "full"] | tuple[tuple[int, int], ...]


def canonical_border_mode(border_mode: Any, ndim: int, where: str = "convolution") -> BorderMode:
    """Return the canonical form of a border mode.

    Parameters
    ----------
    border_mode : {'valid', 'half', 'full'}, int, or tuple
        Border mode. A tuple has one entry for each spatial axis, either an int (the padding on
        both sides) or a pair of ints (the padding before and after).
    ndim : int
        Number of spatial axes.
    where : str
        Name of the function in error messages.

    Returns
    -------
    'half', 'full', or tuple of (int, int)
        Canonical border mode. 'valid' becomes a padding of zero.

    Raises
    ------
    DnnTypeError
        If `border_mode` or one of its entries has an invalid type.
    DnnValueError
        If the name is unknown, the number of entries is wrong, or the padding is negative.
    """
    if isinstance(border_mode, str):
        if border_mode == "valid":
            return ((0, 0),) * ndim
        if border_mode == "half":
            return "half"
        if border_mode == "full":
            return "full"
    elif is_int(border_mode):
        border_mode = (border_mode,) * ndim
    elif not isinstance(border_mode, (tuple, list)):
        raise DnnTypeError(
            f"{where}: border_mode must be 'valid', 'half', 'full', an int, or a tuple of ints "
            f"or of pairs of ints, got {shown(border_mode)}"
        )
    if isinstance(border_mode, str) or len(border_mode) != ndim:
        raise DnnValueError(
            f"{where}: border_mode must be 'valid', 'half', 'full', an int, or a tuple of "
            f"{ndim} ints or pairs of ints, got {shown(border_mode)}"
            f"{value_hint('border_mode', border_mode)}"
        )
    pairs = tuple(int_tuple(where, "padding (border_mode)", e, 2, 0) for e in border_mode)
    return tuple((begin, end) for begin, end in pairs)


def resolve_padding(
    border_mode: Any, kernel_spatial: Sequence[Any], dilation: int | Sequence[int] | None = None
) -> tuple[tuple[Any, Any], ...]:
    """Return the padding before and after each spatial axis.

    Parameters
    ----------
    border_mode : {'valid', 'half', 'full'}, int, or tuple
        Border mode, as for `conv2d`.
    kernel_spatial : sequence of int, symbolic int or None
        Filter size on each spatial axis.
    dilation : int or sequence of int, optional
        Filter dilation on each spatial axis; 1 by default.

    Returns
    -------
    tuple of pairs
        Padding (before, after) of each spatial axis. The entries are ints if they don't depend on
        a symbolic size, and None if they depend on an unknown size.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument has an invalid type or the wrong number of entries, or is out of bounds.
    """
    where = "resolve_padding"
    kernel = sizes_argument(where, "kernel_spatial", kernel_spatial, (1, 2, 3))
    ndim = len(kernel)
    steps = int_tuple(where, "dilation", 1 if dilation is None else dilation, ndim, 1)
    return padding(canonical_border_mode(border_mode, ndim, where), kernel, steps)


def padding(
    mode: BorderMode, kernel_spatial: Sequence[Any], dilation: Sequence[int]
) -> tuple[tuple[Any, Any], ...]:
    """Compute `resolve_padding` for canonical arguments."""
    if not isinstance(mode, str):
        return mode
    pads: list[tuple[Any, Any]] = []
    for size, step in zip(kernel_spatial, dilation, strict=True):
        pad = None
        if size is not None:
            reach = (size - 1) * step
            pad = reach if mode == "full" else (reach + 1) // 2
        pads.append((pad, pad))
    return tuple(pads)


def conv_output_shape(
    img_shape: Sequence[Any],
    kern_shape: Sequence[Any],
    border_mode: Any = "valid",
    subsample: int | Sequence[int] | None = None,
    filter_dilation: int | Sequence[int] | None = None,
) -> tuple[Any, ...]:
    """Return the shape of a convolution's output.

    Parameters
    ----------
    img_shape : sequence of int, symbolic int or None
        Shape of the images, (batch, in channels, spatial...).
    kern_shape : sequence of int, symbolic int or None
        Shape of the filters, (out channels, in channels per group, spatial...).
    border_mode : {'valid', 'half', 'full'}, int, or tuple
        Border mode, as for `conv2d`.
    subsample, filter_dilation : int or sequence of int, optional
        Stride and dilation of the filters on each spatial axis; 1 by default.

    Returns
    -------
    tuple
        Shape of the output, (batch, out channels, spatial...). A size is an int if all sizes that
        it depends on are ints, and None if any of them is None.

    Raises
    ------
    DnnTypeError
        If an argument has an invalid type.
    DnnValueError
        If an argument has the wrong number of entries or is out of bounds, or if the filters are
        larger than the padded image.
    """
    where = "conv_output_shape"
    img = sizes_argument(where, "img_shape", img_shape, (3, 4, 5))
    ndim = len(img) - 2
    beside = f"kern_shape (for an img_shape of {ndim + 2} entries)"
    kern = sizes_argument(where, beside, kern_shape, (ndim + 2,))
    mode = canonical_border_mode(border_mode, ndim, where)
    stride = int_tuple(where, "subsample", 1 if subsample is None else subsample, ndim, 1)
    dilation = int_tuple(
        where, "filter_dilation", 1 if filter_dilation is None else filter_dilation, ndim, 1
    )
    out = output_shape(img, kern, mode, stride, dilation)
    if any(isinstance(size, int) and size < 1 for size in out[2:]) or 0 in kern[2:]:
        raise DnnValueError(
            f"{where}: on each spatial axis, filters must have at least one tap and fit into the"
            f" padded image; got img_shape {img_shape}, kern_shape {kern_shape}, border_mode"
            f" {border_mode!r}, filter_dilation {dilation}"
        )
    return out


def output_shape(
    img_shape: Sequence[Any],
    kern_shape: Sequence[Any],
    mode: BorderMode,
    subsample: Sequence[int],
    filter_dilation: Sequence[int],
) -> tuple[Any, ...]:
    """Compute `conv_output_shape` for canonical arguments, without checks."""
    pads = padding(mode, kern_shape[2:], filter_dilation)
    spatial: list[Any] = []
    for size, kernel, (begin, end), stride, dilation in zip(
        img_shape[2:], kern_shape[2:], pads, subsample, filter_dilation, strict=True
    ):
        if size is None or kernel is None:
            spatial.append(None)
        else:
            room = size + (begin + end) - (kernel - 1) * dilation - 1
            spatial.append((room if stride == 1 else room // stride) + 1)
    return (img_shape[0], kern_shape[0], *spatial)


def canonical_conv_params(
    where: str,
    ndim: Any,
    border_mode: Any = "valid",
    subsample: Any = 1,
    filter_flip: Any = True,
    filter_dilation: Any = 1,
    num_groups: Any = 1,
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Check the parameters of a convolution and return them in hashable form.

    `names` maps parameters to the names that error messages use for them, if these differ, such as
    ``{"subsample": "input_dilation"}``.

    Raises
    ------
    DnnTypeError, DnnValueError
        If a parameter has an invalid type or is out of bounds.
    """
    if not is_int(ndim) or ndim not in (1, 2, 3):
        raise DnnValueError(f"{where}: ndim, the number of spatial axes, must be 1, 2 or 3")
    known_as = names or {}
    if not (is_int(num_groups) and 1 <= num_groups <= MAX_PARAMETER):
        name = known_as.get("num_groups", "num_groups")
        raise DnnValueError(f"{where}: {name} must be a positive int, got {shown(num_groups)}")

    def axes(name: str, value: Any) -> tuple[int, ...]:
        return int_tuple(where, known_as.get(name, name), value, ndim, 1)

    return {
        "ndim": int(ndim),
        "border_mode": canonical_border_mode(border_mode, ndim, where),
        "subsample": axes("subsample", subsample),
        "filter_flip": switch(where, "filter_flip", filter_flip),
        "filter_dilation": axes("filter_dilation", filter_dilation),
        "num_groups": int(num_groups),
    }
