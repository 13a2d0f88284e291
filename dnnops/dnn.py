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
from dnnops.cudnn.activation import GpuDnnActivation, GpuDnnActivationGrad
from dnnops.cudnn.base import cudnn_usable, cudnn_version, device_operands
from dnnops.cudnn.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.cudnn.dropout import GpuDnnDropoutGrad, GpuDnnDropoutOp
from dnnops.cudnn.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.cudnn.reduction import GpuDnnReduction
from dnnops.cudnn.softmax import GpuDnnSoftmax, GpuDnnSoftmaxGrad
from dnnops.cudnn.transform import GpuDnnAddTensor, GpuDnnTransform
from dnnops.errors import DnnError, DnnUnavailableError, DnnValueError
from dnnops.gpuarray.device import check_device, device_from_target
from dnnops.gpuarray.dtypes import dtype_name, numpy_dtype
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.nnet._validate import is_int, spatial_shape
from dnnops.nnet.dropout import seeded_dropout
from dnnops.runtime.build import CUDNN

__all__ = [
    "GpuDnnActivation",
    "GpuDnnActivationGrad",
    "GpuDnnAddTensor",
    "GpuDnnConv",
    "GpuDnnConvGradI",
    "GpuDnnConvGradW",
    "GpuDnnDropoutGrad",
    "GpuDnnDropoutOp",
    "GpuDnnPool",
    "GpuDnnPoolGrad",
    "GpuDnnReduction",
    "GpuDnnSoftmax",
    "GpuDnnSoftmaxGrad",
    "GpuDnnTransform",
    "dnn_activation",
    "dnn_add",
    "dnn_available",
    "dnn_conv",
    "dnn_conv3d",
    "dnn_gradinput",
    "dnn_gradinput3d",
    "dnn_gradweight",
    "dnn_gradweight3d",
    "dnn_pool",
    "dnn_present",
    "dnn_reduction",
    "dnn_transform",
    "dropout",
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


# -- reductions, activations, dropout, sums and copies -------------------------------------


def dnn_reduction(
    x: Any,
    red_op: str,
    axis: Any = None,
    acc_dtype: str | None = None,
    dtype: str | None = None,
    return_indices: bool = False,
) -> Any:
    """Reduce an array over axes on cuDNN.

    Parameters
    ----------
    x : array
        float16, float32 or float64, of at most 8 dimensions.
    red_op : str
        'add', 'mul', 'mean', 'maximum', 'minimum', 'absmax', 'norm1' or 'norm2'; also 'sum',
        'prod', 'avg', 'max', 'min' and 'amax'.
    axis : int, tuple of int, or None
        The axes to reduce; None for all.
    acc_dtype, dtype : str, optional
        As for `GpuDnnReduction`.
    return_indices : bool
        Whether the places of the extrema are given, too.

    Returns
    -------
    GpuArrayVariable, or a pair
        The result, and the int64 indices if they were asked for: counted in C order over the
        reduced axes.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind.
    """
    outputs = GpuDnnReduction(red_op, axis, acc_dtype, dtype, return_indices).make_node(x).outputs
    return tuple(outputs) if return_indices else outputs[0]


def dnn_activation(x: Any, mode: str = "relu", coef: float = 0.0) -> Any:
    """Apply an activation on cuDNN.

    Parameters
    ----------
    x : array
        float16, bfloat16, float32 or float64.
    mode : {'relu', 'clipped_relu', 'tanh', 'sigmoid', 'elu', 'swish'}
    coef : float
        The ceiling of clipped relu, alpha of elu or beta of swish; 0 for the others.

    Returns
    -------
    GpuArrayVariable
        Of the shape and dtype of `x`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind.

    Notes
    -----
    The activations of `dnnops.nnet` become elementwise kernels on a GPU, which are fused with what
    is around them; this is a kernel of its own.
    """
    return GpuDnnActivation(mode, coef)(x)


def dropout(x: Any, dropout: Any = 0.0, seed: int = 4242) -> Any:
    """Set elements to zero at random and scale the others, so that the mean stays.

    Parameters
    ----------
    x : array
        float16, bfloat16, float32 or float64.
    dropout : number or scalar variable
        The probability with which an element becomes 0, at least 0 and less than 1.
    seed : int
        From 0 to ``2**64 - 1``. The state is kept by this function's result: each call of a
        compiled function draws anew, and compiling the same program again repeats its sequence.

    Returns
    -------
    GpuArrayVariable
        Of the shape and dtype of `x`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind.

    Notes
    -----
    Theano's gave cuDNN's descriptor and states besides. Here the state is two integers; give
    ``GpuDnnDropoutOp()(x, p, state)`` one of `dnnops.nnet.dropout_state` to keep it yourself.
    """
    (x,) = device_operands("dropout", None, x=x)
    return seeded_dropout("dropout", GpuDnnDropoutOp(), x, dropout, seed)


def dnn_add(a: Any, c: Any, alpha: Any = 1.0, beta: Any = 1.0) -> Any:
    """Compute ``alpha * a + beta * c`` on cuDNN.

    Parameters
    ----------
    a, c : array
        float16, float32 or float64, of one rank; `a` has the dimensions of `c`, or length 1 where
        it is repeated.
    alpha, beta : number or scalar variable

    Returns
    -------
    GpuArrayVariable
        Of the shape and dtype of `c`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand is of another kind, or if they don't fit together.
    """
    return GpuDnnAddTensor()(a, c, alpha, beta)


def dnn_transform(
    x: Any, memory_format: str = "contiguous", dtype: str | None = None, alpha: Any = 1.0
) -> Any:
    """Copy an array to another memory format and dtype, and scale it.

    Parameters
    ----------
    x : (batch, channels, spatial...)
        Of one to three spatial axes: float16, float32 or float64.
    memory_format : {'contiguous', 'channels_last'}
        The order in memory of the result.
    dtype : str, optional
        Of the result; that of `x` if not given. cuDNN keeps the dtype: a kernel of ours converts
        it before or after, whatever is less memory to copy.
    alpha : number or scalar variable

    Returns
    -------
    GpuArrayVariable
        Of the shape of `x`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind.
    """
    (x,) = device_operands("dnn_transform", None, x=x)
    dtype = x.type.dtype if dtype is None else dtype_name(dtype)
    op = GpuDnnTransform(memory_format)
    narrows = numpy_dtype(dtype).itemsize < numpy_dtype(x.type.dtype).itemsize
    if narrows and dtype != "bfloat16":
        return op(cast(x, dtype), alpha)
    return cast(op(x, alpha), dtype)
