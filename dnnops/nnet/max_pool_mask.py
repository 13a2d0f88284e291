"""Max pooling that keeps the image's size."""

from __future__ import annotations

from typing import Any

from pytensor.tensor.variable import TensorVariable

from dnnops.nnet._validate import float_tensor
from dnnops.nnet.pool import MaxPoolGrad, Pool

__all__ = ["max_pool_2d_same_size"]


def max_pool_2d_same_size(input: Any, patch_size: Any) -> TensorVariable:
    """Set to zero all but the largest element of each patch of an image.

    Parameters
    ----------
    input : tensor_like, (batch, channels, rows, columns)
        float16, float32 or float64.
    patch_size : int vector or sequence of 2 ints
        The rows and columns of a patch. Patches don't overlap; what is left at the end of an axis
        becomes zero.

    Returns
    -------
    TensorVariable, of the shape of `input`
        Of several equal maxima the first one is kept.

    Raises
    ------
    DnnTypeError, DnnValueError
        As for `pool_2d`.
    """
    x = float_tensor("max_pool_2d_same_size", "input", input, 4)
    windows = (patch_size, patch_size, (0, 0))
    largest = Pool(2, "max", True)(x, *windows)
    result: Any = MaxPoolGrad(2, True)(x, largest, largest, *windows)
    return result
