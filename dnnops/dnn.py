"""cuDNN under the names that it had in ``theano.gpuarray.dnn``.

The functions here put Ops on cuDNN into a graph by hand. A graph made of `dnnops.nnet` gets the
same Ops by rewriting, and runs on a CPU too: prefer that where it can say what is wanted.

Operands may be device variables, host variables or arrays; those of the host are transferred.
Results are device variables.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable

from dnnops.config import flag_value
from dnnops.cudnn.activation import GpuDnnActivation, GpuDnnActivationGrad
from dnnops.cudnn.attention import GpuDnnAttention, GpuDnnAttentionGrad
from dnnops.cudnn.base import cudnn_usable, cudnn_version, device_operands
from dnnops.cudnn.batchnorm import (
    MODES,
    GpuDnnBatchNorm,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
    parameter_dtype,
)
from dnnops.cudnn.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.cudnn.ctc import GpuDnnCTC
from dnnops.cudnn.divisive_normalization import (
    GpuDnnDivisiveNormalization,
    GpuDnnDivisiveNormalizationGrad,
)
from dnnops.cudnn.dropout import GpuDnnDropoutGrad, GpuDnnDropoutOp
from dnnops.cudnn.lrn import GpuDnnLRN, GpuDnnLRNGrad
from dnnops.cudnn.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.cudnn.reduction import GpuDnnReduction
from dnnops.cudnn.rnn import GpuDnnRNNBackward, GpuDnnRNNForward
from dnnops.cudnn.softmax import GpuDnnSoftmax, GpuDnnSoftmaxGrad
from dnnops.cudnn.spatial_transformer import (
    GpuDnnTransformerGradI,
    GpuDnnTransformerGradT,
    GpuDnnTransformerGrid,
    GpuDnnTransformerSampler,
)
from dnnops.cudnn.transform import GpuDnnAddTensor, GpuDnnTransform
from dnnops.errors import DnnError, DnnTypeError, DnnUnavailableError, DnnValueError
from dnnops.gpuarray.device import check_device, device_from_target
from dnnops.gpuarray.dtypes import dtype_name, numpy_dtype
from dnnops.gpuarray.op import infer_device, is_on_device
from dnnops.gpuarray.transfer import as_gpuarray_variable, cast
from dnnops.nnet._validate import is_int, require_same_dtype, spatial_shape
from dnnops.nnet.dropout import seeded_dropout
from dnnops.nnet.rnn import RNNBlock as _HostRNNBlock
from dnnops.nnet.rnn_ops import RANKS
from dnnops.nnet.spatial_transformer import scaled_sizes
from dnnops.runtime.build import CUDNN

__all__ = [
    "GpuDnnActivation",
    "GpuDnnActivationGrad",
    "GpuDnnAddTensor",
    "GpuDnnAttention",
    "GpuDnnAttentionGrad",
    "GpuDnnBatchNorm",
    "GpuDnnBatchNormGrad",
    "GpuDnnBatchNormInference",
    "GpuDnnCTC",
    "GpuDnnConv",
    "GpuDnnConvGradI",
    "GpuDnnConvGradW",
    "GpuDnnDivisiveNormalization",
    "GpuDnnDivisiveNormalizationGrad",
    "GpuDnnDropoutGrad",
    "GpuDnnDropoutOp",
    "GpuDnnLRN",
    "GpuDnnLRNGrad",
    "GpuDnnPool",
    "GpuDnnPoolGrad",
    "GpuDnnRNNBackward",
    "GpuDnnRNNForward",
    "GpuDnnReduction",
    "GpuDnnSoftmax",
    "GpuDnnSoftmaxGrad",
    "GpuDnnTransform",
    "GpuDnnTransformerGradI",
    "GpuDnnTransformerGradT",
    "GpuDnnTransformerGrid",
    "GpuDnnTransformerSampler",
    "RNNBlock",
    "dnn_activation",
    "dnn_add",
    "dnn_available",
    "dnn_batch_normalization_test",
    "dnn_batch_normalization_train",
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
    "dnn_reduction",
    "dnn_spatialtf",
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
    """Pool over windows of the last one, two or three axes on cuDNN.

    Parameters
    ----------
    img : (batch, channels, spatial...)
        Of one to three spatial axes.
    ws : sequence of ints, or int vector
        The windows' size, an entry for each spatial axis. Like `stride` and `pad` it may be
        symbolic, with other values in each call.
    stride : sequence of ints, or int vector, optional
        The distance between windows; 1 on each axis if not given.
    mode : {'max', 'max_deterministic', 'sum', 'average_inc_pad', 'average_exc_pad', 'average'}
        What is taken of each window; an average counts the padding, or does not. With
        'max_deterministic' gradients are the same bits in every run. 'average' is another name of
        'average_inc_pad', as it was in Theano.
    pad : sequence of ints, or int vector, optional
        The padding on both sides of each axis; 0 if not given. It never is a maximum.

    Returns
    -------
    GpuArrayVariable
        Of ``(size + 2 * pad - ws) // stride + 1`` windows on each axis.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind, or if they don't fit together; at the call,
        if only that tells.
    """
    (img,) = device_operands("dnn_pool", None, img=img)
    ndim = img.type.ndim - 2
    if ndim not in (1, 2, 3):
        raise DnnValueError(
            f"dnn_pool: img must have three to five dimensions, got {img.type.ndim}"
        )
    stride = (1,) * ndim if stride is None else stride
    pad = (0,) * ndim if pad is None else pad
    mode = "average_inc_pad" if mode == "average" else mode
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
        What is subtracted from each element before it is squared.
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

    See Also
    --------
    dnnops.nnet.spatial_transformer : what is computed.
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
    deterministic: bool | None = None,
) -> Any:
    """Compute the CTC loss of each sequence of a batch, on cuDNN.

    Parameters
    ----------
    activations : (steps, batch, classes)
        float32, before the softmax, which is part of the loss. Class 0 is the blank.
    labels : integer matrix, (batch, columns)
        A label of at most 255 symbols in each row. Negative entries are padding.
    input_lengths : integer vector, (batch,)
        How many steps of each sequence count.
    label_lengths : integer vector, (batch,), optional
        How many entries of each row are its label.
    deterministic : bool, optional
        Whether the gradient is to be the same bits in every run. Default: the flag
        ``dnn.deterministic``.

    Returns
    -------
    GpuArrayVariable, (batch,)
        Minus the logarithm of each label's probability.

    Raises
    ------
    DnnTypeError, DnnValueError
        As `dnnops.nnet.ctc`, which takes other dtypes and longer labels.
    """
    op = GpuDnnCTC(True, label_lengths is not None, deterministic)
    lengths = [input_lengths] if label_lengths is None else [input_lengths, label_lengths]
    return op.make_node(activations, labels, *lengths).outputs[0]


# -- recurrent networks --------------------------------------------------------------------


class RNNBlock(_HostRNNBlock):
    """A recurrent network on cuDNN whose parameters are one vector.

    As `dnnops.nnet.RNNBlock`, but `apply` takes operands on a device, or transfers them, and gives
    device variables; in bfloat16, too. `context_name` is the device where no operand is on one.
    """

    dtypes: ClassVar[tuple[str, ...]] = (*_HostRNNBlock.dtypes, "bfloat16")
    _forward = GpuDnnRNNForward

    def _dtype_name(self, dtype: Any) -> str:
        return dtype_name(dtype)

    def _operands(self, where: str, named: dict[str, Any]) -> list[Any]:
        arrays = [x for x in named.values() if is_on_device(x)]
        device = infer_device(*arrays) if arrays else _device(self.context_name)
        moved = {name: as_gpuarray_variable(x, device) for name, x in named.items()}
        found = device_operands(where, None, **moved)
        for (name, x), ndim in zip(moved.items(), (RANKS.get(n, 3) for n in moved), strict=True):
            if x.type.ndim != ndim:
                raise DnnTypeError(
                    f"{where}: {name} must have {ndim} dimensions, got {x.type.ndim} ({x.type})"
                )
        return found

    def _swapped(self, x: Any) -> Any:
        return _swapped(x)

    def split_params(self, w: Any, layer: int, input_size: Any) -> list[Any]:
        """As `dnnops.nnet.RNNBlock.split_params`; of a device variable, too."""
        if is_on_device(w) and not isinstance(w, SharedVariable):
            w = pt.as_tensor_variable(w)
        return super().split_params(w, layer, input_size)


# -- batch normalization -------------------------------------------------------------------


def _batch_norm_parameters(where: str, inputs: Any, mode: str, **parameters: Any) -> list[Any]:
    """The inputs, and parameters as the Ops take them: with the inputs' rank, in their dtype."""
    (x,) = device_operands(where, None, inputs=inputs)
    ndim = x.type.ndim
    if mode not in MODES:
        raise DnnValueError(f"{where}: mode must be one of {', '.join(MODES)}, got {mode!r}")
    kept = 1 if mode == "spatial" else ndim - 1
    arrays = []
    for name, value in parameters.items():
        (array,) = device_operands(
            where, None, **{name: as_gpuarray_variable(value, x.type.device)}
        )
        if array.type.ndim == kept != ndim:
            axes = (0, *range(2, ndim)) if mode == "spatial" else (0,)
            array = as_gpuarray_variable(pt.expand_dims(pt.as_tensor_variable(array), axes))
        elif array.type.ndim != ndim:
            raise DnnTypeError(
                f"{where}: {name} must have {ndim} dimensions, or {kept} for mode={mode!r}; got"
                f" {array.type.ndim}"
            )
        arrays.append(cast(array, parameter_dtype(x.type.dtype)))
    return [x, *arrays]


