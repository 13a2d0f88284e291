"""Registry of lifters: functions that return the device version of a node.

`dnnops.rewriting.move.lifting` calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import toposort
from pytensor.tensor.type import TensorType

from dnnops.dtypes import DTYPES, FLOAT_DTYPES, numpy_dtype
from dnnops.nnet.expressions import ExpandableOp
from dnnops.rewriting.move.context import LiftContext
from dnnops.runtime.implementations import Operands

#: ``lift(node, inputs, context)`` returns new variables for the outputs, or None.
LiftFunction = Callable[[Apply, list[Any], LiftContext], Sequence[Variable] | None]


@dataclass(frozen=True)
class Lifter:
    """An entry of the registry, with the parameters of :func:`register_lifter` as fields."""

    lift: LiftFunction
    operands: Operands | None = None
    heavy: bool | Callable[[Apply], bool] = False
    pulled: bool | Callable[[Apply], bool] = False
    convert: bool = True
    takes: Operands = ()
    tags: tuple[str, ...] = ()
    priority: int = 0

    def operand_indices(self, node: Apply) -> tuple[int, ...]:
        """Return the indices of the inputs that must be on the device."""
        if self.operands is None:
            return tuple(i for i, x in enumerate(node.inputs) if _dtype(x) in FLOAT_DTYPES)
        if callable(self.operands):
            return tuple(self.operands(node))
        return self.operands

    def takes_on_device(self, node: Apply, index: int) -> bool:
        """Return whether an input ends up on the device when the node moves."""
        more = self.takes(node) if callable(self.takes) else self.takes
        return index in self.operand_indices(node) or index in more

    def can_be_pulled(self, node: Apply) -> bool:
        """Return whether the node moves when all users of its outputs move."""
        if callable(self.pulled):
            return self.pulled(node)
        return self.pulled and _transfers_no_more(node)

    def is_heavy(self, node: Apply) -> bool:
        """Return whether the node is worth a transfer by itself."""
        return self.heavy(node) if callable(self.heavy) else self.heavy


registry: dict[type, list[Lifter]] = {}


def register_lifter(
    *op_classes: type,
    operands: Operands | None = None,
    heavy: bool | Callable[[Apply], bool] = False,
    pulled: bool | Callable[[Apply], bool] = False,
    convert: bool = True,
    takes: Operands = (),
    tags: Iterable[str] = (),
    priority: int = 0,
) -> Callable[[LiftFunction], LiftFunction]:
    """Register a function that moves nodes of some Ops to the device.

    Parameters
    ----------
    *op_classes : type
        Classes of host Ops. Subclasses use the lifters of their nearest registered class.
    operands : tuple of int, or callable, optional
        Indices of the inputs that must be on the device, or ``f(node)`` that returns them.
        Default: the inputs of floating-point dtypes. All other inputs are passed to the function
        as host variables.
    heavy : bool or callable, default False
        Whether the node is worth a transfer by itself, as a bool or as ``f(node)``. Other nodes
        move only if one of their operands is already on the device.
    pulled : bool or callable, default False
        Whether the node also moves when all users of its outputs move. With True, it moves only if
        the transfer does not become larger. With ``f(node)``, it moves if that returns True. Meant
        for Ops whose output is not smaller than their operands.
    convert : bool, default True
        Whether inputs are transferred before the call. If False, the function gets each input
        where it is, and calls :meth:`LiftContext.to_device` and :meth:`LiftContext.to_host` itself.
    takes : tuple of int, or callable, optional
        With ``convert=False``, indices of further inputs that the function moves to the device,
        such as index arrays. They do not cause the node to move.
    tags : iterable of str
        Tags of the lifter. ``mode.excluding(tag)`` disables it.
    priority : int, default 0
        Priority among the lifters of a class. The lifter with the highest priority is called first.
        If it returns None, the next one is called.

    Returns
    -------
    callable
        Decorator for ``lift(node, inputs, context)``, which returns None or, for each of
        ``node.outputs``, a variable of equal dtype and rank on the device or the host.
    """

    def register(function: LiftFunction) -> LiftFunction:
        lifter = Lifter(function, operands, heavy, pulled, convert, takes, tuple(tags), priority)
        for op_class in op_classes:
            entries = registry.setdefault(op_class, [])
            entries.append(lifter)
            entries.sort(key=lambda entry: -entry.priority)
        return function

    return register


#: ``expand(node, inputs)`` returns expressions of other Ops that compute the outputs.
ExpandFunction = Callable[[Apply, list[Any]], Sequence[Variable]]

expansions: dict[type, ExpandFunction] = {}


def register_expansion(*op_classes: type) -> Callable[[ExpandFunction], ExpandFunction]:
    """Register a function that expands a node of another library into Ops that have lifters.

    If a node has an operand on the device but no lifter accepts it, its expression is lifted
    instead. The expression of an `OpFromGraph` is its inner graph; Ops of dnnops derive from
    `ExpandableOp`.

    Parameters
    ----------
    *op_classes : type
        Classes of host Ops. Subclasses are included.

    Returns
    -------
    callable
        Decorator for ``expand(node, inputs)``, where `inputs` are host variables.
    """

    def register(function: ExpandFunction) -> ExpandFunction:
        for op_class in op_classes:
            expansions[op_class] = function
        return function

    return register


def lifters_of(node: Apply, excluded_tags: frozenset[str]) -> list[Lifter]:
    """Return the lifters of a node that have none of the tags, in the order to call them."""
    if not all(isinstance(z.type, TensorType) and z.type.dtype in DTYPES for z in node.outputs):
        return []
    for op_class in type(node.op).__mro__:
        if op_class in registry:
            return [x for x in registry[op_class] if excluded_tags.isdisjoint(x.tags)]
    return []


def expansion_of(op: Op) -> ExpandFunction | None:
    """Return the function that expands an Op into other Ops, or None."""
    if isinstance(op, ExpandableOp):
        return lambda node, inputs: node.op.expressions(*inputs)
    return next((expansions[c] for c in type(op).__mro__ if c in expansions), None)


def expands_elementwise(op: Op) -> bool:
    """Return whether the expression of an Op is to be fused with the Ops around it."""
    return isinstance(op, ExpandableOp) and op.expands_elementwise


@register_expansion(OpFromGraph)
def inner_graph(node: Apply, inputs: list[Any]) -> Sequence[Variable]:
    """Expand an `OpFromGraph` into its inner graph, applied to `inputs`."""
    # Not clone_replace, which would also copy the graph that computes the inputs.
    new: dict[Any, Any] = dict(zip(node.op.inner_inputs, inputs, strict=True))
    for inner in toposort(node.op.inner_outputs, blockers=node.op.inner_inputs):
        copied = inner.op.make_node(*(new.get(x, x) for x in inner.inputs))
        new.update(zip(inner.outputs, copied.outputs, strict=True))
    return [new.get(z, z) for z in node.op.inner_outputs]


def note_failure(node: Apply, error: Exception) -> None:
    """Keep the error of a node's lifter in the tags of its results, for `failure_of`."""
    for z in node.outputs:
        z.tag.dnnops_failure = f"{type(error).__name__}: {error}"


def failure_of(node: Apply) -> str:
    """Return the error that kept a node on the host, or an empty string."""
    return getattr(node.outputs[0].tag, "dnnops_failure", "")


def _dtype(x: Variable) -> str | None:
    return getattr(x.type, "dtype", None)


def _transfers_no_more(node: Apply) -> bool:
    """Return whether transferring a node's operands is as cheap as transferring its outputs."""

    def size(variables: Iterable[Any]) -> int:
        # Bytes per element of the result; an operand that is broadcast costs almost nothing.
        return sum(
            numpy_dtype(x.type.dtype).itemsize
            for x in variables
            if isinstance(x.type, TensorType) and x.type.dtype in DTYPES
            if not all(x.type.broadcastable) and not isinstance(x, Constant)
            if x.type.ndim >= node.outputs[0].type.ndim
        )

    if all(all(z.type.broadcastable) for z in node.outputs):
        return False
    return size(node.inputs) <= size(node.outputs)
