"""Pooling."""

from __future__ import annotations

from typing import Any

from dnnops.cudnn.base import device_operands
from dnnops.cudnn.pool import GpuDnnPool
from dnnops.errors import DnnValueError
from dnnops.nnet._validate import int_vector

__all__ = ["dnn_pool"]


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
    beside = f", for an img of {ndim + 2} dimensions,"
    vectors = [
        int_vector("dnn_pool", f"{name}{beside}", value, ndim)
        for name, value in (("ws", ws), ("stride", stride), ("pad", pad))
    ]
    return GpuDnnPool(mode, ndim)(img, *vectors)
