"""cuDNN under the names that it had in ``theano.gpuarray.dnn``.

The functions here put Ops on cuDNN into a graph by hand. A graph made of `dnnops.nnet` gets the
same Ops by rewriting, and runs on a CPU too: prefer that where it can say what is wanted.

Operands may be device variables, host variables or arrays; those of the host are transferred.
Results are device variables.
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from dnnops.config import flag_value
from dnnops.cudnn.base import cudnn_usable, cudnn_version, device_operands
from dnnops.cudnn.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.cudnn.ctc import GpuDnnCTC
from dnnops.cudnn.divisive_normalization import (
    GpuDnnDivisiveNormalization,
    GpuDnnDivisiveNormalizationGrad,
)
from dnnops.cudnn.lrn import GpuDnnLRN, GpuDnnLRNGrad
from dnnops.cudnn.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.cudnn.softmax import GpuDnnSoftmax, GpuDnnSoftmaxGrad
from dnnops.cudnn.spatial_transformer import (
    GpuDnnTransformerGradI,
    GpuDnnTransformerGradT,
    GpuDnnTransformerGrid,
    GpuDnnTransformerSampler,
)
from dnnops.errors import DnnError, DnnUnavailableError, DnnValueError
from dnnops.gpuarray.device import check_device, device_from_target
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.nnet._validate import is_int, require_same_dtype, spatial_shape
from dnnops.nnet.spatial_transformer import scaled_sizes
from dnnops.runtime.build import CUDNN

__all__ = [
    "GpuDnnCTC",
    "GpuDnnConv",
    "GpuDnnConvGradI",
    "GpuDnnConvGradW",
    "GpuDnnDivisiveNormalization",
    "GpuDnnDivisiveNormalizationGrad",
    "GpuDnnLRN",
    "GpuDnnLRNGrad",
    "GpuDnnPool",
    "GpuDnnPoolGrad",
    "GpuDnnSoftmax",
    "GpuDnnSoftmaxGrad",
    "GpuDnnTransformerGradI",
    "GpuDnnTransformerGradT",
    "GpuDnnTransformerGrid",
    "GpuDnnTransformerSampler",
    "dnn_available",
    "dnn_conv",
    "dnn_conv3d",
    "dnn_ctc",
    "dnn_divisive_normalization",
    "dnn_gradinput",
    "dnn_gradinput3d",
    "dnn_gradweight",
    "dnn_gradweight3d",
    "dnn_lrn",
    "dnn_pool",
    "dnn_present",
    "dnn_spatialtf",
    "version",
]

CONV_MODES = ("conv", "cross")
DIRECTION_HINTS = (None, "forward", "forward!", "bprop inputs", "bprop weights")


# -- availability --------------------------------------------------------------------------


def _device(context_name: Any) -> int:
    if context_name is None:
        return device_from_target(flag_value("device")) or 0
    if isinstance(context_name, str):
        device = device_from_target(context_name)
        if device is None:
            raise DnnValueError(f"context_name {context_name!r}: expected cuda, cuda0, cuda1, ...")
        return device
    return check_device(context_name)


def dnn_available(context_name: Any = None) -> bool:
    """Tell whether cuDNN is used on a device; ``dnn_available.msg`` then says why not.

    Parameters
    ----------
    context_name : None, str or int
        The device: ``"cuda0"`` or its number; None for that of the flag ``device``.

    Returns
    -------
    bool
        As the flag ``dnn.enabled`` and a trial have it. The trial's result is remembered.

    Raises
    ------
    DnnUnavailableError
        If the flag ``dnn.enabled`` is True and cuDNN can't be used.
    """
    usable, dnn_available.msg = cudnn_usable(_device(context_name))  # type: ignore[attr-defined]
    return usable


dnn_available.msg = ""  # type: ignore[attr-defined]


def dnn_present() -> bool:
    """Tell whether cuDNN's headers and library are installed and fit together, GPU or not."""
    try:
        CUDNN.library  # noqa: B018
    except DnnUnavailableError as error:
        dnn_present.msg = str(error)  # type: ignore[attr-defined]
        return False
    dnn_present.msg = ""  # type: ignore[attr-defined]
    return True


