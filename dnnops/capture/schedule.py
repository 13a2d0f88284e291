"""Decide which nodes of a function a CUDA graph can contain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import TensorType

from dnnops.errors import DnnNotSupportedError
from dnnops.gpu.base import CudnnOp
from dnnops.gpuarray.op import GpuOp, is_on_device
from dnnops.gpuarray.transfer import GpuFromHost, GpuToGpu, HostFromGpu
from dnnops.runtime.lifetimes import chain, declared_origins

__all__ = ["Role", "Schedule", "schedule", "taken_as_numbers"]


class Role(Enum):
    """What happens to a node when a captured function is called.

    ``FIXED`` nodes run on the host and depend only on shapes and constants, so they run once,
    during the capture. ``BEFORE`` nodes run on the host before the graph is launched, ``AFTER``
    nodes afterwards. ``UPLOAD`` nodes copy a host value to the device in each launch. ``DEVICE``
    nodes are in the graph. ``BETWEEN`` nodes are called with host values that change, so they run
    by themselves between the graph before them and the one after them.
    """

    FIXED = auto()
    BEFORE = auto()
    UPLOAD = auto()
    DEVICE = auto()
    BETWEEN = auto()
    AFTER = auto()


@dataclass(frozen=True)
class Schedule:
    """The roles of a function's nodes.

    Attributes
    ----------
    roles : tuple of Role
        Role of each node, in the order of execution.
    by_value : tuple of Variable
        Results and inputs on the host that nodes in the graph read, such as the bounds of a slice.
        A captured graph is valid for one value of each.
    numbers : frozenset of Variable
        Host numbers that kernels in the graph read, such as a learning rate. They are copied to
        the device by each launch.
    device : int
        Number of the device.
    """

    roles: tuple[Role, ...]
    by_value: tuple[Variable, ...]
    numbers: frozenset[Variable]
    device: int


def schedule(fgraph: FunctionGraph, order: Sequence[Apply], thunks: Sequence[Any]) -> Schedule:
    """Assign a role to each node.

    Parameters
    ----------
    fgraph : FunctionGraph
        Graph of the function.
    order : sequence of Apply
        Nodes in the order of execution.
    thunks : sequence of callable
        The function that runs each node.

    Raises
    ------
    DnnNotSupportedError
        If a node cannot be captured; the message names it.
    """
    try:
        return _scheduled(fgraph, order, thunks)
    except DnnNotSupportedError:
        if not any(_reads_input(node) for node in order):
            raise
    return _scheduled(fgraph, order, thunks, reads_first=True)


def _reads_input(node: Apply) -> bool:
    """Return whether a node copies an input of the function to the host."""
    return isinstance(node.op, HostFromGpu) and node.inputs[0].owner is None


def _scheduled(
    fgraph: FunctionGraph,
    order: Sequence[Apply],
    thunks: Sequence[Any],
    reads_first: bool = False,
) -> Schedule:
    """Assign the roles; `reads_first` says whether inputs are copied to the host before the graph.

    That makes the host wait for earlier work, so it is only done if the graph needs them there.
    """
    roles: dict[Apply, Role] = {}
    by_value: dict[Variable, None] = {}
    numbers: set[Variable] = set()
    devices: set[int] = set()
    for node, thunk in zip(order, thunks, strict=True):
        if getattr(thunk, "lazy", False):
            raise DnnNotSupportedError(f"{node} decides which nodes run")
        devices |= {x.type.device for x in (*node.inputs, *node.outputs) if is_on_device(x)}
        is_first = reads_first and _reads_input(node)
        roles[node] = role = Role.BEFORE if is_first else _role(node, roles)
        if role is Role.DEVICE:
            values = [x for x in node.inputs if not is_on_device(x) and not _is_fixed(x, roles)]
            if values and _changing(node).issuperset(values):
                roles[node] = Role.BETWEEN
                continue
            taken = taken_as_numbers(node)
            for x in values:
                if x in taken:
                    numbers.add(x)
                elif isinstance(x.type, TensorType | ScalarType):
                    by_value[x] = None
                else:
                    raise DnnNotSupportedError(f"{node} reads {x} of type {x.type}")
    _run_sizes_before(order, roles)
    for node in order:
        _check_overwritten(node, roles)
    if len(devices) > 1:
        names = ", ".join(f"cuda{device}" for device in sorted(devices))
        raise DnnNotSupportedError(f"its arrays are on several devices: {names}")
    if not {Role.DEVICE, Role.BETWEEN} & {*roles.values()}:
        raise DnnNotSupportedError("it has no node on a device")
    return Schedule(tuple(roles.values()), tuple(by_value), frozenset(numbers), devices.pop())


def taken_as_numbers(node: Apply) -> set[Variable]:
    """Return the host operands of a node that may be on the device instead, as 0-d arrays."""
    if not isinstance(node.op, GpuOp):
        return set()
    places = node.op.number_operands(node)
    return {node.inputs[i] for i in places}.difference(
        # As the length of an axis, for example, a number has to be on the host.
        x
        for i, x in enumerate(node.inputs)
        if i not in places
    )


def _changing(node: Apply) -> set[Variable]:
    """Return the host operands of a node that may change from call to call between two graphs."""
    if not isinstance(node.op, CudnnOp):
        return set()
    return {node.inputs[i] for i in node.op.changing_operands(node)}


def _run_sizes_before(order: Sequence[Apply], roles: dict[Apply, Role]) -> None:
    """Run fixed nodes before the graph if needed.

    These are the nodes whose results other nodes before the graph read, and those that overwrite
    results of nodes before the graph. A node that needs the shape of an array in the graph runs
    after it, if only nodes after the graph, or the caller, read its result.
    """
    origins: dict[Variable, Variable] = {}
    readers: dict[Variable, list[Apply]] = defaultdict(list)
    #: Shapes of arrays that the graph computes, and what follows from them.
    later: set[Variable] = set()
    for node in order:
        origins |= declared_origins(node)
        for x in node.inputs:
            readers[x].append(node)
            is_computed = is_on_device(x) and x.owner is not None
            if roles[node] is Role.FIXED and (is_computed or x in later):
                later.update(node.outputs)
    was = None
    while roles != was:
        was = dict(roles)
        for node in order:
            overwritten = (node.inputs[i] for p in node.op.destroy_map.values() for i in p)
            destroyed = {y for x in overwritten for y in chain(x, origins)}
            if roles[node] is Role.FIXED and any(
                _role_of(x, roles) is Role.BEFORE for x in destroyed
            ):
                roles[node] = Role.BEFORE
        for node in reversed(order):
            if roles[node] is not Role.BEFORE:
                continue
            users = (user for z in node.outputs for user in readers[z])
            if not later.isdisjoint(node.inputs) and all(
                roles[user] is Role.AFTER for user in users
            ):
                # As the next state of dropout, which counts the elements of such an array.
                roles[node] = Role.AFTER
                continue
            for x in node.inputs:
                if is_on_device(x) and x.owner is not None:
                    raise DnnNotSupportedError(f"{node} needs {x} before the graph is launched")
                if _role_of(x, roles) is Role.FIXED:
                    roles[x.owner] = Role.BEFORE


def _role(node: Apply, roles: dict[Apply, Role]) -> Role:
    after = any(_role_of(x, roles) is Role.AFTER for x in node.inputs)
    touches_device = any(map(is_on_device, (*node.inputs, *node.outputs)))
    if isinstance(node.op, Shape | Shape_i):
        (x,) = node.inputs
        if is_on_device(x) or x.owner is None or _is_fixed(x, roles):
            return Role.FIXED
        return Role.AFTER if after else Role.BEFORE
    if not touches_device:
        if after:
            return Role.AFTER
        return Role.FIXED if all(_is_fixed(x, roles) for x in node.inputs) else Role.BEFORE
    if isinstance(node.op, HostFromGpu):
        return Role.AFTER
    if after:
        raise DnnNotSupportedError(f"{node} uses a result that was on the host in between")
    if isinstance(node.op, GpuFromHost):
        return Role.UPLOAD
    is_known = isinstance(node.op, GpuOp | CudnnOp | DeepCopyOp | ViewOp)
    if not is_known or isinstance(node.op, GpuToGpu):
        raise DnnNotSupportedError(f"{node} cannot be captured")
    if not all(map(is_on_device, node.outputs)):
        raise DnnNotSupportedError(f"{node} returns a result on the host")
    return Role.DEVICE


def _role_of(x: Variable, roles: dict[Apply, Role]) -> Role | None:
    return None if x.owner is None else roles[x.owner]


def _is_fixed(x: Variable, roles: dict[Apply, Role]) -> bool:
    return isinstance(x, Constant) or _role_of(x, roles) is Role.FIXED


def _check_overwritten(node: Apply, roles: dict[Apply, Role]) -> None:
    """Refuse a node that would overwrite a result that is computed only once."""
    if roles[node] in (Role.BEFORE, Role.AFTER):
        for operands in node.op.destroy_map.values():
            for i in operands:
                if _is_fixed(node.inputs[i], roles):
                    raise DnnNotSupportedError(f"{node} overwrites a result that does not change")
