"""Declarations of the classes that run abstract Ops on a device.

A backend class declares which abstract Op it implements, and on what::

    @implements(LRN, on=CPU)
    class OneDnnLRN(OneDnnOp, LRN):
        function = "dnnops_onednn_lrn"

`dnnops.rewriting.registry` makes rewrites of the declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pytensor.graph.basic import Apply, Variable

__all__ = [
    "Backend",
    "Build",
    "BuildContext",
    "Implementation",
    "Operands",
    "implementations",
    "implements",
]


@dataclass(frozen=True)
class Backend:
    """What computes an Op on a device.

    Attributes
    ----------
    device : {'cpu', 'gpu'}
        Kind of device.
    tags : tuple of str
        Tags of the rewrites. ``mode.excluding(tag)`` disables them.
    priority : int
        Of the implementations of an Op on a device, the one whose backend has the highest priority
        is asked first.
    is_usable : callable
        Function that takes the number of a device and returns whether the backend can be used
        there. It is called when a graph is rewritten.
    """

    device: Literal["cpu", "gpu"]
    tags: tuple[str, ...] = ()
    priority: int = 0
    is_usable: Callable[[int], bool] = lambda device: True


class BuildContext:
    """Context of the conversion of one graph."""

    def __init__(self) -> None:
        self._applied: dict[tuple[Any, ...], Any] = {}

    def apply_once(self, op: Any, *inputs: Any) -> Any:
        """Apply an Op, reusing the result of an earlier call with the same inputs."""
        key = (op, *inputs)
        if key not in self._applied:
            self._applied[key] = op(*inputs)
        return self._applied[key]


#: ``build(op, inputs, context)`` returns variables for the outputs of the abstract Op `op`, or None
#: if the backend does not support the operands.
Build = Callable[[Any, list[Any], BuildContext], Sequence[Variable] | None]
Operands = tuple[int, ...] | Callable[[Apply], Iterable[int]]
T = TypeVar("T", bound=type)


@dataclass(frozen=True)
class Implementation:
    """A declaration; the attributes are the parameters of `implements`."""

    abstract: type
    op_class: type
    backend: Backend
    build: Build
    when: Callable[[Apply], bool]
    operands: Operands | None
    heavy: bool | Callable[[Apply], bool]


_declared: dict[tuple[type, str, int], Implementation] = {}


def implements(
    *abstract: type,
    on: Backend,
    build: Build | None = None,
    when: Callable[[Apply], bool] = lambda node: True,
    operands: Operands | None = None,
    heavy: bool | Callable[[Apply], bool] = False,
) -> Callable[[T], T]:
    """Declare that the decorated class implements abstract Ops.

    Parameters
    ----------
    *abstract : type
        Abstract Ops. Their subclasses are not included, since backend Ops derive from them.
    on : Backend
        What computes the class.
    build : callable, optional
        Function that takes the abstract Op, the operands and a `BuildContext`, and returns
        variables for the results, or None if the backend does not support the operands.
        Default: the class method ``build`` of the decorated class.
    when : callable, optional
        Function that takes a node of the abstract Op and returns whether it can be replaced.
    operands : tuple of int, or callable, optional
        For a GPU, indices of the operands that must be on the device, or a function of the node
        that returns them. Default: the operands of floating-point dtypes.
    heavy : bool or callable, default False
        For a GPU, whether the node is worth the transfer of its operands, or a function of the node
        that returns it. Other nodes move only if an operand is already on the device.

    Returns
    -------
    callable
        Decorator that returns the class unchanged.

    Raises
    ------
    ValueError
        If another class implements the Op on the same kind of device with the same priority.
    """

    def declare(op_class: T) -> T:
        # The annotation Any: only classes without `build` in the declaration must have the method.
        made: Any = op_class
        for kind in abstract:
            key = (kind, on.device, on.priority)
            other = _declared.get(key)
            if other is not None and other.op_class is not op_class:
                raise ValueError(
                    f"{op_class.__name__} and {other.op_class.__name__} both implement "
                    f"{kind.__name__} on the {on.device} with priority {on.priority}"
                )
            _declared[key] = Implementation(
                kind, op_class, on, build or made.build, when, operands, heavy
            )
        return op_class

    return declare


def implementations(device: Literal["cpu", "gpu"]) -> list[Implementation]:
    """Return the declarations for a kind of device, in the order of asking for each Op."""
    found = [entry for entry in _declared.values() if entry.backend.device == device]
    return sorted(found, key=lambda entry: -entry.backend.priority)
