"""Pooling on cuDNN."""

from __future__ import annotations

from typing import Any

from dnnops.errors import DnnValueError
from dnnops.gpu.base import device_operands
from dnnops.gpu.pool import GpuDnnPool
from dnnops.nnet.validate import int_vector

__all__ = ["dnn_pool"]


def dnn_pool(img: Any, ws: Any, stride: Any = None, mode: str = "max", pad: Any = None) -> Any:
    """Pool over windows of the last one, two or three axes on cuDNN.

    Parameters
    ----------
    img : (batch, channels, spatial...)
        Images with one to three spatial axes.
    ws : sequence of ints, or int vector
        Window size along each spatial axis. Like `stride` and `pad`, it can be symbolic and change
        between calls.
    stride : sequence of ints, or int vector, optional
        Distance between windows along each axis. Default: 1.
    mode : {'max', 'max_deterministic', 'sum', 'average_inc_pad', 'average_exc_pad', 'average'}
        Value computed for each window. The averages include or exclude the padding. With
        'max_deterministic', gradients are identical in every run. As in Theano, 'average' is
        another name for 'average_inc_pad'.
    pad : sequence of ints, or int vector, optional
        Padding on both sides of each axis. Default: 0. Padding is never the maximum of a window.

    Returns
    -------
    GpuArrayVariable
        Array with ``(size + 2 * pad - ws) // stride + 1`` windows along each axis.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter has the wrong type or value, or if operands don't match.
        Problems that depend on symbolic values are raised when the function runs.
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
