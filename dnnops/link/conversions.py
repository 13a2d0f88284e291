"""Register conversions with PyTensor, and add the checks and casts that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant

from dnnops.link.bounds import Bounds, bounds_of
from dnnops.link.parameters import constant_numbers
from dnnops.nnet.expressions import ExpandableOp

__all__ = ["Conversions", "check_node", "convert_expansions"]


class Conversions:
    """Factory of decorators that register conversions: ``@converts(OpType, sizes=0)``.

    The decorated function takes the Op and its operands, and returns a tuple of results.
    Floating-point operands are passed in the dtype of the accumulator, sizes as tuples of ints.
    The results are cast to the dtypes of the Op's outputs.

    Parameters
    ----------
    funcify : callable
        PyTensor's dispatcher for the library.
    library : module
        Module with the functions that `dnnops.link.formulas` calls.
    """

    def __init__(self, funcify: Any, library: Any):
        self.funcify = funcify
        self.library = library

    def __call__(self, *op_types: type, sizes: int = 0) -> Callable[[Any], Any]:
        """Return a decorator that registers a conversion.

        Parameters
        ----------
        *op_types : type
            Op classes to convert.
        sizes : int
            Number of trailing operands that are vectors of sizes.
        """

        def register(compute: Callable[..., tuple]) -> Callable[..., tuple]:
            def funcify(op: Any, node: Apply, **kwargs: Any) -> Callable[..., Any]:
                return self._conversion(compute, op, node, sizes)

            for op_type in op_types:
                self.funcify.register(op_type)(funcify)
            return compute

        return register

    def check(self, op: Any, node: Apply, data: Sequence[Any], vectors: Sequence[Any]) -> None:
        """Raise the Op's exception if shapes of operands or vectors of sizes are invalid."""
        raise NotImplementedError

    def sizes(self, op: Any, variable: Any, value: Any) -> Sequence[int]:
        """Return the entries of a non-constant vector of sizes."""
        raise NotImplementedError

    def bounded(self, variable: Any, x: Any, bounds: Bounds) -> tuple[Any, Any]:
        """Raise if an operand is out of bounds and the library can raise exceptions.

        Returns
        -------
        operand : array
            Operand to use in the computation.
        fits : array of bool or None
            Whether each entry is within the bounds; None if all of them are known to be.
        """
        raise NotImplementedError

    def _conversion(
        self, compute: Callable[..., tuple], op: Any, node: Apply, sizes: int
    ) -> Callable[..., Any]:
        _check_constants(op, node)
        dtypes = [output.type.dtype for output in node.outputs]
        inputs: list[Any] = list(node.inputs)
        data = len(inputs) - sizes
        numbers = constant_numbers(node)
        # Read constants now: reading a tensor later would break PyTorch's compiled graph.
        constants = {
            i: tuple(x.data.tolist())
            for i, x in enumerate(inputs[data:], start=data)
            if isinstance(x, Constant)
        }

        def dnnops_op(*operands: Any) -> Any:
            vectors = [
                constants[i] if i in constants else self.sizes(op, inputs[i], operands[i])
                for i in range(data, len(operands))
            ]
            values = list(operands[:data])
            self.check(op, node, values, vectors)
            invalid, values = self._check_bounds(op, inputs, values, numbers)
            values = [
                numbers[i] if i in numbers else self.library.widen(x) for i, x in enumerate(values)
            ]
            results = []
            for result, dtype in zip(compute(op, *values, *vectors), dtypes, strict=False):
                if invalid is not None and dtype.startswith("float"):
                    result = self.library.where(invalid, float("nan"), result)
                results.append(self.library.cast(result, dtype))
            return results[0] if len(results) == 1 else tuple(results)

        return dnnops_op

    def _check_bounds(
        self, op: Any, inputs: list[Any], values: list[Any], numbers: dict[int, Any]
    ) -> tuple[Any, list[Any]]:
        """Return whether an operand is invalid, so that all results are NaN, and checked values.

        The first is None if no operand makes the results NaN.
        """
        invalid = None
        for i, bounds in bounds_of(op, [getattr(x, "shape", ()) for x in values]).items():
            if i in numbers:  # checked by the Op
                continue
            values[i], fits = self.bounded(inputs[i], values[i], bounds)
            if fits is not None and bounds.makes_nan:
                invalid = ~fits.all() if invalid is None else invalid | ~fits.all()
        return invalid, values


def convert_expansions(funcify: Any, library: Any) -> None:
    """Let a library compute the Ops without conversions of their own by their expressions.

    Parameters
    ----------
    funcify : callable
        PyTensor's dispatcher for the library.
    library : module
        Module with the function ``cast``.
    """

    @funcify.register(ExpandableOp)
    def funcify_expandable(op: ExpandableOp, node: Apply, **kwargs: Any) -> Callable[..., Any]:
        inputs = [x.type() for x in node.inputs]
        graph: Any = OpFromGraph(inputs, op.expressions(*inputs))
        compute = funcify(graph, node=graph.make_node(*node.inputs), **kwargs)
        dtypes = [output.type.dtype for output in node.outputs]

        def expression(*operands: Any) -> Any:
            # PyTensor's conversion to JAX returns float64 for a sum of float32.
            results = compute(*operands)
            results = results if isinstance(results, (tuple, list)) else [results]
            cast = [library.cast(z, dtype) for z, dtype in zip(results, dtypes, strict=True)]
            return cast[0] if len(cast) == 1 else tuple(cast)

        return expression


def _check_constants(op: Any, node: Apply) -> None:
    """Raise the Op's exception for invalid constants, including those folded by rewrites."""
    op.make_node(*node.inputs)
    for i, bounds in bounds_of(op, [getattr(x.type, "shape", ()) for x in node.inputs]).items():
        variable: Any = node.inputs[i]
        if isinstance(variable, Constant):
            bounds.require(np.asarray(variable.data))


def check_node(op: Any, node: Apply, shapes: Sequence[Any], vectors: Sequence[Any]) -> None:
    """Raise the Op's exception if shapes of operands or vectors of sizes are invalid.

    Parameters
    ----------
    op : Op
    node : Apply
    shapes : sequence of tuple of int
        Shapes of the operands that aren't vectors of sizes.
    vectors : sequence of tuple of int
        Values of the vectors of sizes.
    """
    stand_ins = [
        variable
        if isinstance(variable, Constant)
        else pt.tensor(dtype=variable.type.dtype, shape=shape)
        for variable, shape in zip(node.inputs, shapes, strict=False)
    ]
    op.make_node(*stand_ins, *(np.array(vector, dtype="int64") for vector in vectors))
