"""Register conversions for JAX, and check the operands of converted nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.graph.basic import Apply, Constant
from pytensor.link.jax.dispatch.basic import jax_funcify

from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.link.bounds import Bounds
from dnnops.link.conversions import Conversions, check_node, convert_expansions
from dnnops.link.jax import library
from dnnops.link.sizes import SizeOfValues, StaticARange, StaticSizes, StaticSplit

__all__ = ["converts"]


@jax_funcify.register(StaticSizes)
def jax_funcify_static_sizes(op: StaticSizes, **kwargs: Any) -> Callable[..., Any]:
    """Convert sizes to ints, which JAX doesn't trace."""

    def static_sizes(*arrays: Any) -> Any:
        return op.evaluate(*(np.shape(x) for x in arrays))

    return static_sizes


@jax_funcify.register(SizeOfValues)
def jax_funcify_size_of_values(op: SizeOfValues, node: Apply, **kwargs: Any) -> Callable[..., Any]:
    """Raise an exception for a size that JAX doesn't know while it traces a graph."""

    def size_of_values(size: Any) -> Any:
        return _known(op.user, node.inputs[0], size)

    return size_of_values


@jax_funcify.register(StaticARange)
def jax_funcify_static_arange(op: StaticARange, **kwargs: Any) -> Callable[..., Any]:
    """Convert a range of known length."""

    def static_arange(start: Any, stop: Any, step: Any) -> Any:
        return jnp.arange(int(start), int(stop), int(step), dtype=op.dtype)

    return static_arange


@jax_funcify.register(StaticSplit)
def jax_funcify_static_split(op: StaticSplit, node: Apply, **kwargs: Any) -> Callable[..., Any]:
    """Convert a split into parts of known sizes."""
    axis: Any = node.inputs[1]
    place = int(axis.data)

    def static_split(x: Any, axis: Any, sizes: Any) -> Any:
        if sum(sizes) != x.shape[place]:
            raise DnnValueError(
                f"Split: the sizes {tuple(sizes)} do not add up to the {x.shape[place]} elements"
            )
        return jnp.split(x, np.cumsum(sizes[:-1]), axis=place)

    return static_split


def _known(user: Any, variable: Any, value: Any) -> Any:
    """Return sizes as an array of NumPy; raise if JAX traces them."""
    try:
        return np.asarray(value)
    except jax.errors.TracerArrayConversionError as error:
        raise DnnNotSupportedError(
            f"{user}: JAX compiles a graph for given sizes, which must be constants or depend"
            f" only on the shapes of arrays; {variable} depends on other values"
        ) from error


class _JaxConversions(Conversions):
    """Conversions for JAX, which compiles a graph for given shapes and can't raise at run time."""

    def check(self, op: Any, node: Apply, data: Sequence[Any], vectors: Sequence[Any]) -> None:
        check_node(op, node, [np.shape(x) for x in data], vectors)

    def sizes(self, op: Any, variable: Any, value: Any) -> Sequence[int]:
        return tuple(_known(op, variable, value).tolist())

    def bounded(self, variable: Any, x: Any, bounds: Bounds) -> tuple[Any, Any]:
        if isinstance(variable, Constant):
            bounds.require(np.asarray(variable.data))
            return x, None
        return x, bounds.fits(jnp.asarray(x))


converts = _JaxConversions(jax_funcify, library)
convert_expansions(jax_funcify, library)
