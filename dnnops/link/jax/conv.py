"""Convert convolutions to `jax.lax.conv_general_dilated`, and gradients to its transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dnnops.link.jax.register import converts
from dnnops.nnet import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.conv.base import ConvBase


def convolve(op: ConvBase, img: Any, kern: Any) -> Any:
    """Convolve a non-empty image with filters."""
    spatial = "DHW"[-op.ndim :]
    if op.filter_flip:
        kern = jnp.flip(kern, range(2, kern.ndim))
    return lax.conv_general_dilated(
        img,
        kern,
        window_strides=op.subsample,
        padding=op.padding(kern.shape[2:]),
        rhs_dilation=op.filter_dilation,
        dimension_numbers=(f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"),
        feature_group_count=op.num_groups,
    )


def _transposed(function: Callable[[Any], Any], shape: Any, gradient: Any) -> Any:
    operand = jax.ShapeDtypeStruct(shape, gradient.dtype)
    return jax.linear_transpose(function, operand)(gradient)[0]


@converts(Conv)
def conv(op: Conv, img: Any, kern: Any) -> tuple[Any]:
    """Compute a convolution."""
    if 0 in (*img.shape, *kern.shape):
        return (jnp.zeros(op.output_shape(img.shape, kern.shape), img.dtype),)
    return (convolve(op, img, kern),)


@converts(ConvGradInputs, sizes=1)
def conv_grad_inputs(
    op: ConvGradInputs, kern: Any, topgrad: Any, spatial: tuple[int, ...]
) -> tuple[Any]:
    """Compute the gradient of a convolution with respect to the image."""
    shape = (topgrad.shape[0], kern.shape[1] * op.num_groups, *spatial)
    if 0 in (*kern.shape, *topgrad.shape, *shape):
        return (jnp.zeros(shape, kern.dtype),)
    return (_transposed(lambda img: convolve(op, img, kern), shape, topgrad),)


@converts(ConvGradWeights, sizes=1)
def conv_grad_weights(
    op: ConvGradWeights, img: Any, topgrad: Any, spatial: tuple[int, ...]
) -> tuple[Any]:
    """Compute the gradient of a convolution with respect to the filters."""
    shape = (topgrad.shape[1], img.shape[1] // op.num_groups, *spatial)
    if 0 in (*img.shape, *topgrad.shape, *shape):
        return (jnp.zeros(shape, img.dtype),)
    return (_transposed(lambda kern: convolve(op, img, kern), shape, topgrad),)
