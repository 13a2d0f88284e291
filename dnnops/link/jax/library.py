"""JAX implementations of the functions that `dnnops.link.formulas` calls."""

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

from dnnops.nnet.validate import accumulator_dtype

__all__ = [
    "add_at",
    "amax",
    "arange",
    "cast",
    "clip",
    "concatenate",
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
    "uint32_range",
    "where",
    "widen",
    "widest",
    "word",
    "words",
    "zeros",
]

sigmoid = jax.nn.sigmoid


def cast(x: Any, dtype: str) -> Any:
    """Cast to a dtype, or to its 32-bit counterpart if 64-bit dtypes are disabled in JAX."""
    return jnp.asarray(x).astype(jax.dtypes.canonicalize_dtype(dtype))


def widen(x: Any) -> Any:
    """Cast a floating-point array to the dtype of its accumulator."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return x.astype(accumulator_dtype(x.dtype))


def widest(x: Any) -> Any:
    """Cast to float64, or to float32 if 64-bit dtypes are disabled in JAX."""
    return cast(x, "float64")


def integers(x: Any) -> Any:
    """Cast to int64, or to int32 if 64-bit dtypes are disabled in JAX."""
    return cast(x, "int64")


def amax(x: Any, axis: Any) -> Any:
    """Return the maximum along axes, which are kept; minus infinity if there are no elements."""
    return jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf)


def zeros(shape: Any, like: Any) -> Any:
    """Return zeros with the dtype of the array `like`."""
    return jnp.zeros(shape, like.dtype)


def add_at(x: Any, index: Any, values: Any) -> Any:
    """Add values to the indexed elements of an array; repeated indices accumulate."""
    return x.at[index].add(values)


def sum_of_windows(x: Any, n: int, axis: int, sides: tuple[int, int]) -> Any:
    """Return the sums over a window around each element along one axis."""
    window = [n if a == axis else 1 for a in range(x.ndim)]
    padding = [sides if a == axis else (0, 0) for a in range(x.ndim)]
    return lax.reduce_window(x, 0.0, lax.add, window, [1] * x.ndim, padding)


# -- 32-bit words: JAX supports 64-bit integers only if they are enabled ---------------------


def halves(x: Any) -> tuple[Any, Any]:
    """Return the upper and the lower words of integers; the upper word of 32-bit ones is 0."""
    if isinstance(x, int):
        return jnp.uint32(x >> 32 & 0xFFFFFFFF), jnp.uint32(x & 0xFFFFFFFF)
    if x.dtype.itemsize == 4:
        return jnp.zeros(x.shape, "uint32"), x.astype("uint32")
    return (x >> 32).astype("uint32"), x.astype("uint32")


def word(number: Any) -> Any:
    """Convert a non-negative number to a word."""
    return number.astype("uint32") if isinstance(number, jax.Array) else jnp.uint32(int(number))


def words(x: Any) -> Any:
    """Truncate integers to 32 bits: a no-op, since words are uint32 here."""
    return x


def uint32_range(size: int) -> Any:
    """Return the words 0, 1, 2..."""
    return jnp.arange(size, dtype="uint32")


def packed_bits(x: Any) -> Any:
    """Pack a bool vector into bytes, starting with the lowest bit."""
    return jnp.packbits(x, bitorder="little")


def from_packed_bits(x: Any, count: int) -> Any:
    """Undo `packed_bits`."""
    return jnp.unpackbits(x, count=count, bitorder="little").astype(bool)
