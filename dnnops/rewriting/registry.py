"""The implementations of abstract Ops that rewrites choose from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

import dnnops.cpu
import dnnops.gpu
import dnnops.gpu.attention
import dnnops.graph.op
from dnnops.rewriting.move.context import LiftContext
from dnnops.rewriting.move.lifters import register_lifter
from dnnops.runtime.implementations import Implementation, implementations
from dnnops.runtime.op import MAX_NDIM

__all__ = ["abstract_op", "cpu_implementation", "cpu_implementations", "is_abstract"]

for _package in (dnnops.cpu, dnnops.gpu):
    # Not with pkgutil, which PyTensor does not import.
    for _path in sorted(Path(_package.__path__[0]).glob("*.py")):
        if _path.stem != "__init__":
            import_module(f"{_package.__name__}.{_path.stem}")


@cache
def cpu_implementations() -> dict[type, Implementation]:
    """Return the CPU implementation of each abstract Op that has one."""
    return {entry.abstract: entry for entry in implementations("cpu")}


def cpu_implementation(node: Apply) -> Implementation | None:
    """Return the CPU implementation that can replace a node, or None."""
    # Backend Ops derive from abstract Ops, and stay.
    entry = cpu_implementations().get(type(node.op))
    if entry is None or node.inputs[0].type.ndim > MAX_NDIM or not entry.when(node):
        return None
    return entry


@cache
def _abstract(device: Literal["cpu", "gpu"]) -> frozenset[type]:
    return frozenset(entry.abstract for entry in implementations(device))


def is_abstract(op: Op, device: Literal["cpu", "gpu"]) -> bool:
    """Return whether an Op is abstract and has an implementation on a kind of device."""
    return type(op) in _abstract(device)


def abstract_op(op: Op) -> Any:
    """Return the abstract Op that a CPU Op implements, or None if there is none."""
    found = next((kind for kind in type(op).__mro__[1:] if kind in _abstract("cpu")), None)
    return found and found(**{name: getattr(op, name) for name in found.__props__})


def lift(
    implementation: Implementation, node: Apply, inputs: list[Any], context: LiftContext
) -> Sequence[Variable] | None:
    """Apply a GPU implementation of a node's Op to operands on the device."""
    is_usable = implementation.backend.is_usable
    if type(node.op) is not implementation.abstract or not is_usable(context.device):
        return None
    return implementation.build(node.op, inputs, context) if implementation.when(node) else None


for _entry in implementations("gpu"):
    register_lifter(
        _entry.abstract,
        operands=_entry.operands,
        heavy=_entry.heavy,
        tags=_entry.backend.tags,
        priority=_entry.backend.priority,
    )(partial(lift, _entry))
