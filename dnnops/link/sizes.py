"""Evaluate size operands of Ops while a graph is traced, when only shapes are known.

JAX and PyTorch trace a graph for arrays of given shapes, so everything that depends only on shapes
is known to them. In PyTensor's conversion, however, only the shape itself stays a number. Vectors
and arithmetic on shapes become arrays, whose values are unknown during tracing. `StaticSizes`
replaces such expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, prod, trunc
from operator import and_, eq, floordiv, ge, gt, le, lt, mod, ne, neg, not_, or_, sub, truediv
from typing import Any

import numpy as np
from pytensor import scalar
from pytensor.gradient import DisconnectedGrad
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import (
    ARange,
    Join,
    MakeVector,
    ScalarFromTensor,
    Split,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All, Max, Min, Prod, Sum
from pytensor.tensor.math import Any as AnyTrue
from pytensor.tensor.shape import Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor

__all__ = ["SizeOfValues", "StaticARange", "StaticSizes", "StaticSplit", "sizes_by_shapes"]


# Functions of ints, or of the symbolic ints with which PyTorch traces a graph. They are defined at
# the top level, so that the Op can be pickled.


def _sum(*terms: Any) -> Any:
    return sum(terms)


def _product(*factors: Any) -> Any:
    return prod(factors)


def _chosen(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


def _same(x: Any) -> Any:
    return x


def _known(value: Any) -> Any:
    return value


def _entry(place: int, vector: Any) -> Any:
    return vector[place]  # an itemgetter would break PyTorch's compiled graph


def _tuple(*entries: Any) -> tuple[Any, ...]:
    return entries


def _joined(*vectors: Any) -> Any:
    return sum(vectors, ())


def _part(index: Any, x: Any, *given: Any) -> Any:
    return x[indices_from_subtensor(given, index)[0]]


def _checked(error: Any, message: str, x: Any, *conditions: Any) -> Any:
    for condition in conditions:
        if not condition:
            raise error(message)
    return x


def _elementwise(function: Callable[..., Any], known: tuple[Any, ...], *operands: Any) -> Any:
    """Apply a function to ints and vectors of ints, broadcast to the longest vector."""
    lengths = [len(x) for x in operands if isinstance(x, tuple)]
    if not lengths:
        return function(*known, *operands)
    rows = [x if isinstance(x, tuple) else (x,) for x in operands]
    spread = [x * max(lengths) if len(x) == 1 else x for x in rows]
    return tuple([function(*known, *column) for column in zip(*spread, strict=True)])


def _composite(constants: list[Any], steps: list[Any], result: int, *operands: Any) -> Any:
    """Apply several scalar functions, each to operands, constants or earlier results."""
    values = [*operands, *constants]
    for function, known, of in steps:
        values.append(function(*known, *[values[place] for place in of]))
    return values[result]


_SCALAR_FUNCTIONS: dict[type, Callable[..., Any]] = {
    scalar.Add: _sum,
    scalar.Sub: sub,
    scalar.Mul: _product,
    scalar.TrueDiv: truediv,
    scalar.IntDiv: floordiv,
    scalar.Mod: mod,
    scalar.Neg: neg,
    scalar.Abs: abs,
    scalar.Ceil: ceil,
    scalar.Floor: floor,
    scalar.Trunc: trunc,
    scalar.ScalarMaximum: max,
    scalar.ScalarMinimum: min,
    scalar.EQ: eq,
    scalar.NEQ: ne,
    scalar.LT: lt,
    scalar.LE: le,
    scalar.GT: gt,
    scalar.GE: ge,
    scalar.AND: and_,
    scalar.OR: or_,
    scalar.Switch: _chosen,
    scalar.Identity: _same,
}


#: Reductions of a vector to a number.
_REDUCTIONS: dict[type, Callable[..., Any]] = {
    All: all,
    AnyTrue: any,
    Max: max,
    Min: min,
    Prod: prod,
    Sum: sum,
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
        # Functions, their leading arguments, and the places of the others.
        self.steps: list[tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]] = []
        self.result = self._place(sizes, list(arrays), {})

    def _place(self, variable: Any, arrays: list[Variable], places: dict[Variable, int]) -> int:
        """Return the index of a variable's value among the shapes and the results of the steps."""
        if variable not in places:
            node = variable.owner
            if node is not None and isinstance(node.op, Shape):
                places[variable] = arrays.index(node.inputs[0])
                return places[variable]
            function: Callable[..., Any]
            known: tuple[Any, ...]
            if node is not None and isinstance(node.op, Shape_i):
                of: tuple[int, ...] = (arrays.index(node.inputs[0]),)
                function, known = _entry, (node.op.i,)
            elif node is not None and isinstance(node.op, StaticSizes):
                of = tuple(map(arrays.index, node.inputs))
                function, known = node.op.evaluate, ()
            else:
                function, known, operands = _step(variable)
                of = tuple(self._place(operand, arrays, places) for operand in operands)
            places[variable] = len(arrays) + len(self.steps)
            self.steps.append((function, known, of))
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
        for function, known, places in self.steps:
            values.append(function(*known, *[values[place] for place in places]))
        return values[self.result]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        sizes = self.evaluate(*(x.shape for x in inputs))
        output_storage[0][0] = np.asarray(sizes, dtype=self.type.dtype)


