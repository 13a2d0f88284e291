"""Evaluate size operands of Ops while a graph is traced, when only shapes are known.

JAX and PyTorch trace a graph for arrays of given shapes, so everything that depends only on shapes
is known to them. In PyTensor's conversion, however, only the shape itself stays a number. Vectors
and arithmetic on shapes become arrays, whose values are unknown during tracing. `StaticSizes`
replaces such expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from pytensor import scalar
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor

__all__ = ["StaticSizes", "sizes_by_shapes"]

#: Functions of scalar Ops for ints, or for the symbolic ints with which PyTorch traces a graph.
_SCALAR_FUNCTIONS: dict[type, Callable[..., Any]] = {
    scalar.Add: lambda *terms: sum(terms),
    scalar.Sub: lambda a, b: a - b,
    scalar.Mul: lambda *factors: prod(factors),
    scalar.IntDiv: lambda a, b: a // b,
    scalar.Mod: lambda a, b: a % b,
    scalar.Neg: lambda a: -a,
    scalar.Abs: abs,
    scalar.ScalarMaximum: max,
    scalar.ScalarMinimum: min,
    scalar.EQ: lambda a, b: a == b,
    scalar.NEQ: lambda a, b: a != b,
    scalar.LT: lambda a, b: a < b,
    scalar.LE: lambda a, b: a <= b,
    scalar.GT: lambda a, b: a > b,
    scalar.GE: lambda a, b: a >= b,
    scalar.AND: lambda a, b: a & b,
    scalar.OR: lambda a, b: a | b,
    scalar.Switch: lambda condition, a, b: a if condition else b,
    scalar.Cast: lambda a: a,
    scalar.Identity: lambda a: a,
}


class _UnknownOpError(Exception):
    """Raised for a variable or an Op that `StaticSizes` can't evaluate."""


class StaticSizes(Op):
    """Op that computes sizes from the shapes of arrays: ``StaticSizes(...)(*arrays)``.

    Parameters
    ----------
    arrays : sequence of Variable
        Arrays whose shapes determine the sizes.
    sizes : Variable
        Integer or vector of integers that depends only on the shapes of `arrays`.

    Raises
    ------
    _UnknownOpError
        If `sizes` depends on anything else, or if its graph contains an unsupported Op.
    """

    def __init__(self, arrays: Sequence[Variable], sizes: Variable):
        self.type = sizes.type
        self.steps: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
        self.result = self._place(sizes, list(arrays), {})

    def _place(self, variable: Any, arrays: list[Variable], places: dict[Variable, int]) -> int:
        """Return the index of a variable's value among the shapes and the results of the steps."""
        if variable not in places:
            node = variable.owner
            if node is not None and isinstance(node.op, Shape):
                places[variable] = arrays.index(node.inputs[0])
                return places[variable]
            if node is not None and isinstance(node.op, Shape_i):
                of: tuple[int, ...] = (arrays.index(node.inputs[0]),)
                function = _entry(node.op.i)
            else:
                function, operands = _step(variable)
                of = tuple(self._place(operand, arrays, places) for operand in operands)
            places[variable] = len(arrays) + len(self.steps)
            self.steps.append((function, of))
        return places[variable]

    def make_node(self, *arrays: Variable) -> Apply:  # type: ignore[override]
        return Apply(self, list(arrays), [self.type()])

    def evaluate(self, *shapes: Sequence[int]) -> Any:
        """Compute the sizes.

        Parameters
        ----------
        *shapes : sequence of int
            Shapes of the arrays.

        Returns
        -------
        int or tuple of int
        """
        values: list[Any] = list(shapes)
        for function, places in self.steps:
            values.append(function(*[values[place] for place in places]))
        return values[self.result]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        sizes = self.evaluate(*(x.shape for x in inputs))
        output_storage[0][0] = np.asarray(sizes, dtype=self.type.dtype)


