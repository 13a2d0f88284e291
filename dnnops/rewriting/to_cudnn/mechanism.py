"""How an abstract Op is given to cuDNN, or to a kernel of our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable

from dnnops.cudnn.base import cudnn_usable
from dnnops.rewriting.lifters import Operands
from dnnops.rewriting.lifting import (
    LiftContext,
    LiftFunction,
    register_lifter,
)

__all__ = ["Build", "register", "register_kernel", "register_outputs"]

Build = Callable[[Any, list[Any]], Sequence[Variable] | None]


def register(
    op_class: type, build: Build, operands: Operands | None = None, heavy: Any = False
) -> None:
    """Register ``build(op, inputs)`` as the lifter of an abstract Op to cuDNN."""

    def lift(node: Apply, inputs: list[Any], context: LiftContext) -> Sequence[Variable] | None:
        # Backend Ops derive from abstract ones; they are where somebody put them.
        if type(node.op) is not op_class:
            return None
        usable, _ = cudnn_usable(context.device)
        return build(node.op, inputs) if usable else None

    register_lifter(op_class, operands=operands, heavy=heavy, tags=("cudnn",), priority=10)(lift)


def register_kernel(
    op_class: type, build: Callable[[Any, list[Any]], Variable], operands: Any
) -> None:
    """Register the kernel that does what cuDNN doesn't."""

    def lift(node: Apply, inputs: list[Any], context: LiftContext) -> Sequence[Variable] | None:
        return [build(node.op, inputs)] if type(node.op) is op_class else None

    function: LiftFunction = lift
    register_lifter(op_class, operands=operands)(function)


def register_outputs(
    op_class: type, make: Callable[[Any], Any], operands: tuple[int, ...] | None = None
) -> None:
    """Register ``make(op)``, which has the operands and the results of an abstract Op."""
    register(op_class, lambda op, inputs: make(op).make_node(*inputs).outputs, operands)
