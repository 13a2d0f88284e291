"""Theano's functions for convolution and its gradients, on cuDNN."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnError, DnnValueError
from dnnops.gpu.algorithms import PRECISIONS, parse_algorithm
from dnnops.gpu.base import device_operands
from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.gpu.descriptors import CONV_MODES
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.nnet.conv.base import ConvWords
from dnnops.nnet.conv.geometry import canonical_conv_params
from dnnops.nnet.validate import (
    int_vector,
    one_of,
    shown,
    sizes_argument,
    spatial_shape,
    static_vector,
)

__all__ = [
    "CONV_MODES",
    "DIRECTION_HINTS",
    "dnn_conv",
    "dnn_conv3d",
    "dnn_gradinput",
    "dnn_gradinput3d",
    "dnn_gradweight",
    "dnn_gradweight3d",
    "swapped",
]


DIRECTION_HINTS = (None, "forward", "forward!", "bprop inputs", "bprop weights")


def _conv_params(
    where: str,
    ndim: int,
    border_mode: Any,
    subsample: Any,
    dilation: Any,
    conv_mode: str,
    precision: str | None,
    algo: Any,
    num_groups: int,
) -> dict[str, Any]:
    one_of(where, "conv_mode", conv_mode, CONV_MODES)
    if precision is not None:
        one_of(where, "precision", precision, PRECISIONS)
    common = canonical_conv_params(
        where,
        ndim,
        border_mode,
        subsample,
        conv_mode == "conv",
        dilation,
        num_groups,
        names={"filter_dilation": "dilation"},
    )
    return {**common, "precision": precision, "algo": algo}


def _rank_params(where: str, operand: Any, **params: Any) -> dict[str, Any]:
    """Return the parameters for three spatial axes if an operand has rank 5, otherwise for two.

    The two-dimensional defaults of `subsample` and `dilation` are extended to three axes.
    """
    ndim = 3 if getattr(operand, "ndim", 4) == 5 else 2
    for name in ("subsample", "dilation"):
        if ndim == 3 and params[name] == (1, 1):
            params[name] = (1, 1, 1)
    return _conv_params(where, ndim, **params)


def _words(where: str, image: str, filters: str, top: str = "") -> ConvWords:
    return ConvWords(where, image, filters, top, filter_dilation="dilation")


def swapped(x: Any) -> Any:
    """Exchange the first two axes of a device variable."""
    exchanged = pt.as_tensor_variable(x).dimshuffle(1, 0, *range(2, x.type.ndim))
    return cast(as_gpuarray_variable(exchanged, x.type.device), x.type.dtype)


def _sizes(x: Any) -> list[Any]:
    vector = spatial_shape(x)
    return [vector[i] for i in range(x.type.ndim - 2)]


def _conv(
    where: str,
    img: Any,
    kerns: Any,
    direction_hint: str | None,
    workmem: Any,
    algo: Any,
    params: dict[str, Any],
) -> Any:
    ndim = params["ndim"]
    if direction_hint is not None:
        one_of(where, "direction_hint", direction_hint, DIRECTION_HINTS[1:])
    if workmem is not None:
        if algo is not None:
            raise DnnValueError(f"{where}: workmem is an old name of algo; give only one of them")
        params = {**params, "algo": workmem}
        try:
            parse_algorithm(workmem, "forward")
        except DnnError as error:
            raise type(error)(f"{where}: workmem, an old name of algo: {error}") from None
    img, kerns = device_operands(where, ndim + 2, widen=True, img=img, kerns=kerns)
    forward = GpuDnnConv(**params)
    forward.check_shapes(img.type.shape, kerns.type.shape, words=_words(where, "img", "kerns"))
    plain = forward.num_groups == 1 and forward.subsample == (1,) * ndim and params["algo"] is None
    other = {**params, "border_mode": "valid", "algo": None}
    if (
        plain
        and direction_hint == "bprop weights"
        and forward.border_mode == ((0, 0),) * ndim
        and forward.filter_dilation == (1,) * ndim
    ):
        # The gradient with respect to the filters is a convolution of the image with a large
        # filter, with the roles of batch and channels exchanged.
        sizes = [n - k + 1 for n, k in zip(_sizes(img), _sizes(kerns), strict=True)]
        filters = swapped(kerns)
        if forward.filter_flip:
            filters = _flipped(filters)
        grad_weights = GpuDnnConvGradW(**{**other, "filter_flip": False})
        return swapped(grad_weights(swapped(img), filters, pt.stack(sizes)))
    if plain and forward.border_mode == "full" and direction_hint != "forward!":
        # The gradient of a 'valid' convolution with respect to its input is a 'full' convolution
        # with the filters' channels exchanged and the opposite flip.
        sizes = [
            n + (k - 1) * d
            for n, k, d in zip(_sizes(img), _sizes(kerns), forward.filter_dilation, strict=True)
        ]
        grad_inputs = GpuDnnConvGradI(**{**other, "filter_flip": not forward.filter_flip})
        return grad_inputs(swapped(kerns), img, pt.stack(sizes))
    return forward(img, kerns)


def _flipped(x: Any) -> Any:
    """Reverse the spatial axes of a device variable."""
    reverse = (slice(None), slice(None), *(slice(None, None, -1),) * (x.type.ndim - 2))
    return cast(
        as_gpuarray_variable(pt.as_tensor_variable(x)[reverse], x.type.device), x.type.dtype
    )


def dnn_conv(
    img: Any,
    kerns: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    dilation: Any = (1, 1),
    conv_mode: str = "conv",
    direction_hint: str | None = None,
    workmem: Any = None,
    algo: Any = None,
    precision: str | None = None,
    num_groups: int = 1,
) -> Any:
    """Convolve a batch of images with filters on cuDNN.

    Parameters
    ----------
    img : (batch, input channels, rows, columns)
        Images in float16, bfloat16, float32 or float64. If `img` has five dimensions, the images
        are volumes, as for `dnn_conv3d`.
    kerns : (output channels, input channels // num_groups, rows, columns)
        Filters. If their dtype differs from that of `img`, the result has the wider dtype.
    border_mode : {'valid', 'half', 'full'}, int, or tuple of 2 ints or pairs of ints
        Zero padding; see `dnnops.nnet.conv2d`.
    subsample : int or tuple of 2 ints
        Stride along each spatial axis.
    dilation : int or tuple of 2 ints
        Distance between neighboring filter taps.
    conv_mode : {'conv', 'cross'}
        Convolution, which flips the filters, or cross-correlation, which doesn't.
    direction_hint : None, 'forward', 'forward!', 'bprop inputs' or 'bprop weights'
        Whether to compute a convolution without stride and groups with a gradient Op. With 'bprop
        weights', a 'valid' convolution is computed as a gradient with respect to filters. A 'full'
        convolution is computed as a gradient with respect to the input, unless 'forward!' is
        given. If `algo` is given, which applies to the forward Op, no gradient Op is used.
    workmem : str, optional
        Old name of `algo`.
    algo : str or int, optional
        How to select the plan. Default: the flag ``dnn.conv.algo_fwd``.
    precision : {'as_input_f32', 'as_input', 'float16', 'float32', 'float64'}, optional
        Type to compute in. Default: the flag ``dnn.conv.precision``. cuDNN 9 computes in float32 or
        float16 for float16 arrays, in float64 for float64 arrays, and in float32 for other dtypes.
    num_groups : int
        Number of groups that channels and filters are split into.

    Returns
    -------
    GpuArrayVariable, (batch, output channels, rows, columns)

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter has the wrong type or value, or if operands don't match.
    """
    params = _rank_params(
        "dnn_conv",
        img,
        border_mode=border_mode,
        subsample=subsample,
        dilation=dilation,
        conv_mode=conv_mode,
        precision=precision,
        algo=algo,
        num_groups=num_groups,
    )
    return _conv("dnn_conv", img, kerns, direction_hint, workmem, algo, params)


def dnn_conv3d(
    img: Any,
    kerns: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    dilation: Any = (1, 1, 1),
    conv_mode: str = "conv",
    direction_hint: str | None = None,
    algo: Any = None,
    precision: str | None = None,
    num_groups: int = 1,
) -> Any:
    """Convolve a batch of volumes with filters on cuDNN.

    This is `dnn_conv` for three spatial axes.
    """
    params = _conv_params(
        "dnn_conv3d", 3, border_mode, subsample, dilation, conv_mode, precision, algo, num_groups
    )
    return _conv("dnn_conv3d", img, kerns, direction_hint, None, algo, params)


def _spatial_sizes(where: str, name: str, shape: Any, ndim: int) -> Any:
    """Return the last `ndim` entries of a shape (a vector or a sequence) as a vector."""
    if isinstance(shape, TensorVariable):
        return int_vector(where, name, shape, ndim + 2)[2:]
    sizes: Any = sizes_argument(where, name, shape, (ndim + 2,))[2:]
    if any(size is None for size in sizes):
        raise DnnValueError(f"{where}: {name} must give the spatial sizes, got {shown(shape)}")
    return pt.as_tensor_variable(list(sizes), dtype="int64")


def _grad_filters(where: str, params: dict[str, Any], img: Any, topgrad: Any, shape: Any) -> Any:
    op = GpuDnnConvGradW(**params)
    sizes = _spatial_sizes(where, "kerns_shp", shape, op.ndim)
    img, topgrad = device_operands(where, op.ndim + 2, widen=True, img=img, topgrad=topgrad)
    top = topgrad.type.shape
    kern = (top[1], None, *static_vector(sizes, op.ndim))
    op.check_shapes(img.type.shape, kern, top, _words(where, "img", "kerns_shp", "topgrad"))
    return op(img, topgrad, sizes)


def _grad_image(where: str, params: dict[str, Any], kerns: Any, topgrad: Any, shape: Any) -> Any:
    op = GpuDnnConvGradI(**params)
    sizes = _spatial_sizes(where, "img_shp", shape, op.ndim)
    kerns, topgrad = device_operands(where, op.ndim + 2, widen=True, kerns=kerns, topgrad=topgrad)
    top = topgrad.type.shape
    img = (top[0], None, *static_vector(sizes, op.ndim))
    op.check_shapes(img, kerns.type.shape, top, _words(where, "img_shp", "kerns", "topgrad"))
    return op(kerns, topgrad, sizes)


def dnn_gradweight(
    img: Any,
    topgrad: Any,
    kerns_shp: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    dilation: Any = (1, 1),
    conv_mode: str = "conv",
    precision: str | None = None,
    algo: Any = None,
    num_groups: int = 1,
) -> Any:
    """Compute the gradient of `dnn_conv` with respect to its filters.

    Parameters
    ----------
    img : (batch, input channels, rows, columns)
        Images.
    topgrad : (batch, output channels, rows, columns)
        Gradient with respect to the output of the convolution.
    kerns_shp : int vector or sequence of 4 entries
        Shape of the filters.
    border_mode, subsample, dilation, conv_mode, precision, algo, num_groups
        See `dnn_conv`. The default of `algo` is the flag ``dnn.conv.algo_bwd_filter``.

    Returns
    -------
    GpuArrayVariable
        Gradient of shape `kerns_shp`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter has the wrong type or value, or if operands don't match.
    """
    params = _rank_params(
        "dnn_gradweight",
        img,
        border_mode=border_mode,
        subsample=subsample,
        dilation=dilation,
        conv_mode=conv_mode,
        precision=precision,
        algo=algo,
        num_groups=num_groups,
    )
    return _grad_filters("dnn_gradweight", params, img, topgrad, kerns_shp)


def dnn_gradweight3d(
    img: Any,
    topgrad: Any,
    kerns_shp: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    dilation: Any = (1, 1, 1),
    conv_mode: str = "conv",
    precision: str | None = None,
    algo: Any = None,
    num_groups: int = 1,
) -> Any:
    """Compute the gradient of `dnn_conv3d` with respect to its filters; see `dnn_gradweight`."""
    params = _conv_params(
        "dnn_gradweight3d", 3, border_mode, subsample, dilation, conv_mode, precision, algo,
        num_groups,
    )  # fmt: skip
    return _grad_filters("dnn_gradweight3d", params, img, topgrad, kerns_shp)


def dnn_gradinput(
    kerns: Any,
    topgrad: Any,
    img_shp: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    dilation: Any = (1, 1),
    conv_mode: str = "conv",
    precision: str | None = None,
    algo: Any = None,
    num_groups: int = 1,
) -> Any:
    """Compute the gradient of `dnn_conv` with respect to its images.

    Parameters
    ----------
    kerns : (output channels, input channels // num_groups, rows, columns)
        Filters.
    topgrad : (batch, output channels, rows, columns)
        Gradient with respect to the output of the convolution.
    img_shp : int vector or sequence of 4 entries
        Shape of the images.
    border_mode, subsample, dilation, conv_mode, precision, algo, num_groups
        See `dnn_conv`. The default of `algo` is the flag ``dnn.conv.algo_bwd_data``.

    Returns
    -------
    GpuArrayVariable
        Gradient of shape `img_shp`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter has the wrong type or value, or if operands don't match.
    """
    params = _rank_params(
        "dnn_gradinput",
        kerns,
        border_mode=border_mode,
        subsample=subsample,
        dilation=dilation,
        conv_mode=conv_mode,
        precision=precision,
        algo=algo,
        num_groups=num_groups,
    )
    return _grad_image("dnn_gradinput", params, kerns, topgrad, img_shp)


def dnn_gradinput3d(
    kerns: Any,
    topgrad: Any,
    img_shp: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    dilation: Any = (1, 1, 1),
    conv_mode: str = "conv",
    precision: str | None = None,
    algo: Any = None,
    num_groups: int = 1,
) -> Any:
    """Compute the gradient of `dnn_conv3d` with respect to its volumes; see `dnn_gradinput`."""
    params = _conv_params(
        "dnn_gradinput3d", 3, border_mode, subsample, dilation, conv_mode, precision, algo,
        num_groups,
    )  # fmt: skip
    return _grad_image("dnn_gradinput3d", params, kerns, topgrad, img_shp)
