"""The registry of lifters: functions that give the device's version of a node.

`dnnops.rewriting.lifting` asks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import toposort
from pytensor.tensor.type import TensorType

from dnnops.gpuarray.dtypes import DTYPES, FLOAT_DTYPES, numpy_dtype

if TYPE_CHECKING:
    from dnnops.rewriting.lifting import LiftContext

#: ``lift(node, inputs, context)`` gives the outputs' new variables, or None.
LiftFunction = Callable[[Apply, list[Any], "LiftContext"], Sequence[Variable] | None]
Operands = tuple[int, ...] | Callable[[Apply], Iterable[int]]


@dataclass(frozen=True)
class Lifter:
    """One entry of the registry; the fields are those of :func:`register_lifter`."""

    lift: LiftFunction
    operands: Operands | None = None
    heavy: bool | Callable[[Apply], bool] = False
    pulled: bool | Callable[[Apply], bool] = False
    convert: bool = True
    takes: Operands = ()
    tags: tuple[str, ...] = ()
    priority: int = 0

    def operand_indices(self, node: Apply) -> tuple[int, ...]:
        """Give the indices of the inputs that have to be on the device."""
        if self.operands is None:
            return tuple(i for i, x in enumerate(node.inputs) if _dtype(x) in FLOAT_DTYPES)
        if callable(self.operands):
            return tuple(self.operands(node))
        return self.operands

    def takes_on_device(self, node: Apply, index: int) -> bool:
        """Tell whether an input ends up on the device when the node moves."""
        more = self.takes(node) if callable(self.takes) else self.takes
        return index in self.operand_indices(node) or index in more

    def can_be_pulled(self, node: Apply) -> bool:
        """Tell whether the node moves when all that uses its outputs does."""
        if callable(self.pulled):
            return self.pulled(node)
        return self.pulled and _transfers_no_more(node)

    def is_heavy(self, node: Apply) -> bool:
        """Tell whether the node is worth a transfer by itself."""
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
        Classes of the host's Ops; subclasses are served too, by the nearest class.
    operands : tuple of int, or callable, optional
        Indices of the inputs that have to be on the device, or ``f(node)`` that gives them.
        Default: the inputs of float dtypes. The function gets all other inputs as host
        variables.
    heavy : bool or callable, default False
        True, or ``f(node)`` that says so: worth a transfer by itself. Another node moves when
        one of its operands is on the device already.
    pulled : bool or callable, default False
        The node also moves when all that uses its outputs does, and when that doesn't make
        the transfer larger; or when ``f(node)`` says so. For Ops whose output isn't smaller
        than their operands.
    convert : bool, default True
        False: the function gets each input where it is, and calls
        :meth:`LiftContext.to_device` and :meth:`LiftContext.to_host` itself.
    takes : tuple of int, or callable, optional
        With ``convert=False``: indices of further inputs that the function puts on the device,
        which don't make the node move, such as index arrays.
    tags : iterable of str
        ``mode.excluding(tag)`` leaves the lifter out.
    priority : int, default 0
        The highest is asked first; one that returns None leaves the node to the next.

    Returns
    -------
    callable
        A decorator for ``lift(node, inputs, context)``, which returns a variable for each of
        ``node.outputs``, on the device or the host, of equal dtype and rank; or None.
    """

    def register(function: LiftFunction) -> LiftFunction:
        lifter = Lifter(function, operands, heavy, pulled, convert, takes, tuple(tags), priority)
        for op_class in op_classes:
            entries = registry.setdefault(op_class, [])
            entries.append(lifter)
            entries.sort(key=lambda entry: -entry.priority)
        return function

    return register


#: ``expand(node, inputs)`` gives an expression of other Ops with the values of the outputs.
ExpandFunction = Callable[[Apply, list[Any]], Sequence[Variable]]

expansions: dict[type, ExpandFunction] = {}
_elementwise: set[type] = set()


def register_expansion(
    *op_classes: type, elementwise: bool = False
) -> Callable[[ExpandFunction], ExpandFunction]:
    """Register a function that writes a node out in Ops that have lifters.

    It serves nodes with an operand on the device that no lifter took: its expression is lifted
    in their place. Every `OpFromGraph` has its inner graph for an expression.

    Parameters
    ----------
    *op_classes : type
        Classes of the host's Ops; subclasses are served too.
    elementwise : bool, default False
        Whether expressions have elementwise Ops that are to be fused with those around the node:
        it is written out before fusion then.

    Returns
    -------
    callable
        A decorator for ``expand(node, inputs)``; `inputs` are host variables.
    """
    if elementwise:
        _elementwise.update(op_classes)

    def register(function: ExpandFunction) -> ExpandFunction:
        for op_class in op_classes:
            expansions[op_class] = function
        return function

    return register


def lifters_of(node: Apply, excluded_tags: frozenset[str]) -> list[Lifter]:
    """Give the lifters of a node that have none of the tags, in the order in which to ask them."""
    if not all(isinstance(z.type, TensorType) and z.type.dtype in DTYPES for z in node.outputs):
        return []
    for op_class in type(node.op).__mro__:
        if op_class in registry:
            return [x for x in registry[op_class] if excluded_tags.isdisjoint(x.tags)]
    return []


def expansion_of(op: Op) -> ExpandFunction | None:
    """Give what writes an Op out in others, or None."""
    return next((expansions[c] for c in type(op).__mro__ if c in expansions), None)


def expands_elementwise(op: Op) -> bool:
    """Tell whether what an Op is written out in is to be fused with what is around it."""
    return not _elementwise.isdisjoint(type(op).__mro__)


@register_expansion(OpFromGraph)
def inner_graph(node: Apply, inputs: list[Any]) -> Sequence[Variable]:
    """Write an `OpFromGraph` out: its inner graph, of these inputs."""
    # Not clone_replace: that would copy all that the inputs are computed from, too.
    new: dict[Any, Any] = dict(zip(node.op.inner_inputs, inputs, strict=True))
    for inner in toposort(node.op.inner_outputs, blockers=node.op.inner_inputs):
        copied = inner.op.make_node(*(new.get(x, x) for x in inner.inputs))
        new.update(zip(inner.outputs, copied.outputs, strict=True))
    return [new.get(z, z) for z in node.op.inner_outputs]


def _dtype(x: Variable) -> str | None:
    return getattr(x.type, "dtype", None)


def _transfers_no_more(node: Apply) -> bool:
    """Tell whether transferring a node's operands is as cheap as transferring its outputs."""

    def size(variables: Iterable[Any]) -> int:
        # Per element of the result: an operand that is broadcast costs next to nothing.
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
