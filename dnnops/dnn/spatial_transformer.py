"""Spatial transformers."""

from __future__ import annotations

from typing import Any

from dnnops.cudnn.base import device_operands
from dnnops.cudnn.spatial_transformer import (
    GpuDnnTransformerGrid,
    GpuDnnTransformerSampler,
)
from dnnops.nnet._validate import require_same_dtype
from dnnops.nnet.spatial_transformer_ops import scaled_sizes

__all__ = ["dnn_spatialtf"]


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
