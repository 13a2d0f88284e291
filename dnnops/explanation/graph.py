"""Describe the nodes of a graph without running it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.link.c.op import COp
from pytensor.scalar.basic import Composite

from dnnops.config import flag_value
from dnnops.cpu.elemwise import CpuElemwise
from dnnops.explanation.memory import Memory, count_memory
from dnnops.explanation.record import Node, Operand
from dnnops.gpuarray.op import GpuOp, is_on_device
from dnnops.gpuarray.prepared.cache import is_left_to_compute
from dnnops.gpuarray.transfer import GpuFromHost, GpuToGpu, HostFromGpu
from dnnops.plans.used import plan_of
from dnnops.rewriting.reasons import why_no_library, why_on_host
from dnnops.runtime.implementations import implementations
from dnnops.runtime.lifetimes import declared_origins, releases
from dnnops.runtime.op import RuntimeOp
from dnnops.runtime.sizes import inferred_bytes, static_bytes

__all__ = ["describe_graph", "device_of", "is_transfer", "library_of"]

#: Names of the libraries that the runtime libraries are linked with.
_LIBRARIES = {"onednn": "oneDNN", "cudnn": "cuDNN"}
_TRANSFERS: dict[Any, str] = {
    GpuFromHost: "to device",
    HostFromGpu: "to host",
    GpuToGpu: "between devices",
}


def describe_graph(
    fgraph: FunctionGraph,
    order: Sequence[Apply] | None = None,
    *,
    compiled: Collection[Apply] | None = None,
    jit: str = "",
    allow_gc: bool = True,
    shapes: Mapping[Variable, Sequence[int | None]] | None = None,
) -> tuple[Node, ...]:
    """Describe the nodes of a rewritten graph.

    Parameters
    ----------
    fgraph : FunctionGraph
        Graph after all rewrites.
    order : sequence of Apply, optional
        Order of execution. Default: a topological order.
    compiled : collection of Apply, optional
        Nodes that run from C. Default: those whose Ops can.
    jit : str
        Library that compiles the whole graph, such as ``Numba``; empty if nodes run one by one.
    allow_gc : bool
        Whether results are freed after their last use.
    shapes : mapping, optional
        Shapes of inputs of the graph. Default: their static shapes.

    Returns
    -------
    tuple of Node
        Nodes without measurements. Memory is counted if all sizes follow from those of the inputs.
    """
    order = list(fgraph.toposort() if order is None else order)
    if compiled is None:
        compiled = {node for node in order if _can_run_from_c(node)}
    sizes = inferred_bytes(order, shapes or {})
    origins: dict[Variable, Variable] = {}
    for node in order:
        origins |= declared_origins(node)
    memory = count_memory(order, releases(order, fgraph.outputs, allow_gc), sizes, origins)
    devices = {node: device_of(node) for node in order}
    used = [device for device in devices.values() if device is not None]
    between = _between(order, {node for node, device in devices.items() if device is not None})
    index = {node: i for i, node in enumerate(order)}
    return tuple(
        _described(
            node,
            index,
            library=jit or library_of(node, node in compiled),
            memory=memory[i] if memory else None,
            allocated=_total(sizes[z] for z in node.outputs if z not in origins),
            between=node in between,
            reason=_reason(node, devices[node], used),
        )
        for i, node in enumerate(order)
    )


def _can_run_from_c(node: Apply) -> bool:
    op = node.op
    if isinstance(op, GpuOp):
        return op.prepares(node) and bool(flag_value("dnn.prepared_calls"))
    return isinstance(op, COp)


def device_of(node: Apply) -> int | None:
    """Return the number of the device that runs a node, or None for the host."""
    op: Any = node.op
    return op.node_device(node) if hasattr(op, "node_device") else None


def is_transfer(node: Apply) -> bool:
    """Return whether a node copies between host and device, or between devices."""
    return type(node.op) in _TRANSFERS


def _described(
    node: Apply,
    index: dict[Apply, int],
    *,
    library: str,
    memory: Memory | None,
    allocated: int | None,
    between: bool,
    reason: str,
) -> Node:
    op, device = node.op, device_of(node)
    transfer = _TRANSFERS.get(type(op), "")
    plan = plan_of(node)
    return Node(
        index=index[node],
        op=_short_name(op),
        detail=str(op),
        device="cpu" if device is None else f"cuda{device}",
        library=library,
        call=op.function if isinstance(op, RuntimeOp) else "",
        inputs=tuple(_operand(x, index) for x in node.inputs),
        outputs=tuple(_operand(z, index) for z in node.outputs),
        reuse="in-place" if op.destroy_map else "view" if op.view_map else "",
        transfer=transfer,
        between=between,
        fused=_fused(op),
        reason=reason,
        bytes=allocated,
        moved_bytes=static_bytes(node.outputs[0]) if transfer else 0,
        live_bytes=memory.live if memory else None,
        peak_bytes=memory.peak if memory else None,
        plan=plan.plan if plan else getattr(op, "epilogue", ""),
        workspace_bytes=plan.workspace_bytes if plan else None,
    )


def _total(sizes: Iterable[int | None]) -> int | None:
    found = list(sizes)
    known = [size for size in found if size is not None]
    return sum(known) if len(known) == len(found) else None


def _operand(x: Any, index: dict[Any, int]) -> Operand:
    shape = getattr(x.type, "shape", None)
    return Operand(
        name=x.name or "",
        dtype=getattr(x.type, "dtype", None) or type(x.type).__name__,
        shape=None if shape is None else tuple(shape),
        device=f"cuda{x.type.device}" if is_on_device(x) else "cpu",
        source=index.get(x.owner),
    )


def library_of(node: Apply, in_c: bool) -> str:
    """Return what runs a node.

    Parameters
    ----------
    node : Apply
    in_c : bool
        Whether it runs from C.
    """
    op = node.op
    if isinstance(op, RuntimeOp):
        if op.called_library:
            return op.called_library
        declared = {
            entry.backend.tags
            for entry in implementations("gpu")
            if issubclass(type(op), entry.op_class)
        }
        # Implementations without a tag do not call the library that the runtime is linked with.
        is_own = declared == {()} or not op.calls_library
        return "dnnops" if is_own else _LIBRARIES[op.library.name]
    if isinstance(op, GpuOp):
        return "dnnops" if in_c and not is_left_to_compute(node) else "CuPy"
    if isinstance(op, CpuElemwise) and in_c:
        return "dnnops"
    return "C" if in_c else "Python"


def _scalar_op(op: Any) -> Any:
    return getattr(getattr(op, "host_op", op), "scalar_op", None)


def _fused(op: Any) -> int:
    scalar = _scalar_op(op)
    if scalar is None:
        return 0
    return len(scalar.fgraph.apply_nodes) if isinstance(scalar, Composite) else 1


def _short_name(op: Any) -> str:
    name, scalar = type(op).__name__, _scalar_op(op)
    if scalar is None:
        epilogue = getattr(op, "epilogue", "")
        return f"{name}{{{epilogue}}}" if epilogue else name
    if isinstance(scalar, Composite):
        return f"{name}{{{_fused(op)} Ops}}"
    return f"{name}{{{scalar.name or type(scalar).__name__}}}"


def _reason(node: Apply, device: int | None, used: list[int]) -> str:
    if device is not None:
        return ""
    return (why_on_host(node, used[0]) if used else "") or why_no_library(node)


def _between(order: Sequence[Apply], on_device: set[Apply]) -> set[Apply]:
    """Return the nodes on the host that come after some node on a device and before another."""
    computing = {node for node in on_device if not is_transfer(node)}
    after: set[Apply] = set()
    for node in order:
        if any(x.owner in computing or x.owner in after for x in node.inputs):
            after.add(node)
    before: set[Apply] = set()
    for node in reversed(order):
        if node in computing or node in before:
            before.update(x.owner for x in node.inputs if x.owner is not None)
    return {node for node in order if node not in on_device and node in after & before}
