"""Local response and divisive normalization on cuDNN."""

from __future__ import annotations

from typing import Any

from dnnops.errors import DnnTypeError
from dnnops.gpu.base import device_operands
from dnnops.gpu.divisive_normalization import GpuDnnDivisiveNormalization
from dnnops.gpu.lrn import GpuDnnLRN
from dnnops.gpuarray.transfer import cast

__all__ = ["dnn_divisive_normalization", "dnn_lrn"]


def dnn_lrn(img: Any, n: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0) -> Any:
    """Normalize each element by the squares of its neighbors in other channels on cuDNN.

    Parameters
    ----------
    img : (batch, channels, ...)
        Images in float16, float32 or float64.
    n, alpha, beta, k
        See `dnnops.nnet.local_response_normalization`.

    Returns
    -------
    GpuArrayVariable
        Array with the shape of `img`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter has the wrong type or value.
    """
    op: Any = GpuDnnLRN(n, alpha, beta, k)
    (img,) = device_operands("dnn_lrn", None, img=img)
    op.check_rank("dnn_lrn", "img", img.type.ndim)
    return op(img)


def dnn_divisive_normalization(
    img: Any,
    means: Any = None,
    n: int = 5,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 2.0,
) -> Any:
    """Divide each element by a power of the local mean of squares on cuDNN.

    Parameters
    ----------
    img : (batch, channels, two or three spatial axes)
        Images in float16, bfloat16, float32 or float64. 16-bit arrays are converted to float32 and
        back, because cuDNN would use float16 arithmetic for float16 arrays, which gives gradients
        with errors of 2e-3.
    means : variable of the same type, optional
        Means to subtract before squaring. The mean at the center of a window is subtracted from all
        elements of the window, as in a local variance. `dnnops.nnet.divisive_normalization`
        subtracts each element's own mean instead.
    n, alpha, beta, k
        See `dnnops.nnet.divisive_normalization`.

    Returns
    -------
    GpuArrayVariable
        Array with the shape of `img`.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter has the wrong type or value.

    Notes
    -----
    cuDNN computes the gradients if `n` is odd. For even `n` the gradients of cuDNN 9.19 are wrong,
    so other Ops compute them.
    """
    op: Any = GpuDnnDivisiveNormalization(n, alpha, beta, k, means is not None)
    given = {"img": img} if means is None else {"img": img, "means": means}
    operands = device_operands("dnn_divisive_normalization", None, **given)
    for name, operand in zip(given, operands, strict=True):
        op.check_rank("dnn_divisive_normalization", name, operand.type.ndim)
    if operands[0].type.ndim != operands[-1].type.ndim:
        ranks = " and ".join(str(x.type.ndim) for x in operands)
        raise DnnTypeError(
            f"dnn_divisive_normalization: img and means must have the same rank, got {ranks}"
        )
    dtype = operands[0].type.dtype
    wide = "float64" if dtype == "float64" else "float32"
    return cast(op(*(cast(x, wide) for x in operands)), dtype)
