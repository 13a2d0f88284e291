"""Register lifters of abstract Ops to cuDNN or to dnnops kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable

from dnnops.gpu.base import cudnn_usable, kernels_usable
from dnnops.rewriting.move.lifters import Operands
from dnnops.rewriting.move.lifting import (
    LiftContext,
    LiftFunction,
    register_lifter,
)

__all__ = ["Build", "register", "register_kernel", "register_outputs", "register_own"]

Build = Callable[[Any, list[Any]], Sequence[Variable] | None]


def register(
    op_class: type, build: Build, operands: Operands | None = None, heavy: Any = False
) -> None:
    """Register ``build(op, inputs)`` as the lifter of an abstract Op to cuDNN."""
    _register(op_class, build, operands, heavy, lambda device: cudnn_usable(device)[0], ("cudnn",))


def register_own(op_class: type, build: Build, operands: Operands | None = None) -> None:
    """Register the lifter of an abstract Op to dnnops kernels.

    These kernels are compiled into the library that calls cuDNN but do not call it themselves, so
    modes that exclude ``cudnn`` use them too.
    """
    _register(op_class, build, operands, False, lambda device: kernels_usable(device), ())


def _register(
    op_class: type,
    build: Build,
    operands: Operands | None,
    heavy: Any,
    is_usable: Callable[[int], bool],
    tags: tuple[str, ...],
) -> None:
    def lift(node: Apply, inputs: list[Any], context: LiftContext) -> Sequence[Variable] | None:
        # Backend Ops derive from abstract Ops and stay where they were placed.
        if type(node.op) is not op_class or not is_usable(context.device):
            return None
        return build(node.op, inputs)

    register_lifter(op_class, operands=operands, heavy=heavy, tags=tags, priority=10)(lift)


def register_kernel(
    op_class: type, build: Callable[[Any, list[Any]], Variable], operands: Any
) -> None:
    """Register the dnnops kernel for cases that cuDNN does not support."""

    def lift(node: Apply, inputs: list[Any], context: LiftContext) -> Sequence[Variable] | None:
        return [build(node.op, inputs)] if type(node.op) is op_class else None

    function: LiftFunction = lift
    register_lifter(op_class, operands=operands)(function)


def register_outputs(
    op_class: type, make: Callable[[Any], Any], operands: tuple[int, ...] | None = None
) -> None:
    """Register ``make(op)``, which returns a dnnops Op with the operands and results of `op`."""
    register_own(op_class, lambda op, inputs: make(op).make_node(*inputs).outputs, operands)
