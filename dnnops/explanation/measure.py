"""Run a compiled function node by node, and measure time, shapes and memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.link.utils import get_destroy_dependencies

from dnnops.explanation.graph import device_of, library_of
from dnnops.explanation.memory import count_memory
from dnnops.explanation.record import Node, Operand
from dnnops.explanation.result import Explanation
from dnnops.explanation.stopwatch import DeviceStopwatch, Stopwatch
from dnnops.gpuarray.device import on_device
from dnnops.gpuarray.op import is_on_device
from dnnops.plans.used import plan_of
from dnnops.runtime.lifetimes import declared_origins, releases

__all__ = ["measured"]


def measured(
    f: Any,
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
    calls: int,
    described: Explanation,
) -> Explanation:
    """Run a function and add what was measured to its description.

    Parameters
    ----------
    f : pytensor.compile.Function
        Function that a virtual machine of PyTensor runs.
    arguments : tuple
        Its arguments.
    named : mapping
        Its arguments that are passed by name.
    calls : int
        Number of measured calls, at least 1.
    described : Explanation
        Its description.

    Returns
    -------
    Explanation
    """
    machine = MeasuringVM(f.vm, f.maker.fgraph)
    with _replaced_vm(f, machine):
        f(*arguments, **named)  # selects plans, and compiles kernels
        machine.forget_times()
        for _ in range(calls):
            f(*arguments, **named)
    return replace(
        described,
        nodes=machine.completed(described.nodes),
        calls=calls,
        input_bytes=machine.input_bytes,
    )


@contextmanager
def _replaced_vm(f: Any, machine: MeasuringVM) -> Iterator[None]:
    """Let a function run on another virtual machine, and keep these calls out of its profile."""
    vm, profile = f.vm, f.profile
    f.vm, f.profile = machine, None
    try:
        yield
    finally:
        f.vm, f.profile = vm, profile


class MeasuringVM:
    """A virtual machine that runs the thunks of another one, and measures them.

    It updates no shared variable. Inputs that the graph overwrites are copied before each call.

    Parameters
    ----------
    vm : pytensor.link.vm.VM
        Virtual machine that holds the thunks.
    fgraph : FunctionGraph
        Graph that it runs.
    """

    #: `pytensor.compile.Function` would otherwise perform the updates.
    need_update_inputs = False

    def __init__(self, vm: Any, fgraph: FunctionGraph):
        self.nodes: list[Apply] = list(vm.nodes)
        self.thunks: list[Any] = list(vm.thunks)
        self.storage_map: Mapping[Variable, list[Any]] = vm.storage_map
        self.compute_map: Mapping[Variable, list[Any]] = vm.compute_map
        self.allow_gc = bool(vm.allow_gc)
        self.input_bytes = 0
        self.fgraph = fgraph
        self._index = {node: i for i, node in enumerate(self.nodes)}
        self._origins: dict[Variable, Variable] = {}
        for node in self.nodes:
            self._origins |= declared_origins(node)
        self._overwritten = self._find_overwritten()
        self._is_lazy = any(getattr(thunk, "lazy", False) for thunk in self.thunks)
        waits = get_destroy_dependencies(fgraph) if self._is_lazy else {}
        self._waits: dict[Apply, list[Variable]] = dict(waits)
        self._freed = dict(
            zip(self.nodes, releases(self.nodes, fgraph.outputs, self.allow_gc), strict=True)
        )
        devices = [d for node in self.nodes if (d := device_of(node)) is not None]
        self._watch = DeviceStopwatch(devices) if devices else Stopwatch()
        self._times: dict[Apply, list[float]] = {}
        # Of the latest call.
        self._executed: list[Apply] = []
        self._shapes: dict[Variable, tuple[int, ...] | None] = {}
        self._sizes: dict[Variable, int] = {}
        self._copies: set[Variable] = set()

    def _find_overwritten(self) -> list[Variable]:
        """Return the inputs and constants whose memory the graph overwrites."""
        found: dict[Variable, None] = {}
        for node in self.nodes:
            for operands in node.op.destroy_map.values():
                for operand in operands:
                    root = node.inputs[operand]
                    while root in self._origins:
                        root = self._origins[root]
                    if root.owner is None:
                        found[root] = None
        return list(found)

    def forget_times(self) -> None:
        """Drop the times of the calls so far."""
        self._times.clear()

    # -- running ---------------------------------------------------------------------------

    def __call__(self) -> list[Any]:
        """Run all nodes, and return the outputs of the graph."""
        outputs = self.fgraph.outputs
        for x, cell in self.compute_map.items():
            cell[0] = x.owner is None
        for x in self.storage_map if self.allow_gc else outputs:
            if x.owner is not None:
                self.storage_map[x][0] = None
        self._executed = []
        self._watch.start()
        with self._kept_inputs():
            if self._is_lazy:
                for z in outputs:
                    self._evaluate(z)
            else:
                for node in self.nodes:
                    self._run(node)
                    for x in self._freed[node]:
                        self.storage_map[x][0] = None
            for node, time in self._watch.finished().items():
                self._times.setdefault(node, []).append(time)
            results = [self.storage_map[z][0] for z in outputs]
        if self.allow_gc:
            for z in outputs:
                if z.owner is not None:
                    self.storage_map[z][0] = None
        return results

    @contextmanager
    def _kept_inputs(self) -> Iterator[None]:
        """Let the graph overwrite copies of its inputs."""
        inputs = [x for x in self.storage_map if x.owner is None]
        values = {x: self.storage_map[x][0] for x in inputs}
        self.input_bytes = sum(map(_bytes, values.values()))
        self._shapes |= {x: getattr(value, "shape", None) for x, value in values.items()}
        try:
            for x in self._overwritten:
                self.storage_map[x][0] = _copied(x, values[x])
            yield
        finally:
            for x in self._overwritten:
                self.storage_map[x][0] = values[x]

    def _evaluate(self, output: Variable) -> None:
        """Run the nodes that an output needs, as PyTensor's lazy virtual machines do."""
        pending = [output]
        while pending:
            node = pending[-1].owner
            if node is None or self.compute_map[pending[-1]][0]:
                pending.pop()
                continue
            if getattr(self.thunks[self._index[node]], "lazy", False):
                wanted = [node.inputs[i] for i in self._run(node) or ()]
            else:
                wanted = [
                    x
                    for x in (*node.inputs, *self._waits.get(node, ()))
                    if not self.compute_map[x][0]
                ]
                if not wanted:
                    self._run(node)
            pending += wanted

    def _run(self, node: Apply) -> Any:
        """Run a node; a lazy one returns the operands that it needs first."""
        index = self._index[node]
        thunk = self.thunks[index]
        # PyTensor adds the node to the message of an error if there is this attribute.
        self.position_of_error = index
        wanted = self._watch.run(node, thunk)
        del self.position_of_error
        if wanted and getattr(thunk, "lazy", False):
            return wanted
        self._executed.append(node)
        for z in node.outputs:
            self.compute_map[z][0] = True
            value = self.storage_map[z][0]
            self._shapes[z] = getattr(value, "shape", None)
            self._sizes[z] = _bytes(value)
            self._copies.discard(z)
            if z in self._origins and not _shares(value, self.storage_map[self._origins[z]][0]):
                self._copies.add(z)  # for example a reshape that had to copy
        return None

    # -- results ---------------------------------------------------------------------------

    def completed(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return the nodes of a description with what was measured."""
        order = self._executed
        origins = {z: x for z, x in self._origins.items() if z not in self._copies}
        freed = releases(order, self.fgraph.outputs, self.allow_gc)
        memory = count_memory(order, freed, self._sizes, origins)
        found = dict(zip(order, memory, strict=True)) if memory else {}
        complete = []
        for node, thunk, description in zip(self.nodes, self.thunks, nodes, strict=True):
            times, around = self._times.get(node, []), found.get(node)
            plan = plan_of(node)
            moved = sum(self._sizes.get(z, 0) for z in node.outputs)
            capture = self._watch.capture(node)
            complete.append(
                replace(
                    description,
                    # For some shapes, an Op leaves to CuPy what it does from C for others.
                    library=library_of(node, hasattr(thunk, "cthunk")),
                    inputs=self._measured(node.inputs, description.inputs),
                    outputs=self._measured(node.outputs, description.outputs),
                    bytes=around.allocated if around else 0,
                    live_bytes=around.live if around else None,
                    peak_bytes=around.peak if around else None,
                    moved_bytes=moved if description.transfer else 0,
                    time_ms=median(times) if times else None,
                    calls=len(times),
                    plan=plan.plan if plan else "",
                    workspace_bytes=plan.workspace_bytes if plan else None,
                    captured=None if capture is None else capture == "",
                    reason=f"not captured: {capture}" if capture else description.reason,
                )
            )
        return tuple(complete)

    def _measured(self, variables: list[Any], operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(
            replace(operand, shape=shape) if (shape := self._shapes.get(x)) is not None else operand
            for x, operand in zip(variables, operands, strict=True)
        )


def _bytes(value: Any) -> int:
    """Return the bytes of an array, 0 for other values."""
    size = getattr(value, "nbytes", 0)
    return int(size) if isinstance(size, (int, np.integer)) else 0


def _copied(x: Variable, value: Any) -> Any:
    if is_on_device(x):
        # CuPy copies to the current device.
        with on_device(x.type.device):
            return value.copy(order="K")
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    return copy.deepcopy(value)


def _shares(value: Any, operand: Any) -> bool:
    """Return whether a result shares the memory of an operand, as its Op declares."""
    if isinstance(value, np.ndarray) and isinstance(operand, np.ndarray):
        return np.may_share_memory(value, operand)
    if hasattr(value, "__cuda_array_interface__") and hasattr(operand, "__cuda_array_interface__"):
        import cupy

        return bool(cupy.may_share_memory(value, operand))
    return True
