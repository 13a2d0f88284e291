"""Functions of ``theano.tensor.nnet`` and ``theano.tensor.signal`` with deprecated arguments."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytensor.tensor as pt

from dnnops import nnet
from dnnops.errors import DnnNeighborhoodError, DnnValueError, DnnWarning
from dnnops.nnet.checks import CheckedValue

__all__ = ["conv2d", "elu", "images2neibs", "max_pool_2d", "max_pool_3d"]


def conv2d(
    input: Any,
    filters: Any,
    input_shape: Any = None,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    image_shape: Any = None,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
    **kwargs: Any,
) -> Any:
    """Convolve images with `dnnops.nnet.conv2d`; ignore Theano's performance hints."""
    for name in ("imshp_logical", "kshp_logical"):
        if name in kwargs:
            raise DnnValueError(f"conv2d: {name} is not supported; use bilinear_upsampling")
    if kwargs:
        warnings.warn(
            f"conv2d: the arguments {', '.join(kwargs)} are ignored", DnnWarning, stacklevel=2
        )
    return nnet.conv2d(
        input,
        filters,
        input_shape,
        filter_shape,
        border_mode,
        subsample,
        filter_flip,
        image_shape,
        filter_dilation,
        num_groups,
        unshared,
    )


def images2neibs(ten4: Any, neib_shape: Any, neib_step: Any = None, mode: str = "valid") -> Any:
    """Cut images into neighborhoods with `dnnops.nnet.images2neibs`.

    Neighborhoods that don't fit raise DnnNeighborhoodError when the compiled function is called,
    even if their sizes are constants.
    """
    try:
        return nnet.images2neibs(ten4, neib_shape, neib_step, mode)
    except DnnNeighborhoodError as error:
        images = pt.as_tensor_variable(ten4)
        return CheckedValue(type(error), str(error))(images.flatten(2), pt.constant(False))


def elu(x: Any, alpha: Any = 1) -> Any:
    """Apply the exponential linear unit; `alpha` may be a variable that broadcasts against `x`."""
    if isinstance(alpha, np.ndarray) and alpha.ndim == 0:
        alpha = alpha.item()
    if isinstance(alpha, (int, float, np.number)):
        return nnet.elu(x, float(alpha))
    # The minimum keeps the gradient finite where the other branch is taken.
    x = pt.as_tensor_variable(x)
    return pt.switch(pt.gt(x, 0), x, alpha * pt.expm1(pt.minimum(x, 0)))


def max_pool_2d(
    input: Any,
    ds: Any,
    ignore_border: bool | None = None,
    st: Any = None,
    padding: Any = (0, 0),
    mode: str = "max",
) -> Any:
    """Pool over windows of the last two axes; see `dnnops.nnet.pool_2d`."""
    return nnet.pool_2d(input, ds, ignore_border, st, padding, mode)


def max_pool_3d(
    input: Any,
    ds: Any,
    ignore_border: bool | None = None,
    st: Any = None,
    padding: Any = (0, 0, 0),
    mode: str = "max",
) -> Any:
    """Pool over windows of the last three axes; see `dnnops.nnet.pool_3d`."""
    return nnet.pool_3d(input, ds, ignore_border, st, padding, mode)