def _step(variable: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Return the function that computes a variable, other than a shape, and its operands."""
    if isinstance(variable, Constant):
        value = np.asarray(variable.data)
        known = tuple(value.tolist()) if value.ndim else value.item()
        return lambda: known, []
    if variable.owner is None:
        raise _UnknownOpError(variable)
    op, inputs = variable.owner.op, variable.owner.inputs
    if isinstance(op, MakeVector):
        return (lambda *entries: entries), inputs
    if isinstance(op, Join):
        # In older releases of PyTensor, the axis is also an operand.
        return (lambda *vectors: sum(vectors, ())), [x for x in inputs if x.type.ndim == 1]
    if isinstance(op, TensorFromScalar | ScalarFromTensor):
        return (lambda x: x), inputs
    if isinstance(op, SpecifyShape):
        return (lambda x: x), inputs[:1]
    if isinstance(op, CheckAndRaise):
        return _checked(op), inputs
    if isinstance(op, Subtensor):
        parts = op.idx_list
        return (lambda x, *given: x[indices_from_subtensor(given, parts)[0]]), inputs
    if isinstance(op, DimShuffle) and op.new_order in (("x",), ()):
        return (_as_vector if op.new_order else (lambda x: x[0])), inputs
    if isinstance(op, Elemwise):
        return _elementwise(op.scalar_op, variable.owner.outputs.index(variable)), inputs
    raise _UnknownOpError(op)


def _entry(place: int) -> Callable[..., Any]:
    return lambda vector: vector[place]  # an itemgetter would break PyTorch's compiled graph


def _as_vector(x: Any) -> tuple[Any]:
    return (x,)


def _checked(op: CheckAndRaise) -> Callable[..., Any]:
    error, message = op.exc_type, op.msg

    def check(x: Any, *conditions: Any) -> Any:
        for condition in conditions:
            if not condition:
                raise error(message)
        return x

    return check


def _elementwise(op: Any, output: int) -> Callable[..., Any]:
    """Return a function of ints and vectors of ints, broadcast to the longest vector."""
    function = _scalar_function(op, output)

    def apply(*operands: Any) -> Any:
        lengths = [len(x) for x in operands if isinstance(x, tuple)]
        if not lengths:
            return function(*operands)
        rows = [x if isinstance(x, tuple) else (x,) for x in operands]
        spread = [x * max(lengths) if len(x) == 1 else x for x in rows]
        return tuple([function(*column) for column in zip(*spread, strict=True)])

    return apply


def _scalar_function(op: Any, output: int = 0) -> Callable[..., Any]:
    if not isinstance(op, scalar.Composite):
        if type(op) not in _SCALAR_FUNCTIONS:
            raise _UnknownOpError(op)
        return _SCALAR_FUNCTIONS[type(op)]
    places = {x: place for place, x in enumerate(op.fgraph.inputs)}
    constants: list[Any] = []
    steps: list[tuple[Callable[..., Any], list[int]]] = []
    for node in op.fgraph.toposort():
        for x in node.inputs:
            if isinstance(x, Constant) and x not in places:
                places[x] = len(op.fgraph.inputs) + len(constants)
                constants.append(np.asarray(x.data).item())
    begin = len(op.fgraph.inputs) + len(constants)
    for node in op.fgraph.toposort():
        places[node.outputs[0]] = begin + len(steps)
        steps.append((_scalar_function(node.op), [places[x] for x in node.inputs]))
    result = places[op.fgraph.outputs[output]]

    def composite(*operands: Any) -> Any:
        values = [*operands, *constants]
        for function, of in steps:
            values.append(function(*[values[place] for place in of]))
        return values[result]

    return composite


def sizes_by_shapes(sizes: Variable) -> Variable | None:
    """Rewrite sizes as the result of one `StaticSizes`.

    Parameters
    ----------
    sizes : Variable
        Integer or vector of integers.

    Returns
    -------
    Variable or None
        None if `sizes` depends on anything but shapes and constants, or on unsupported Ops.
    """
    arrays: dict[Variable, None] = {}
    pending, seen = [sizes], set()
    while pending:
        variable = pending.pop()
        if variable in seen or variable.owner is None:
            continue
        seen.add(variable)
        if isinstance(variable.owner.op, Shape | Shape_i):
            arrays[variable.owner.inputs[0]] = None
        else:
            pending += variable.owner.inputs
    try:
        found: Any = StaticSizes(list(arrays), sizes)(*arrays)
    except _UnknownOpError:
        return None
    return found
