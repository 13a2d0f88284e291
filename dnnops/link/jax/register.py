"""Register conversions for JAX, and check the operands of converted nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.graph.basic import Apply, Constant
from pytensor.link.jax.dispatch.basic import jax_funcify

from dnnops.errors import DnnNotSupportedError
from dnnops.link.bounds import Bounds
from dnnops.link.conversions import Conversions, check_node, convert_expansions
from dnnops.link.jax import library
from dnnops.link.sizes import StaticSizes

__all__ = ["converts"]


@jax_funcify.register(StaticSizes)
def jax_funcify_static_sizes(op: StaticSizes, **kwargs: Any) -> Callable[..., Any]:
    """Convert sizes to ints, which JAX doesn't trace."""

    def static_sizes(*arrays: Any) -> Any:
        return op.evaluate(*(np.shape(x) for x in arrays))

    return static_sizes


class _JaxConversions(Conversions):
    """Conversions for JAX, which compiles a graph for given shapes and can't raise at run time."""

    def check(self, op: Any, node: Apply, data: Sequence[Any], vectors: Sequence[Any]) -> None:
        check_node(op, node, [np.shape(x) for x in data], vectors)

    def sizes(self, op: Any, variable: Any, value: Any) -> Sequence[int]:
        try:
            return tuple(np.asarray(value).tolist())
        except jax.errors.TracerArrayConversionError as error:
            raise DnnNotSupportedError(
                f"{op}: JAX compiles a graph for given sizes, which must be constants or depend"
                f" only on the shapes of arrays; {variable} depends on other values"
            ) from error

    def bounded(self, variable: Any, x: Any, bounds: Bounds) -> tuple[Any, Any]:
        if isinstance(variable, Constant):
            bounds.require(np.asarray(variable.data))
            return x, None
        return x, bounds.fits(jnp.asarray(x))


converts = _JaxConversions(jax_funcify, library)
convert_expansions(jax_funcify, library)
