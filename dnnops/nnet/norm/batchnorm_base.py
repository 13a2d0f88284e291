"""Base class of the batch normalization Ops: operands, and checks of shapes and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from dnnops.arguments import shown
from dnnops.compat import shape_inference
from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.nnet.expressions import ExpressionOp
from dnnops.nnet.norm.widened import widened
from dnnops.nnet.validate import (
    Shape,
    accumulator_dtype,
    check_bounds,
    float64_scalar,
    float_tensor,
    is_int,
    merge_shapes,
    named_operands,
    require_same_dtype,
    show_shape,
)

__all__ = ["BatchNormBase"]


class BatchNormBase(ExpressionOp):
    """Base class of the batch normalization Ops.

    The operands of each Op are of three kinds. Its `data` operands share one shape and one dtype.
    Its `parameter_operands` have as many dimensions, with size 1 on `axes` and the sizes of the
    data elsewhere. They share one dtype: the dtype of the data, or float32 if the data is float16.
    Its `scalars` are float64.

    Parameters
    ----------
    axes : tuple of int
        Axes to compute the statistics over; must not be negative.

    Raises
    ------
    DnnTypeError
        If `axes` is not a tuple or list of ints.
    DnnValueError
        If `axes` is empty, or has negative or repeated entries.
    """

    __props__: tuple[str, ...] = ("axes",)

    #: The operands, by kind.
    data: tuple[str, ...] = ("x",)
    parameter_operands: tuple[str, ...]
    #: The scalars, and the smallest and largest value of each.
    scalars: dict[str, tuple[float, float]] = {}  # noqa: RUF012 - replaced, never altered
    #: All operands, in order.
    operands: tuple[str, ...]
    #: For each result, whether it has the shape of the data (True) or of the parameters (False).
    data_results: tuple[bool, ...]

    def __init__(self, axes: Sequence[int]):
        name = type(self).__name__
        if not isinstance(axes, (tuple, list)) or not all(is_int(a) for a in axes):
            raise DnnTypeError(f"{name}: axes must be a tuple of ints, got {shown(axes)}")
        if not axes or min(axes) < 0 or len(set(axes)) != len(axes):
            raise DnnValueError(
                f"{name}: axes must be one or more distinct, non-negative ints, got {shown(axes)}"
            )
        self.axes = tuple(sorted(int(a) for a in axes))

    def make_node(self, *inputs: Any) -> Apply:
        name = type(self).__name__
        given = named_operands(name, self.operands, inputs)
        first = self.data[0]
        given[first] = float_tensor(name, first, given[first])
        ndim = given[first].type.ndim
        if self.axes[-1] >= ndim:
            raise DnnValueError(f"{name}: axes {self.axes} do not fit {ndim} dimensions of {first}")
        for operand in (*self.data[1:], *self.parameter_operands):
            given[operand] = float_tensor(name, operand, given[operand], ndim)
        for operand, bounds in self.scalars.items():
            given[operand] = float64_scalar(name, operand, given[operand], *bounds)
        dtype = require_same_dtype(name, **{o: given[o] for o in self.data})
        parameter_dtype = require_same_dtype(name, **{o: given[o] for o in self.parameter_operands})
        if parameter_dtype != dtype and (dtype, parameter_dtype) != ("float16", "float32"):
            raise DnnTypeError(
                f"{name}: {', '.join(self.parameter_operands)} have dtype {parameter_dtype}; "
                f"expected {dtype}, as {first} has" + (", or float32" if dtype == "float16" else "")
            )
        shape, parameter_shape = self.check_shapes({o: x.type.shape for o, x in given.items()})
        results = [
            pt.tensor(dtype=dtype, shape=shape)
            if is_data
            else pt.tensor(dtype=parameter_dtype, shape=parameter_shape)
            for is_data in self.data_results
        ]
        return Apply(self, list(given.values()), results)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        shape = shapes[self.operands.index(self.data[0])]
        parameter_shape = self._reduced(shape)
        return [shape if is_data else parameter_shape for is_data in self.data_results]

    def check_shapes(self, shapes: dict[str, Shape]) -> tuple[Shape, Shape]:
        """Check the operands' shapes; return the data and parameter shapes, as far as known."""
        name = type(self).__name__
        shape = list(merge_shapes(name, **{o: shapes[o] for o in self.data}))
        parameter_shape = list(self._reduced(shape))
        for operand in self.parameter_operands:
            for axis, size in enumerate(shapes[operand]):
                if size is not None and parameter_shape[axis] not in (None, size):
                    raise DnnValueError(
                        f"{name}: {operand} must have size 1 on the axes {self.axes} and the "
                        f"sizes of {self.data[0]} on the others, got "
                        + ", ".join(f"{o} {show_shape(s)}" for o, s in shapes.items() if s)
                    )
                if parameter_shape[axis] is None:
                    parameter_shape[axis] = shape[axis] = size
        return tuple(shape), tuple(parameter_shape)

    def _reduced(self, shape: Sequence[Any]) -> Shape:
        return tuple(1 if axis in self.axes else size for axis, size in enumerate(shape))

    def _arrays(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Check the operands' values and return them in a dtype with the digits of a variance."""
        self.check_shapes({o: x.shape for o, x in zip(self.operands, inputs, strict=True)})
        for operand, bounds in self.scalars.items():
            value = float(inputs[self.operands.index(operand)])
            check_bounds(type(self).__name__, operand, value, *bounds)
        return widened(inputs)

    def _variables(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the operands to build expressions from; the symbolic version of `_arrays`."""
        dtype = accumulator_dtype(inputs[0].type.dtype).name
        variables = []
        for operand, x in zip(self.operands, inputs, strict=True):
            if operand in self.parameter_operands:
                x = pt.specify_broadcastable(x, *self.axes)
            variables.append(pt.cast(x, dtype))
        return variables

    def _count(self, x: Any) -> Any:
        """Return the number of elements that a statistic of `x` covers, in the dtype of `x`."""
        return pt.cast(prod(x.shape[axis] for axis in self.axes), x.type.dtype)

    def _sum(self, x: Any) -> Any:
        return x.sum(axis=self.axes, keepdims=True)
