"""Bilinear upsampling of images by transposed convolution with a fixed, pyramid-shaped filter."""

from __future__ import annotations

from math import gcd
from typing import Any

import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.conv.transpose import conv2d_grad_wrt_inputs
from dnnops.nnet.validate import (
    MAX_PARAMETER,
    accumulator_dtype,
    float_tensor,
    is_int,
    is_sequence,
    narrow,
    show_shape,
    shown,
    size_argument,
    static_int,
    switch,
)

__all__ = [
    "bilinear_kernel_1D",
    "bilinear_kernel_2D",
    "bilinear_upsampling",
    "frac_bilinear_upsampling",
]


def bilinear_kernel_1D(ratio: Any, normalize: bool = True) -> TensorVariable:  # noqa: N802
    """Return the filter that upsamples a line with linear interpolation.

    Parameters
    ----------
    ratio : int or symbolic int
        Number of output samples per input sample.
    normalize : bool
        Whether to divide the filter by `ratio`, so that its largest entry is 1.

    Returns
    -------
    TensorVariable, (2 * ratio - 1,)
        The numbers 1, 2, ... `ratio`, ... 2, 1, divided by `ratio` if `normalize` is true, with
        PyTensor's floatX as dtype.
    """
    ratio = _ratio("bilinear_kernel_1D", ratio)
    normalize = switch("bilinear_kernel_1D", "normalize", normalize)
    return _triangle(ratio, normalize, pytensor.config.floatX)


def _triangle(ratio: Any, normalize: bool, dtype: str) -> TensorVariable:
    ramp = pt.arange(1, ratio + 1, dtype=dtype)
    kernel = pt.concatenate([ramp, ramp[-2::-1]])
    return kernel / pt.cast(ratio, dtype) if normalize else kernel


def bilinear_kernel_2D(ratio: Any, normalize: bool = True) -> TensorVariable:  # noqa: N802
    """Return the filter that upsamples an image with bilinear interpolation.

    Parameters
    ----------
    ratio : int, symbolic int, or pair of these
        Number of output pixels per input pixel, along rows and columns.
    normalize : bool
        Whether to scale the filter so that its largest entry is 1.

    Returns
    -------
    TensorVariable, (2 * ratio - 1, 2 * ratio - 1)
        The outer product of two filters returned by `bilinear_kernel_1D`.
    """
    where = "bilinear_kernel_2D"
    pair = ratio if is_sequence(ratio) else (ratio, ratio)
    if len(pair) != 2:
        raise DnnValueError(f"{where}: ratio must be an int or a pair of ints, got {shown(ratio)}")
    rows, columns = (_ratio(where, entry) for entry in pair)
    switch(where, "normalize", normalize)
    return (
        bilinear_kernel_1D(rows, normalize)[:, None] * bilinear_kernel_1D(columns, normalize)[None]
    )


def bilinear_upsampling(
    input: Any,
    ratio: Any = None,
    frac_ratio: Any = None,
    batch_size: int | None = None,
    num_input_channels: int | None = None,
    use_1D_kernel: bool = True,  # noqa: N803
) -> TensorVariable:
    """Upsample images with bilinear interpolation.

    Parameters
    ----------
    input : tensor_like, (batch, channels, rows, columns)
        Images, of dtype float16, float32 or float64.
    ratio : int, or constant int scalar
        Factor by which to multiply the number of rows and columns.
    frac_ratio : pair of ints, or pair of such pairs
        Factor given as a fraction (numerator, denominator) instead of `ratio`, or one fraction for
        the rows and one for the columns.
    batch_size, num_input_channels : int, optional
        First two sizes of `input`, if its static shape doesn't specify them.
    use_1D_kernel : bool
        Whether to upsample rows and columns separately, with small filters. The result is the same.
        Must be False for a fraction.

    Returns
    -------
    TensorVariable
        Images of shape (batch, channels, rows * ratio, columns * ratio), rounded up for a fraction,
        with the dtype of `input`. Pixel ``i`` of `input` is at ``i * ratio + (ratio - 1) // 2``;
        pixels before the first and after the last position repeat the border.

    Raises
    ------
    DnnTypeError
        If the rank or dtype of `input` is invalid, or if a ratio is not an int.
    DnnValueError
        If both ratios are given or neither is, if a ratio is not positive, or if `use_1D_kernel` is
        true for a fraction.
    """
    where = "bilinear_upsampling"
    if (ratio is None) == (frac_ratio is None):
        given = "neither" if ratio is None else "both"
        raise DnnValueError(f"{where}: give either ratio or frac_ratio, got {given}")
    if frac_ratio is not None:
        if switch(where, "use_1D_kernel", use_1D_kernel):
            raise DnnValueError(f"{where}: frac_ratio needs use_1D_kernel=False")
        return frac_bilinear_upsampling(input, frac_ratio)
    times = _positive(where, "ratio", ratio)
    known = (
        size_argument(where, "batch_size", batch_size),
        size_argument(where, "num_input_channels", num_input_channels),
        None,
        None,
    )
    x = float_tensor(where, "input", input, 4)
    x = narrow(where, "input", x, "(batch_size, num_input_channels, rows, columns)", known)
    _check_enlarged(where, "ratio", x, (times, times))
    return _upsampled(x, (times, times), switch(where, "use_1D_kernel", use_1D_kernel))


