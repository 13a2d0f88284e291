"""Say why a node of a rewritten graph is on the host."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Any

from pytensor.graph.basic import Apply

from dnnops.dtypes import DTYPES
from dnnops.gpuarray.op import is_on_device
from dnnops.gpuarray.transfer import HostFromGpu
from dnnops.rewriting.move.lifters import Lifter, expansion_of, failure_of, lifters_of
from dnnops.rewriting.registry import cpu_implementation, cpu_implementations
from dnnops.runtime.implementations import Implementation, implementations
from dnnops.runtime.op import MAX_NDIM

__all__ = ["why_no_library", "why_on_host"]


def why_on_host(node: Apply, device: int) -> str:
    """Return why a node stays on the host in a graph that uses a device.

    Parameters
    ----------
    node : Apply
        Node on the host, after rewriting.
    device : int
        Device that the graph uses.

    Returns
    -------
    str
        Reason, derived from the declarations of the GPU versions and from their errors. Empty for
        numbers and for vectors of a few numbers, such as shapes, which stay on the host by design.
    """
    if failure := failure_of(node):
        return f"its GPU version failed: {failure}"
    if all(map(_is_few_numbers, node.outputs)):
        return ""
    for z in node.outputs:
        dtype = getattr(z.type, "dtype", None)
        if dtype not in DTYPES:
            return f"no GPU version: its result is {dtype or type(z.type).__name__}"
    lifters = lifters_of(node, frozenset())
    if not lifters and expansion_of(node.op) is None:
        return "no GPU version"
    declared = _declared(node)
    if declared:
        usable = [entry for entry in declared if entry.backend.is_usable(device)]
        if not usable:
            names = ", ".join(entry.op_class.__name__ for entry in declared)
            return f"{names} cannot be used on cuda{device}"
        if not any(_accepts(entry, node) for entry in usable):
            names = ", ".join(entry.op_class.__name__ for entry in usable)
            return f"{names} does not support its operands or parameters"
    resident = any(_resident(lifter, node) for lifter in lifters)
    if not (resident or (not lifters and any(map(_came_from_device, node.inputs)))):
        return "its operands are on the host, and it is not worth a transfer"
    return "its GPU version did not accept it"


def why_no_library(node: Apply) -> str:
    """Return why an abstract Op runs in NumPy, or an empty string for other nodes.

    Parameters
    ----------
    node : Apply
        Node on the host, after rewriting.
    """
    entry = cpu_implementations().get(type(node.op))
    if entry is None:
        return ""
    if node.inputs[0].type.ndim > MAX_NDIM:
        return f"{entry.op_class.__name__} supports at most {MAX_NDIM} axes"
    if cpu_implementation(node) is None:
        return f"{entry.op_class.__name__} does not support its operands or parameters"
    return "the mode does not include oneDNN"


def _is_few_numbers(x: Any) -> bool:
    shape = getattr(x.type, "shape", None)
    return shape == () or (shape is not None and len(shape) == 1 and (shape[0] or inf) <= MAX_NDIM)


def _declared(node: Apply) -> list[Implementation]:
    """Return the GPU implementations of the abstract Op that a node computes."""
    # A CPU Op derives from the abstract Op that it implements.
    kinds = {type(node.op)} | {
        entry.abstract for entry in implementations("cpu") if entry.op_class is type(node.op)
    }
    return [entry for entry in implementations("gpu") if entry.abstract in kinds]


def _accepts(entry: Implementation, node: Apply) -> bool:
    # Only lifters call it otherwise, with a node of the abstract Op.
    with suppress(Exception):
        return bool(entry.when(node))
    return True


def _resident(lifter: Lifter, node: Apply) -> bool:
    """Return whether an operand that must be on the device was there, or the node is heavy."""

    with suppress(Exception):
        operands = [node.inputs[i] for i in lifter.operand_indices(node)]
        return lifter.is_heavy(node) or any(map(_came_from_device, operands))
    return True


def _came_from_device(x: Any) -> bool:
    return is_on_device(x) or (x.owner is not None and isinstance(x.owner.op, HostFromGpu))