class SizeOfValues(Op):
    """Op that returns a size that does not follow from shapes: ``SizeOfValues(user)(size)``.

    JAX has no sizes that depend on values, so its conversion raises an exception.

    Parameters
    ----------
    user : str
        Name of the Op whose result has this size.
    """

    __props__ = ("user",)

    def __init__(self, user: str):
        self.user = user
        self.view_map = {0: [0]}

    def make_node(self, size: Variable) -> Apply:  # type: ignore[override]
        return Apply(self, [size], [size.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0]


class StaticARange(ARange):
    """`ARange` of numbers that JAX knows while it traces a graph."""


class StaticSplit(Split):
    """`Split` into sizes that JAX knows while it traces a graph."""


def _step(variable: Any) -> tuple[Callable[..., Any], tuple[Any, ...], list[Any]]:
    """Return the function that computes a variable, its leading arguments, and its operands."""
    if isinstance(variable, Constant):
        value = np.asarray(variable.data)
        return _known, (tuple(value.tolist()) if value.ndim else value.item(),), []
    if variable.owner is None:
        raise _UnknownOpError(variable)
    op, inputs = variable.owner.op, variable.owner.inputs
    if isinstance(op, MakeVector):
        return _tuple, (), inputs
    if isinstance(op, Join):
        # In older releases of PyTensor, the axis is also an operand.
        return _joined, (), [x for x in inputs if x.type.ndim == 1]
    if isinstance(op, TensorFromScalar | ScalarFromTensor | DisconnectedGrad):
        return _same, (), inputs
    if isinstance(op, SpecifyShape):
        return _same, (), inputs[:1]
    if isinstance(op, CheckAndRaise):
        return _checked, (op.exc_type, op.msg), inputs
    if isinstance(op, Subtensor):
        return _part, (op.idx_list,), inputs
    if isinstance(op, DimShuffle) and op.new_order in (("x",), ()):
        return (_tuple, (), inputs) if op.new_order else (_entry, (0,), inputs)
    if type(op) in _REDUCTIONS and inputs[0].type.ndim == 1:
        return _REDUCTIONS[type(op)], (), inputs
    if isinstance(op, Elemwise):
        place = variable.owner.outputs.index(variable)
        types = [x.type.dtype for x in inputs], variable.type.dtype
        return _elementwise, _scalar_function(op.scalar_op, *types, place), inputs
    raise _UnknownOpError(op)


def _scalar_function(
    op: Any, given: list[str], dtype: str, output: int = 0
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function of a scalar Op, and its leading arguments."""
    if {*given, dtype} & {"float16", "float32"}:  # Python's numbers are not rounded to these
        raise _UnknownOpError(op)
    if isinstance(op, scalar.Cast):
        if "float64" not in given or dtype == "float64":
            return _same, ()
        if "int" not in dtype:
            raise _UnknownOpError(op)
        return trunc, ()
    if isinstance(op, scalar.Invert) and dtype == "bool":
        return not_, ()
    if not isinstance(op, scalar.Composite):
        if type(op) not in _SCALAR_FUNCTIONS:
            raise _UnknownOpError(op)
        return _SCALAR_FUNCTIONS[type(op)], ()
    places = {x: place for place, x in enumerate(op.fgraph.inputs)}
    constants: list[Any] = []
    steps: list[Any] = []
    for node in op.fgraph.toposort():
        for x in node.inputs:
            if isinstance(x, Constant) and x not in places:
                places[x] = len(op.fgraph.inputs) + len(constants)
                constants.append(np.asarray(x.data).item())
    begin = len(op.fgraph.inputs) + len(constants)
    for node in op.fgraph.toposort():
        places[node.outputs[0]] = begin + len(steps)
        types = [x.type.dtype for x in node.inputs], node.outputs[0].type.dtype
        function, known = _scalar_function(node.op, *types)
        steps.append((function, known, [places[x] for x in node.inputs]))
    return _composite, (constants, steps, places[op.fgraph.outputs[output]])


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
        if isinstance(variable.owner.op, Shape | Shape_i | StaticSizes):
            arrays |= dict.fromkeys(variable.owner.inputs)
        else:
            pending += variable.owner.inputs
    try:
        found: Any = StaticSizes(list(arrays), sizes)(*arrays)
    except _UnknownOpError:
        return None
    return found
