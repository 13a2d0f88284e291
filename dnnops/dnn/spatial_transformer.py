"""Spatial transformers on cuDNN."""

from __future__ import annotations

from typing import Any

from dnnops.gpu.base import device_operands
from dnnops.gpu.spatial_transformer import (
    GpuDnnTransformerGrid,
    GpuDnnTransformerSampler,
)
from dnnops.nnet.resample.spatial_transformer import scaled_sizes
from dnnops.nnet.validate import require_same_dtype

__all__ = ["dnn_spatialtf"]


def dnn_spatialtf(img: Any, theta: Any, scale_width: Any = 1, scale_height: Any = 1) -> Any:
    """Apply affine transformations to images with a spatial transformer on cuDNN.

    Parameters
    ----------
    img : (batch, channels, rows, columns)
        Images in float16, float32 or float64.
    theta : (batch, 2, 3)
        Transformations in the dtype of `img`. The point (x, y) of the output is sampled from the
        image at ``theta @ (x, y, 1)``.
    scale_width, scale_height : number or scalar variable
        Positive ratios of the output size to the input size.

    Returns
    -------
    GpuArrayVariable, (batch, channels, ceil(rows * scale_height), ceil(columns * scale_width))

    Raises
    ------
    DnnTypeError, DnnValueError
        If an operand or a parameter has the wrong type or value, or if operands don't match.
    DnnNotSupportedError
        If the gradient has more than 1024 channels. It is raised when the gradient is taken if the
        number of channels is known, otherwise when the function runs.

    See Also
    --------
    dnnops.nnet.spatial_transformer : The same computation with dnnops kernels.

    Notes
    -----
    A single row or column of the output lies at -1, the first row or column of the image;
    `dnnops.nnet.spatial_transformer` places it in the middle. cuDNN doesn't specify the results for
    infinite or NaN pixels. The order of the sums in the gradient with respect to the image varies
    between runs. Gradients of float16 images are computed in float32.
    """
    where = "dnn_spatialtf"
    (img,) = device_operands(where, 4, img=img)
    (theta,) = device_operands(where, 3, theta=theta)
    require_same_dtype(where, img=img, theta=theta)
    sizes = scaled_sizes(where, img, scale_width, scale_height)
    return GpuDnnTransformerSampler()(img, GpuDnnTransformerGrid()(theta, sizes))
