"""Theano's functions for activations, dropout, scaled sums and copies, on a GPU."""

from __future__ import annotations

from typing import Any

from dnnops.arguments import shown
from dnnops.dtypes import dtype_name, numpy_dtype
from dnnops.errors import DnnTypeError
from dnnops.gpu.activation import GpuDnnActivation
from dnnops.gpu.base import device_operands
from dnnops.gpu.dropout import GpuDnnDropoutOp
from dnnops.gpu.transform import GpuDnnAddTensor, GpuDnnTransform
from dnnops.gpuarray.transfer import cast
from dnnops.nnet.regularization.dropout import probability_variable, seeded_dropout

__all__ = ["dnn_activation", "dnn_add", "dnn_transform", "dropout"]


def dnn_activation(x: Any, mode: str = "relu", coef: float = 0.0) -> Any:
    """Apply an activation on cuDNN.

    Parameters
    ----------
    x : array
        Array in float16, bfloat16, float32 or float64.
    mode : {'relu', 'clipped_relu', 'tanh', 'sigmoid', 'elu', 'swish'}
        Name of the activation.
    coef : float
        The ceiling of clipped relu, alpha of elu or beta of swish; 0 for the others.

    Returns
    -------
    GpuArrayVariable
        Array with the shape and dtype of `x`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter has the wrong type or value.

    Notes
    -----
    On a GPU, the activations of `dnnops.nnet` become elementwise kernels that are fused with the
    surrounding Ops, while this function always runs a separate kernel. Two slopes differ: for
    clipped relu at exactly the ceiling it is 1 here and 0 in `dnnops.nnet`, and for elu at exactly
    0 it is 1 here and alpha in `dnnops.nnet`.
    """
    return GpuDnnActivation(mode, coef)(x)


def dropout(x: Any, dropout: Any = 0.0, seed: int = 4242) -> Any:
    """Set elements to zero at random and scale the others, which preserves the mean.

    Parameters
    ----------
    x : array
        Array in float16, bfloat16, float32 or float64.
    dropout : number or scalar variable
        Probability that an element becomes 0, at least 0 and less than 1.
    seed : int
        Seed from 0 to ``2**64 - 1``. The result owns the random state: each call of a compiled
        function draws new numbers, and building the same graph again repeats the sequence.

    Returns
    -------
    GpuArrayVariable
        Array with the shape and dtype of `x`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter has the wrong type or value.

    Notes
    -----
    Theano's function also returned cuDNN's descriptor and states. Here, the state is two integers.
    To manage it yourself, pass the result of `dnnops.nnet.dropout_state` as `state` to
    ``GpuDnnDropoutOp()(x, p, state)``.
    """
    (x,) = device_operands("dropout", None, x=x)
    p = probability_variable("dropout", "dropout", dropout)
    return seeded_dropout("dropout", GpuDnnDropoutOp(), x, p, seed)


def dnn_add(a: Any, c: Any, alpha: Any = 1.0, beta: Any = 1.0) -> Any:
    """Compute ``alpha * a + beta * c`` on cuDNN.

    Parameters
    ----------
    a, c : array
        Arrays in float16, float32 or float64, with the same rank. Each axis of `a` has the same
        length as in `c`, or length 1 to be broadcast.
    alpha, beta : number or scalar variable
        Scaling factors.

    Returns
    -------
    GpuArrayVariable
        Array with the shape and dtype of `c`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand has the wrong type, or if operands don't match.
    """
    return GpuDnnAddTensor()(a, c, alpha, beta)


def dnn_transform(
    x: Any, memory_format: str = "contiguous", dtype: str | None = None, alpha: Any = 1.0
) -> Any:
    """Scale an array and copy it to another memory format and dtype.

    Parameters
    ----------
    x : (batch, channels, spatial...)
        Array with one to three spatial axes, in float16, float32 or float64.
    memory_format : {'contiguous', 'channels_last'}
        Memory format of the result.
    dtype : str, optional
        Dtype of the result. Default: the dtype of `x`. cuDNN doesn't change the dtype; a dnnops
        kernel converts it before or after the copy, whichever moves less memory.
    alpha : number or scalar variable
        Scaling factor.

    Returns
    -------
    GpuArrayVariable
        Array with the shape of `x`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter has the wrong type or value.
    """
    (x,) = device_operands("dnn_transform", None, x=x)
    try:
        dtype = x.type.dtype if dtype is None else dtype_name(dtype)
    except DnnTypeError as error:
        raise DnnTypeError(f"dnn_transform: dtype must be a dtype, got {shown(dtype)}") from error
    op = GpuDnnTransform(memory_format)
    narrows = numpy_dtype(dtype).itemsize < numpy_dtype(x.type.dtype).itemsize
    if narrows and dtype != "bfloat16":
        return op(cast(x, dtype), alpha)
    return cast(op(x, alpha), dtype)
