"""How the conversions are registered, and what they ask of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant
from pytensor.link.jax.dispatch.basic import jax_funcify

from dnnops.errors import DnnNotSupportedError
from dnnops.link.jax import library
from dnnops.link.parameters import constant_numbers
from dnnops.link.sizes import StaticSizes

__all__ = ["converts"]


@jax_funcify.register(StaticSizes)
def jax_funcify_static_sizes(op: StaticSizes, **kwargs: Any) -> Callable[..., Any]:
    """Give the sizes as ints, which JAX does not trace."""

    def static_sizes(*arrays: Any) -> Any:
        return op.evaluate(*(np.shape(x) for x in arrays))

    return static_sizes


def converts(*op_types: type, sizes: int = 0) -> Callable[[Any], Any]:
    """Decorate what computes an Op's results in JAX: register it.

    Parameters
    ----------
    *op_types : type
        The classes of Ops.
    sizes : int
        How many of the operands, the last ones, are vectors of sizes.

    Returns
    -------
    callable
        The decorator of a function of the Op and its operands, floating-point ones in the dtype in
        which sums are taken, and sizes as tuples of ints, that gives a tuple of results.  They are
        cast to the dtypes that they are to have.
    """

    def register(compute: Callable[..., tuple]) -> Callable[..., tuple]:
        def funcify(op: Any, node: Apply, **kwargs: Any) -> Callable[..., Any]:
            return _conversion(compute, op, node, sizes)

        for op_type in op_types:
            jax_funcify.register(op_type)(funcify)
        return compute

    return register


def _conversion(
    compute: Callable[..., tuple], op: Any, node: Apply, sizes: int
) -> Callable[..., Any]:
    dtypes = [output.type.dtype for output in node.outputs]
    data = len(node.inputs) - sizes
    numbers = constant_numbers(node)

    def dnnops_op(*operands: Any) -> Any:
        vectors = [
            _static(op, variable, value)
            for variable, value in zip(node.inputs[data:], operands[data:], strict=True)
        ]
        _check(op, node, operands[:data], vectors)
        values = [
            numbers[i] if i in numbers else library.widen(x) for i, x in enumerate(operands[:data])
        ]
        results = compute(op, *values, *vectors)
        cast = [library.cast(r, dtype) for r, dtype in zip(results, dtypes, strict=False)]
        return cast[0] if len(cast) == 1 else tuple(cast)

    return dnnops_op


def _static(op: Any, variable: Any, value: Any) -> tuple[int, ...]:
    """The entries of a vector of sizes."""
    if isinstance(variable, Constant):
        value = variable.data
    try:
        return tuple(np.asarray(value).tolist())
    except jax.errors.TracerArrayConversionError as error:
        raise DnnNotSupportedError(
            f"{op}: JAX compiles a graph for given sizes, which have to be constants or to follow"
            f" from the shapes of arrays; {variable} depends on other values"
        ) from error


def _check(op: Any, node: Apply, data: Any, vectors: Any) -> None:
    """Raise what the Op raises for operands of these shapes: JAX would broadcast some of them."""
    stand_ins = [
        variable
        if isinstance(variable, Constant)
        else pt.tensor(dtype=variable.type.dtype, shape=np.shape(value))
        for variable, value in zip(node.inputs, data, strict=False)
    ]
    op.make_node(*stand_ins, *(np.array(vector, dtype="int64") for vector in vectors))
