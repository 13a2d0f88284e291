"""JAX under the names that `dnnops.link.formulas` calls."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.numpy import (
    arange,
    clip,
    concatenate,
    exp,
    floor,
    isnan,
    log,
    moveaxis,
    sqrt,
    stack,
    where,
)

from dnnops.nnet._validate import accumulator_dtype

__all__ = [
    "add_at",
    "amax",
    "arange",
    "cast",
    "clip",
    "concatenate",
    "count_up",
    "exp",
    "floor",
    "from_packed_bits",
    "halves",
    "integers",
    "isnan",
    "log",
    "moveaxis",
    "packed_bits",
    "sigmoid",
    "sqrt",
    "stack",
    "sum_of_windows",
    "where",
    "widen",
    "widest",
    "word",
    "words",
    "zeros",
]

sigmoid = jax.nn.sigmoid


def cast(x: Any, dtype: str) -> Any:
    """Cast to a dtype, or where JAX is set to 32 bits to the one that it has instead."""
    return jnp.asarray(x).astype(jax.dtypes.canonicalize_dtype(dtype))


def widen(x: Any) -> Any:
    """Cast an array of a floating-point dtype to the one in which sums are taken."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return x.astype(accumulator_dtype(x.dtype))


def widest(x: Any) -> Any:
    """Cast to float64, or where JAX is set to 32 bits to float32."""
    return cast(x, "float64")


def integers(x: Any) -> Any:
    """Cast numbers to integers."""
    return cast(x, "int64")


def amax(x: Any, axis: Any) -> Any:
    """The maximum along axes, which are kept; minus infinity if there is nothing."""
    return jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf)


def zeros(shape: Any, like: Any) -> Any:
    """Zeros of the dtype of an array."""
    return jnp.zeros(shape, like.dtype)


def add_at(x: Any, index: Any, values: Any) -> Any:
    """Add values to the elements of an array that an index names, as often as it does."""
    return x.at[index].add(values)


def sum_of_windows(x: Any, n: int, axis: int, sides: tuple[int, int]) -> Any:
    """The sum over a window around each element along one axis."""
    window = [n if a == axis else 1 for a in range(x.ndim)]
    padding = [sides if a == axis else (0, 0) for a in range(x.ndim)]
    return lax.reduce_window(x, 0.0, lax.add, window, [1] * x.ndim, padding)


# -- words of 32 bits: JAX has those of 64 bits only where it is set to them -----------------


def halves(x: Any) -> tuple[Any, Any]:
    """The upper and the lower words of integers; those of 32 bits have the upper word 0."""
    if isinstance(x, int):
        return jnp.uint32(x >> 32 & 0xFFFFFFFF), jnp.uint32(x & 0xFFFFFFFF)
    if x.dtype.itemsize == 4:
        return jnp.zeros(x.shape, "uint32"), x.astype("uint32")
    return (x >> 32).astype("uint32"), x.astype("uint32")


def word(number: Any) -> Any:
    """Make a word of a number that is not negative."""
    return number.astype("uint32") if isinstance(number, jax.Array) else jnp.uint32(int(number))


def words(x: Any) -> Any:
    """Drop what integers have beyond 32 bits: nothing, here."""
    return x


def count_up(size: int) -> Any:
    """The words 0, 1, 2..."""
    return jnp.arange(size, dtype="uint32")


def packed_bits(x: Any) -> Any:
    """Pack a bool vector into bytes, the first one in the lowest bit."""
    return jnp.packbits(x, bitorder="little")


def from_packed_bits(x: Any, count: int) -> Any:
    """Undo `packed_bits`."""
    return jnp.unpackbits(x, count=count, bitorder="little").astype(bool)
