"""Max pooling that preserves the image size."""

from __future__ import annotations

from typing import Any

from pytensor.tensor.variable import TensorVariable

from dnnops.errors import DnnValueError
from dnnops.nnet.pool.op import MaxPoolGrad, Pool
from dnnops.nnet.validate import (
    MAX_PARAMETER,
    float_tensor,
    int_vector,
    show_shape,
    shown,
    static_vector,
)

__all__ = ["max_pool_2d_same_size"]


def max_pool_2d_same_size(input: Any, patch_size: Any) -> TensorVariable:
    """Set all but the largest element of each patch of an image to zero.

    Parameters
    ----------
    input : tensor_like, (batch, channels, rows, columns)
        Images, of dtype float16, float32 or float64.
    patch_size : int vector or sequence of 2 ints
        Number of rows and columns of a patch. Patches don't overlap; elements left over at the end
        of an axis become zero.

    Returns
    -------
    TensorVariable
        A tensor with the shape and dtype of `input`. If a patch has several equal maxima, only the
        first one is kept.

    Raises
    ------
    DnnTypeError, DnnValueError
        See `pool_2d`.
    """
    where = "max_pool_2d_same_size"
    x = float_tensor(where, "input", input, 4)
    patch = int_vector(where, "patch_size", patch_size, 2)
    for size, length in zip(x.type.shape[2:], static_vector(patch, 2), strict=True):
        if length is not None and not 1 <= length <= (MAX_PARAMETER if size is None else size):
            raise DnnValueError(
                f"{where}: patch_size must be at least 1 and at most the image's size, got"
                f" {shown(patch_size)} for input of shape {show_shape(x.type.shape)}"
            )
    windows = (patch, patch, (0, 0))
    largest = Pool(2, "max", True)(x, *windows)
    result: Any = MaxPoolGrad(2, True)(x, largest, largest, *windows)
    return result
