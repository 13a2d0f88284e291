"""Convert pooling to `jax.lax.reduce_window`, and gradients to its transposes."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dnnops.link.formulas.pool import divisor, is_empty, padding_after
from dnnops.link.jax import library
from dnnops.link.jax.register import converts
from dnnops.nnet import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from dnnops.nnet.pool.geometry import windows_shape
from dnnops.nnet.pool.op import PoolBase

Sizes = tuple[int, ...]


def _reduced(op: PoolBase, is_max: bool, sizes: tuple[Sizes, ...], x: Any) -> Any:
    """Return the maximum or the sum of each window."""
    window, step, pad = sizes
    padding = ((0, 0), (0, 0), *zip(pad, padding_after(op, x.shape, sizes), strict=True))
    function, start = (lax.max, -jnp.inf) if is_max else (lax.add, 0.0)
    return lax.reduce_window(x, start, function, (1, 1, *window), (1, 1, *step), padding)


@converts(Pool, sizes=3)
def pool(op: Pool, x: Any, *sizes: Sizes) -> tuple[Any]:
    """Compute the pooled image."""
    if is_empty(op, x.shape, sizes):
        ws, stride, pad = sizes
        return (jnp.zeros(windows_shape(x.shape, ws, stride, pad, op.ignore_border), x.dtype),)
    if op.computes == "max":
        return (_reduced(op, True, sizes, x),)
    return (_reduced(op, False, sizes, x) / divisor(library, op, x.shape, sizes),)


@converts(AveragePoolGrad, sizes=3)
def average_gradient(op: AveragePoolGrad, x: Any, gz: Any, *sizes: Sizes) -> tuple[Any]:
    """Compute the gradient of sum or average pooling."""
    if is_empty(op, x.shape, sizes):
        return (jnp.zeros_like(x),)
    share = (gz / divisor(library, op, x.shape, sizes)).astype(gz.dtype)
    operand = jax.ShapeDtypeStruct(x.shape, gz.dtype)
    return jax.linear_transpose(partial(_reduced, op, False, sizes), operand)(share)


def _comparable(x: Any) -> Any:
    """Return an array whose first maximum is at the index that the Op finds for `x`.

    NaN counts as the largest number, and infinities are replaced by finite numbers, so that the
    padding is less than any pixel.
    """
    return jnp.where(jnp.isnan(x), jnp.inf, jnp.nan_to_num(x))


@converts(MaxPoolGrad, sizes=3)
def max_gradient(op: MaxPoolGrad, x: Any, maxout: Any, gz: Any, *sizes: Sizes) -> tuple[Any]:
    """Compute the gradient of max pooling."""
    if is_empty(op, x.shape, sizes):
        return (jnp.zeros_like(x),)
    return jax.vjp(partial(_reduced, op, True, sizes), _comparable(x))[1](gz)


def _first_maxima(op: PoolBase, sizes: tuple[Sizes, ...], x: Any, places: Any) -> Any:
    """Return the place of the first maximum of each window.

    The tangent that JAX defines for such a reduction takes any of several equal maxima.
    """
    window, step, pad = sizes
    padding = ((0, 0), (0, 0), *zip(pad, padding_after(op, x.shape, sizes), strict=True))

    def first(one: Any, other: Any) -> Any:
        (x, place), (y, place_y) = one, other
        takes_one = (x > y) | ((x == y) & (place < place_y))
        return jnp.where(takes_one, x, y), jnp.where(takes_one, place, place_y)

    start = jnp.array(-jnp.inf, x.dtype), jnp.array(jnp.iinfo("int32").max, "int32")
    dims, strides = (1, 1, *window), (1, 1, *step)
    return lax.reduce_window((x, places), start, first, dims, strides, padding)[1]


@converts(MaxPoolGradGrad, sizes=3)
def max_tangent(op: MaxPoolGradGrad, x: Any, maxout: Any, ggx: Any, *sizes: Sizes) -> tuple[Any]:
    """Compute the tangent of max pooling, given the tangent of the image."""
    if is_empty(op, x.shape, sizes):
        return (jnp.zeros_like(maxout),)
    number = prod(x.shape[2:])
    flat = lax.broadcasted_iota("int32", (*x.shape[:2], number), 2)
    places = _first_maxima(op, sizes, _comparable(x), flat.reshape(x.shape))
    chosen = jnp.take_along_axis(
        ggx.reshape(flat.shape), places.reshape((*x.shape[:2], -1)), axis=2
    )
    return (chosen.reshape(places.shape),)