dnn_present.msg = ""  # type: ignore[attr-defined]


def version(raises: bool = True) -> int:
    """The version of the cuDNN library as cuDNN writes it: 92800 is 9.28.0.

    Parameters
    ----------
    raises : bool
        Whether to raise if there is none; else it is -1.

    Raises
    ------
    DnnUnavailableError
        If cuDNN isn't installed or can't be loaded.
    """
    try:
        return cudnn_version()
    except DnnError:
        if raises:
            raise
        return -1


# -- convolution ---------------------------------------------------------------------------


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
    if conv_mode not in CONV_MODES:
        raise DnnValueError(
            f"{where}: conv_mode must be one of {', '.join(CONV_MODES)}, got {conv_mode!r}"
        )
    return {
        "ndim": ndim,
        "border_mode": border_mode,
        "subsample": subsample,
        "filter_dilation": dilation,
        "filter_flip": conv_mode == "conv",
        "precision": precision,
        "algo": algo,
        "num_groups": num_groups,
    }


def _swapped(x: Any) -> Any:
    """Exchange the first two axes of a device variable."""
    swapped = pt.as_tensor_variable(x).dimshuffle(1, 0, *range(2, x.type.ndim))
    return cast(as_gpuarray_variable(swapped, x.type.device), x.type.dtype)


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
    if direction_hint not in DIRECTION_HINTS:
        known = ", ".join(map(repr, DIRECTION_HINTS))
        raise DnnValueError(
            f"{where}: direction_hint must be one of {known}, got {direction_hint!r}"
        )
    if workmem is not None:
        if algo is not None:
            raise DnnValueError(f"{where}: workmem is an old name of algo; give only algo")
        params = {**params, "algo": workmem}
    img, kerns = device_operands(where, ndim + 2, img=img, kerns=kerns)
    forward = GpuDnnConv(**params)
    plain = forward.num_groups == 1 and forward.subsample == (1,) * ndim and params["algo"] is None
    other = {**params, "border_mode": "valid", "algo": None}
    if (
        plain
        and direction_hint == "bprop weights"
        and forward.border_mode == ((0, 0),) * ndim
        and forward.filter_dilation == (1,) * ndim
    ):
        # The gradient of a convolution by its filters is one of the image with a large filter:
        # the roles of batch and channels are exchanged.
        sizes = [n - k + 1 for n, k in zip(_sizes(img), _sizes(kerns), strict=True)]
        filters = _swapped(kerns)
        if forward.filter_flip:
            filters = _flipped(filters)
        grad_weights = GpuDnnConvGradW(**{**other, "filter_flip": False})
        return _swapped(grad_weights(_swapped(img), filters, pt.stack(sizes)))
    if plain and forward.border_mode == "full" and direction_hint != "forward!":
        # The gradient of a 'valid' convolution by its input is a 'full' one with the filters'
        # channels exchanged, and flipped the other way.
        sizes = [
            n + (k - 1) * d
            for n, k, d in zip(_sizes(img), _sizes(kerns), forward.filter_dilation, strict=True)
        ]
        grad_inputs = GpuDnnConvGradI(**{**other, "filter_flip": not forward.filter_flip})
        return grad_inputs(_swapped(kerns), img, pt.stack(sizes))
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
        The images: float16, bfloat16, float32 or float64.
    kerns : (output channels, input channels // num_groups, rows, columns)
        The filters, of the same dtype.
    border_mode : {'valid', 'half', 'full'}, int, or tuple of 2 ints or pairs of ints
        The zero padding; see `dnnops.nnet.conv2d`.
    subsample : int or tuple of 2 ints
        The stride.
    dilation : int or tuple of 2 ints
        The distance between neighboring filter taps.
    conv_mode : {'conv', 'cross'}
        Convolution, which flips the filters, or cross-correlation, which doesn't.
    direction_hint : None, 'forward', 'forward!', 'bprop inputs' or 'bprop weights'
        A convolution without stride and groups can also be computed by what is a gradient
        otherwise. 'bprop weights' does that for a 'valid' one; a 'full' one is computed as a
        gradient by the input, unless 'forward!' forbids it. Neither happens if `algo` is given,
        which is the forward convolution's.
    workmem : str, optional
        An old name of `algo`.
    algo : str or int, optional
        What chooses the plan; default: the flag ``dnn.conv.algo_fwd``.
    precision : {'as_input_f32', 'as_input', 'float16', 'float32', 'float64'}, optional
        The type that is computed in; default: the flag ``dnn.conv.precision``.
    num_groups : int
        The number of groups that channels and filters are split into.

    Returns
    -------
    GpuArrayVariable, (batch, output channels, rows, columns)

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind, or if they don't fit together.
    """
    params = _conv_params(
        "dnn_conv", 2, border_mode, subsample, dilation, conv_mode, precision, algo, num_groups
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
    """Convolve a batch of volumes with filters on cuDNN; as `dnn_conv`, with three spatial axes."""
    params = _conv_params(
        "dnn_conv3d", 3, border_mode, subsample, dilation, conv_mode, precision, algo, num_groups
    )
    return _conv("dnn_conv3d", img, kerns, direction_hint, None, algo, params)


def _spatial_sizes(where: str, name: str, shape: Any, ndim: int) -> Any:
    """The last entries of a shape of `ndim` + 2 entries, a vector or a sequence."""
    if isinstance(shape, tuple | list):
        if len(shape) != ndim + 2:
            raise DnnValueError(f"{where}: {name} must have {ndim + 2} entries, got {shape!r}")
        sizes = shape[2:]
        return list(sizes) if all(map(is_int, sizes)) else pt.stack(list(sizes))
    return pt.as_tensor_variable(shape)[2:]


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
    """The gradient of `dnn_conv` by its filters.

    Parameters
    ----------
    img : (batch, input channels, rows, columns)
        The images.
    topgrad : (batch, output channels, rows, columns)
        The gradient by the convolution's output.
    kerns_shp : int vector or sequence of 4 entries
        The filters' shape.
    border_mode, subsample, dilation, conv_mode, precision, algo, num_groups
        As for `dnn_conv`; `algo` by default as the flag ``dnn.conv.algo_bwd_filter`` has it.

    Returns
    -------
    GpuArrayVariable
        Of shape `kerns_shp`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind, or if they don't fit together.
    """
    params = _conv_params(
        "dnn_gradweight",
        2,
        border_mode,
        subsample,
        dilation,
        conv_mode,
        precision,
        algo,
        num_groups,
    )
    sizes = _spatial_sizes("dnn_gradweight", "kerns_shp", kerns_shp, 2)
    return GpuDnnConvGradW(**params)(img, topgrad, sizes)


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
    """The gradient of `dnn_conv3d` by its filters; as `dnn_gradweight`."""
    params = _conv_params(
        "dnn_gradweight3d", 3, border_mode, subsample, dilation, conv_mode, precision, algo,
        num_groups,
    )  # fmt: skip
    sizes = _spatial_sizes("dnn_gradweight3d", "kerns_shp", kerns_shp, 3)
    return GpuDnnConvGradW(**params)(img, topgrad, sizes)


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
    """The gradient of `dnn_conv` by its images.

    Parameters
    ----------
    kerns : (output channels, input channels // num_groups, rows, columns)
        The filters.
    topgrad : (batch, output channels, rows, columns)
        The gradient by the convolution's output.
    img_shp : int vector or sequence of 4 entries
        The images' shape.
    border_mode, subsample, dilation, conv_mode, precision, algo, num_groups
        As for `dnn_conv`; `algo` by default as the flag ``dnn.conv.algo_bwd_data`` has it.

    Returns
    -------
    GpuArrayVariable
        Of shape `img_shp`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind, or if they don't fit together.
    """
    params = _conv_params(
        "dnn_gradinput", 2, border_mode, subsample, dilation, conv_mode, precision, algo, num_groups
    )
    sizes = _spatial_sizes("dnn_gradinput", "img_shp", img_shp, 2)
    return GpuDnnConvGradI(**params)(kerns, topgrad, sizes)


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
    """The gradient of `dnn_conv3d` by its volumes; as `dnn_gradinput`."""
    params = _conv_params(
        "dnn_gradinput3d", 3, border_mode, subsample, dilation, conv_mode, precision, algo,
        num_groups,
    )  # fmt: skip
    sizes = _spatial_sizes("dnn_gradinput3d", "img_shp", img_shp, 3)
    return GpuDnnConvGradI(**params)(kerns, topgrad, sizes)


# -- pooling -------------------------------------------------------------------------------


def dnn_pool(img: Any, ws: Any, stride: Any = None, mode: str = "max", pad: Any = None) -> Any:
    """Pool over windows of the last two or three axes on cuDNN.

    Parameters
    ----------
    img : (batch, channels, spatial...)
        Of two or three spatial axes.
    ws : sequence of ints, or int vector
        The windows' size, an entry for each spatial axis.
    stride : sequence of ints, or int vector, optional
        The distance between windows; 1 on each axis if not given.
    mode : {'max', 'sum', 'average_inc_pad', 'average_exc_pad'}
        What is taken of each window; an average counts the padding, or does not.
    pad : sequence of ints, or int vector, optional
        The padding on both sides of each axis; 0 if not given. It never is a maximum.

    Returns
    -------
    GpuArrayVariable
        Of ``(size + 2 * pad - ws) // stride + 1`` windows on each axis.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind, or if they don't fit together.
    """
    (img,) = device_operands("dnn_pool", None, img=img)
    ndim = img.type.ndim - 2
    if ndim not in (1, 2, 3):
        raise DnnValueError(
            f"dnn_pool: img must have three to five dimensions, got {img.type.ndim}"
        )
    stride = (1,) * ndim if stride is None else stride
    pad = (0,) * ndim if pad is None else pad
    return GpuDnnPool(ndim, mode)(img, ws, stride, pad)


# -- normalization by windows, spatial transformers, the CTC loss --------------------------------


def dnn_lrn(img: Any, n: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0) -> Any:
    """Normalize each element by the squares of its neighbors in other channels, on cuDNN.

    Parameters
    ----------
    img : (batch, channels, ...)
        float16, float32 or float64.
    n, alpha, beta, k
        As for `dnnops.nnet.local_response_normalization`.

    Returns
    -------
    GpuArrayVariable
        Of the shape of `img`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind, or out of its bounds.
    """
    op: Any = GpuDnnLRN(n, alpha, beta, k)
    return op(img)


def dnn_divisive_normalization(
    img: Any,
    means: Any = None,
    n: int = 5,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 2.0,
) -> Any:
    """Divide each element by a power of the mean of squares around it, on cuDNN.

    Parameters
    ----------
    img : (batch, channels, two or three spatial axes)
        float16, float32 or float64.
    means : variable of the same type, optional
        What is subtracted before squaring: from all elements of a window the mean at its center,
        as in a local variance. `dnnops.nnet.divisive_normalization` subtracts from each element
        its own.
    n, alpha, beta, k
        As for `dnnops.nnet.divisive_normalization`.

    Returns
    -------
    GpuArrayVariable
        Of the shape of `img`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind, or out of its bounds.

    Notes
    -----
    Gradients are cuDNN's where `n` is odd. For even windows what cuDNN 9.19 computes is none, so
    they are written out.
    """
    op: Any = GpuDnnDivisiveNormalization(n, alpha, beta, k, means is not None)
    return op(img) if means is None else op(img, means)


def dnn_spatialtf(img: Any, theta: Any, scale_width: Any = 1, scale_height: Any = 1) -> Any:
    """Transform images by affine transformations, on cuDNN: a spatial transformer.

    Parameters
    ----------
    img : (batch, channels, rows, columns)
        float16, float32 or float64.
    theta : (batch, 2, 3)
        The transformations, in the dtype of `img`: where in the image a point (x, y) of the output
        comes from is ``theta @ (x, y, 1)``.
    scale_width, scale_height : number or scalar variable
        The output's size in relation to the input's, more than 0.

    Returns
    -------
    GpuArrayVariable, (batch, channels, ceil(rows * scale_height), ceil(columns * scale_width))

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind, or if they don't fit together.
    DnnNotSupportedError
        For a gradient of more than 1024 channels: when it is taken, if their number is known, else
        when the function runs.

    See Also
    --------
    dnnops.nnet.spatial_transformer : what is computed, by kernels of our own.

    Notes
    -----
    A single row or column of the output is the one at -1, the image's first, where
    `dnnops.nnet.spatial_transformer` takes the one in the middle. What pixels that are infinite or
    NaN give is cuDNN's affair. The gradient by the image is added up in another order in each run.
    """
    where = "dnn_spatialtf"
    (img,) = device_operands(where, 4, img=img)
    (theta,) = device_operands(where, 3, theta=theta)
    require_same_dtype(where, img=img, theta=theta)
    sizes = scaled_sizes(where, img, scale_width, scale_height)
    return GpuDnnTransformerSampler()(img, GpuDnnTransformerGrid()(theta, sizes))


def dnn_ctc(
    activations: Any,
    labels: Any,
    input_lengths: Any,
    label_lengths: Any = None,
    deterministic: bool = True,
) -> Any:
    """Compute the CTC loss of each sequence of a batch, on cuDNN.

    `dnnops.nnet.ctc` takes all of what cuDNN does not, and runs on the GPU in kernels of our own.

    Parameters
    ----------
    activations : (steps, batch, classes)
        float32, before the softmax, which is part of the loss. Class 0 is the blank.
    labels : integer matrix, (batch, columns)
        A label of 1 to 255 symbols in each row. Negative entries are padding.
    input_lengths : integer vector, (batch,)
        How many steps of each sequence count.
    label_lengths : integer vector, (batch,), optional
        How many entries of each row are its label.
    deterministic : bool, default True
        Whether the gradient is to be the same bits in every run. See the notes before you say
        False.

    Returns
    -------
    GpuArrayVariable, (batch,)
        Minus the logarithm of each label's probability.

    Raises
    ------
    DnnTypeError, DnnValueError
        As `dnnops.nnet.ctc`; also if `activations` are not float32.
    DnnNotSupportedError
        When the function runs: if a label has more than 255 symbols, or none at all. cuDNN 9.19
        gives the latter a cost of 0, whatever the activations.

    Notes
    -----
    cuDNN computes with logarithms in float32: gradients are less exact the higher the cost is, by
    about 1e-5 for a cost of 100.

    Where activations of minus infinity rule a label out, the cost is infinite, but gradients may
    be finite numbers that mean nothing. `dnnops.nnet.ctc` gives NaN.

    With ``deterministic=False`` cuDNN 9.19 was no faster on an H200, and where activations were
    large (a standard deviation of 30) a gradient was wrong by 1, with the right cost. PyTorch does
    not call that algorithm, for the same reason.
    """
    op = GpuDnnCTC(True, label_lengths is not None, deterministic)
    lengths = [input_lengths] if label_lengths is None else [input_lengths, label_lengths]
    return op.make_node(activations, labels, *lengths).outputs[0]
