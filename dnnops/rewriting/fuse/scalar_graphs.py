"""The scalar graphs of elementwise Ops on the device, to take them apart and build others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.graph.basic import Apply, Constant
from pytensor.scalar import get_scalar_type
from pytensor.scalar.basic import (
    GE,
    GT,
    LE,
    LT,
    Add,
    Cast,
    Composite,
    Maximum,
    Mul,
    Switch,
    cast,
    mul,
)

from dnnops.dtypes import host_dtype
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import is_on_device

__all__ = ["Loop", "depends_on", "uncast"]

_RELATIONS = {LE: "<=", LT: "<", GE: ">=", GT: ">"}
_MIRRORED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<"}


def _scalar(x: Any) -> Any:
    return get_scalar_type(host_dtype(x.type.dtype))()


def uncast(x: Any, *, between_floats: bool = True) -> Any:
    """Return what `x` is converted from; by default, only by conversions of floats."""
    while x.owner is not None and isinstance(x.owner.op, Cast):
        (inner,) = x.owner.inputs
        if between_floats and not inner.type.dtype.startswith("float"):
            break
        x = inner
    return x


def depends_on(x: Any, node: Apply) -> bool:
    """Return whether a variable of the graph is computed from results of a node."""
    seen: set[Apply] = set()
    waiting = [x.owner] if x.owner is not None else []
    while waiting:
        found = waiting.pop()
        if found is node:
            return True
        if found not in seen:
            seen.add(found)
            waiting += [v.owner for v in found.inputs if v.owner is not None]
    return False


class Loop:
    """The scalar graph of a `GpuElemwise` node.

    Parameters
    ----------
    node : Apply
        The node.

    Attributes
    ----------
    inputs, outputs : list of ScalarVariable
        Inputs and outputs of the scalar graph.
    variables : dict
        The node's operands by the inputs.
    """

    def __init__(self, node: Apply):
        op = node.op.scalar_op
        if isinstance(op, Composite):
            self.inputs, self.outputs = list(op.fgraph.inputs), list(op.fgraph.outputs)
        else:
            self.inputs = [_scalar(x) for x in node.inputs]
            self.outputs = op.make_node(*self.inputs).outputs
        self.variables: dict[Any, Any] = dict(zip(self.inputs, node.inputs, strict=True))

    def number(self, x: Any) -> float | None:
        """Return the value of a constant, or None."""
        x = uncast(x, between_floats=False)
        x = self.variables.get(x, x)
        return float(x.data) if isinstance(x, Constant) and not getattr(x.type, "ndim", 0) else None

    def operands(self, x: Any, kind: type) -> list[Any]:
        """Return the operands if `x` is the result of a scalar Op of the given type."""
        node = uncast(x).owner
        return list(node.inputs) if node is not None and isinstance(node.op, kind) else []

    def relation(self, x: Any, subject: Callable[[Any], bool], bound: float = 0.0) -> str | None:
        """Return '<=', '<', '>=' or '>' if `x` compares a subject with a bound in this way."""
        x = uncast(x, between_floats=False)
        kind = None if x.owner is None else _RELATIONS.get(type(x.owner.op))
        if kind is None:
            return None
        a, b = map(uncast, x.owner.inputs)
        if subject(a) and self.number(b) == bound:
            return kind
        return _MIRRORED[kind] if subject(b) and self.number(a) == bound else None

    def sum_of_two(self, x: Any) -> list[Any]:
        """Return both inputs of the loop that `x` is the sum of, or an empty list."""
        terms = [uncast(term) for term in self.operands(x, Add)]
        return terms if len(terms) == 2 and all(t in self.variables for t in terms) else []

    def relu_of(self, x: Any) -> Any:
        """Return what `x` is relu of, with NaN for NaN, or None."""
        if len(found := self.operands(x, Switch)) == 3:
            of = uncast(found[2])
            if self.number(found[1]) == 0 and self.relation(found[0], lambda v: v is of) == "<=":
                return of
        elif len(found := self.operands(x, Maximum)) == 2:
            zeros = [self.number(v) == 0 for v in found]
            if sum(zeros) == 1:
                return uncast(found[zeros.index(False)])
        return None

    def is_relu_or_sum(self, x: Any) -> bool:
        """Return whether `x` is relu of something, or the sum of two inputs of the loop."""
        return self.relu_of(x) is not None or bool(self.sum_of_two(x))

    def masked(self, x: Any, relation: Callable[[Any], str | None]) -> tuple[str, Any] | None:
        """Find out whether `x` is an array that is set to zero where relu has the slope 0.

        Parameters
        ----------
        x : ScalarVariable
            Expression.
        relation : callable
            Returns how an expression compares relu's operand with zero, or None.

        Returns
        -------
        tuple or None
            The comparison, and the array.
        """
        if found := self.operands(x, Switch):
            condition, yes, no = found
            how = relation(condition)
            if how in ("<=", "<") and self.number(yes) == 0:
                return how, no
            if how in (">=", ">") and self.number(no) == 0:
                return how, yes
        for factor in (found := self.operands(x, Mul)):
            if (how := relation(factor)) in (">=", ">"):
                rest = [v for v in found if v is not factor]
                if len(rest) == len(found) - 1:
                    return how, rest[0] if len(rest) == 1 else mul(*rest)
        return None

    def array(self, x: Any, dtype: str) -> Any:
        """Return a device variable for an expression, computed by another loop if need be."""
        if uncast(x) in self.variables:
            found = self.variables[uncast(x)]
            return found if is_on_device(found) and found.type.dtype == dtype else None
        # Scalars cannot be bfloat16.
        converted = cast(x, dtype) if host_dtype(dtype) == dtype else x
        return self.applied([converted], {}, [dtype])[0]

    def applied(
        self,
        outputs: list[Any],
        replaced: dict[Any, Callable[[Any], Any] | Any],
        dtypes: list[str],
    ) -> Any:
        """Return results of a new loop.

        Parameters
        ----------
        outputs : list of ScalarVariable
            Expressions in this loop.
        replaced : dict
            For expressions, what replaces them: a device variable, and a function that makes an
            expression of a scalar of its dtype. Without a variable, the function is called with the
            replaced expression.
        dtypes : list of str
            Dtypes in which the results are stored.

        Returns
        -------
        list of GpuArrayVariable
        """
        operands: dict[Any, Any] = {}  # scalars by variables

        def scalar(variable: Any) -> Any:
            return operands.setdefault(variable, _scalar(variable))

        def leaf(x: Any) -> Any:
            if x in replaced:
                variable, make = replaced[x]
                return make(x if variable is None else scalar(variable))
            return scalar(self.variables[x]) if x in self.variables else None

        built: dict[Any, Any] = {}
        results = [_rebuilt(x, built, leaf) for x in outputs]
        loop = Composite(list(operands.values()), results)
        found = GpuElemwise(loop).make_node(*operands).outputs
        if [z.type.dtype for z in found] == dtypes:
            return found
        return GpuElemwise(loop, out_dtypes=dtypes).make_node(*operands).outputs

    def function_of(self, x: Any, replaced: dict[Any, Any], y: Any) -> Any:
        """Return an expression as one of `y`, for any loop.

        Parameters
        ----------
        x : ScalarVariable
            Expression in this loop that depends only on numbers and one array.
        replaced : dict
            See `applied`. There is one variable.
        y : ScalarVariable
            Scalar for this variable.
        """

        def leaf(v: Any) -> Any:
            if v in replaced:
                variable, make = replaced[v]
                return make(v if variable is None else y)
            return v.type.make_constant(self.number(v)) if v in self.variables else None

        return _rebuilt(x, {}, leaf)

    def uses(self, x: Any, leaf: Any) -> bool:
        """Return whether the expression `x` depends on `leaf`."""
        if x is leaf:
            return True
        return x.owner is not None and any(self.uses(v, leaf) for v in x.owner.inputs)


def _rebuilt(x: Any, built: dict[Any, Any], leaf: Callable[[Any], Any]) -> Any:
    """Return an expression with new leaves; `leaf` returns None for other expressions."""
    if x not in built:
        found = leaf(x)
        if found is None and isinstance(x, Constant):
            found = x.type.make_constant(x.data)
        elif found is None:
            node = x.owner.op.make_node(*(_rebuilt(v, built, leaf) for v in x.owner.inputs))
            found = node.outputs[x.owner.outputs.index(x)]
        built[x] = found
    return built[x]
