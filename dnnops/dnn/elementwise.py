"""Activations, dropout, sums and copies."""

from __future__ import annotations

from typing import Any

from dnnops.arguments import shown
from dnnops.cudnn.activation import GpuDnnActivation
from dnnops.cudnn.base import device_operands
from dnnops.cudnn.dropout import GpuDnnDropoutOp
from dnnops.cudnn.transform import GpuDnnAddTensor, GpuDnnTransform
from dnnops.errors import DnnTypeError
from dnnops.gpuarray.dtypes import dtype_name, numpy_dtype
from dnnops.gpuarray.transfer import cast
from dnnops.nnet.dropout_ops import probability_variable, seeded_dropout

__all__ = ["dnn_activation", "dnn_add", "dnn_transform", "dropout"]


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
    is around them; this is a kernel of its own. Two slopes are 1 here: clipped relu's at exactly
    the ceiling, which is 0 there, and elu's at exactly 0, which is alpha there.
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
    p = probability_variable("dropout", "dropout", dropout)
    return seeded_dropout("dropout", GpuDnnDropoutOp(), x, p, seed)


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
    try:
        dtype = x.type.dtype if dtype is None else dtype_name(dtype)
    except DnnTypeError as error:
        raise DnnTypeError(f"dnn_transform: dtype must be a dtype, got {shown(dtype)}") from error
    op = GpuDnnTransform(memory_format)
    narrows = numpy_dtype(dtype).itemsize < numpy_dtype(x.type.dtype).itemsize
    if narrows and dtype != "bfloat16":
        return op(cast(x, dtype), alpha)
    return cast(op(x, alpha), dtype)