def frac_bilinear_upsampling(input: Any, frac_ratio: Any) -> TensorVariable:
    """Upsample images by a fraction with bilinear interpolation.

    Parameters
    ----------
    input : tensor_like, (batch, channels, rows, columns)
        Images, of dtype float16, float32 or float64.
    frac_ratio : pair of ints, or pair of such pairs
        See `bilinear_upsampling`.

    Returns
    -------
    TensorVariable
        The images upsampled by the numerators, reduced to every denominator-th row and column.

    Raises
    ------
    DnnTypeError, DnnValueError
        See `bilinear_upsampling`.
    """
    where = "frac_bilinear_upsampling"
    if not isinstance(frac_ratio, tuple) or len(frac_ratio) != 2:
        raise DnnValueError(f"{where}: frac_ratio must be a pair of ints or of pairs of ints")
    pairs = frac_ratio if isinstance(frac_ratio[0], tuple) else (frac_ratio, frac_ratio)
    times, steps = [], []
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise DnnValueError(f"{where}: frac_ratio must be a pair of ints or of pairs of ints")
        numerator, denominator = (_positive(where, "frac_ratio", part) for part in pair)
        common = gcd(numerator, denominator)
        times.append(numerator // common)
        steps.append(denominator // common)
    x = float_tensor(where, "input", input, 4)
    _check_enlarged(where, "frac_ratio", x, (times[0], times[1]))
    return _upsampled(x, (times[0], times[1]), False)[:, :, :: steps[0], :: steps[1]]


def _ratio(where: str, value: Any) -> Any:
    ratio = size_argument(where, "ratio", value, 1)
    if ratio is None or (is_int(ratio) and ratio > MAX_PARAMETER):
        raise DnnValueError(
            f"{where}: ratio must be between 1 and {MAX_PARAMETER}, got {shown(value)}"
        )
    return ratio


def _positive(where: str, name: str, value: Any) -> int:
    number = None
    if is_int(value):
        number = int(value)
    elif isinstance(value, Variable) and getattr(value.type, "ndim", None) == 0:
        number = static_int(value) if value.type.dtype in pt.type.integer_dtypes else None
    if number is None:
        raise DnnTypeError(f"{where}: {name} must consist of ints, got {shown(value)}")
    if not 1 <= number <= MAX_PARAMETER:
        raise DnnValueError(
            f"{where}: {name} must be between 1 and {MAX_PARAMETER}, got {shown(value)}"
        )
    return number


def _check_enlarged(where: str, name: str, x: TensorVariable, ratio: tuple[int, int]) -> None:
    """Raise DnnValueError if the upsampled images are known to be too large."""
    for size, times in zip(x.type.shape[2:], ratio, strict=True):
        if (1 if size is None else size) * times * 2 > MAX_PARAMETER:
            raise DnnValueError(
                f"{where}: {name} {ratio} is too large for input of shape"
                f" {show_shape(x.type.shape)}: output sizes must be at most {MAX_PARAMETER // 2}"
            )


def _upsampled(x: TensorVariable, ratio: tuple[int, int], one_by_one: bool) -> TensorVariable:
    batch, channels, *sizes = (
        x.shape[i] if size is None else size for i, size in enumerate(x.type.shape)
    )
    # Treat each channel as a separate image, and repeat its first and last rows and columns.
    images = x.reshape((-1, 1, *sizes))
    for axis in (2, 3):
        lead = (slice(None),) * axis
        first, last = images[(*lead, slice(None, 1))], images[(*lead, slice(-1, None))]
        images = pt.concatenate([first, images, last], axis=axis)
    rows, columns = sizes[0] * ratio[0], sizes[1] * ratio[1]
    pads = [2 * r - (r - 1) // 2 - 1 for r in ratio]
    if one_by_one:
        images = _stretched(images, (ratio[0], 1), (pads[0], 0), (rows, sizes[1] + 2))
        images = _stretched(images, (1, ratio[1]), (0, pads[1]), (rows, columns))
    else:
        images = _stretched(images, ratio, (pads[0], pads[1]), (rows, columns))
    return images.reshape((batch, channels, rows, columns))


def _stretched(
    images: TensorVariable, ratio: tuple[int, int], pads: tuple[int, int], sizes: tuple[Any, Any]
) -> TensorVariable:
    """Upsample one-channel images by `ratio` and crop `pads` pixels at each end."""
    dtype = images.type.dtype
    rows, columns = (_triangle(r, True, accumulator_dtype(dtype).name) for r in ratio)
    kernel = pt.cast(rows[:, None] * columns, dtype)[None, None]
    return conv2d_grad_wrt_inputs(
        images,
        kernel,
        (None, 1, *sizes),
        filter_shape=(1, 1, 2 * ratio[0] - 1, 2 * ratio[1] - 1),
        border_mode=pads,
        subsample=ratio,
    )