def dnn_batch_normalization_train(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mode: str = "per-activation",
    epsilon: Any = 1e-4,
    running_average_factor: Any = 0.1,
    running_mean: Any = None,
    running_var: Any = None,
) -> tuple[Any, ...]:
    """Normalize a batch by its own mean and variance on a GPU.

    Parameters
    ----------
    inputs : array
        Of any rank.
    gamma, beta : array
        Scale and bias: of the inputs' rank with size 1 on the axes that statistics are over, or
        without these. They are cast to the dtype of `inputs`, or to float32 if that has 16 bits.
    mode : {'per-activation', 'spatial'}
        Statistics are over the first axis, or over all but the second one.
    epsilon : number or scalar variable
        At least 0, cuDNN's ``CUDNN_BN_MIN_EPSILON``, and finite; of a variable this is checked at
        the call.
    running_average_factor, running_mean, running_var
        As for `dnnops.nnet.batch_normalization_train`.

    Returns
    -------
    tuple of GpuArrayVariable
        As of `dnnops.nnet.batch_normalization_train`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind, or if they don't fit together. The latter
        is a `ValueError`.
    """
    where = "dnn_batch_normalization_train"
    if (running_mean is None) != (running_var is None):
        raise DnnValueError(f"{where}: running_mean and running_var must be given together")
    parameters = {"gamma": gamma, "beta": beta}
    running = running_mean is not None
    if running:
        parameters |= {"running_mean": running_mean, "running_var": running_var}
    x, scale, bias, *averages = _batch_norm_parameters(where, inputs, mode, **parameters)
    op = GpuDnnBatchNorm(mode, running)
    more = [running_average_factor, *averages] if running else []
    return tuple(op.make_node(x, scale, bias, epsilon, *more).outputs)


def dnn_batch_normalization_test(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    var: Any,
    mode: str = "per-activation",
    epsilon: Any = 1e-4,
) -> Any:
    """Normalize by a given mean and variance on a GPU.

    Parameters
    ----------
    inputs, gamma, beta, mode, epsilon
        As for `dnn_batch_normalization_train`.
    mean, var : array
        As `gamma`.

    Returns
    -------
    GpuArrayVariable
        ``(inputs - mean) / sqrt(var + epsilon) * gamma + beta``.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter is of another kind, or if they don't fit together.
    """
    where = "dnn_batch_normalization_test"
    operands = _batch_norm_parameters(
        where, inputs, mode, gamma=gamma, beta=beta, mean=mean, var=var
    )
    return GpuDnnBatchNormInference(mode)(*operands, epsilon)
