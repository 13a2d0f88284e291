"""The virtual machine of functions whose calls are captured as CUDA graphs."""

from __future__ import annotations

import logging
from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np
from pytensor.graph.fg import FunctionGraph

from dnnops.capture.budget import KEPT_SIGNATURES, Budget
from dnnops.capture.captured import Captured
from dnnops.capture.recorder import Recorder
from dnnops.capture.schedule import Role, Schedule, schedule
from dnnops.config import flag_value
from dnnops.errors import DnnNotSupportedError, DnnThreadError
from dnnops.gpuarray.device import is_current, on_device
from dnnops.gpuarray.op import is_on_device

__all__ = ["CapturingVM", "capturing", "why_not_captured"]

_log = logging.getLogger(__name__)

#: Calls with equal shapes that run node by node first. They select plans and compile kernels.
ORDINARY_CALLS = 2
#: Numbers of graphs that a function keeps: at least, and at most if they take few bytes in all.
KEPT_GRAPHS, MOST_GRAPHS, KEPT_BYTES = 4, 64, 1 << 28


class CapturingVM:
    """Virtual machine that runs another one, or replays a CUDA graph of what that one ran.

    After some calls with equal shapes, the work on the device is recorded, and replayed in later
    calls with these shapes. Host nodes run as before.

    Parameters
    ----------
    vm : pytensor.link.vm.VM
        Virtual machine that runs node by node. Attributes not defined here are its own.
    fgraph : FunctionGraph
        Graph that it runs.
    roles : Schedule
        Roles of the nodes.
    required : bool
        Whether a capture that fails raises an error. Otherwise, the function runs without.

    Attributes
    ----------
    reason : str
        Why the last call was not captured; empty if it was, or if its shapes were new.
    captures, replays : int
        Numbers of graphs made and launched.
    """

    def __init__(self, vm: Any, fgraph: FunctionGraph, roles: Schedule, required: bool):
        self.vm = vm
        self.reason = ""
        self._has_failed = False
        self.captures = self.replays = 0
        self._required = required
        self._running = Lock()
        self._device, self._by_value = roles.device, roles.by_value
        self._recorder = recorder = Recorder(vm, fgraph, roles)
        storage = vm.storage_map
        self._shared_cells = [storage[x] for x in recorder.shared]
        self._argument_cells = [storage[x] for x in recorder.arguments]
        self._host_cells = [
            storage[x]
            for x in fgraph.inputs
            if not is_on_device(x) and hasattr(x.type, "broadcastable")
        ]
        self._before = recorder.thunks(Role.BEFORE)
        self._after = recorder.thunks(Role.AFTER)
        self._value_cells = [storage[x] for x in roles.by_value]
        self._budget = Budget()
        self._output_cells = [storage[z] for z in fgraph.outputs]
        self._is_computed = [z.owner is not None for z in fgraph.outputs]
        updates: dict[Any, Any] = fgraph.update_mapping or {}
        self._update_cells = [(storage[fgraph.inputs[x]], z) for z, x in updates.items()]
        #: Numbers for the shapes and strides of all shared variables.
        self._shapes: dict[Any, int] = {}
        #: The graph that was launched last, and the number of its shapes.
        self._last: tuple[Captured, int] | None = None
        #: For each signature, the number of ordinary calls, and the addresses of the arguments in
        #: them, or None for those that have changed.
        self._seen: dict[Any, tuple[int, list[int | None]]] = {}
        self._graphs: OrderedDict[Any, Captured] = OrderedDict()
        #: How often arguments that a graph read in place were elsewhere.
        self._moves = 0

    def __getattr__(self, name: str) -> Any:
        if name == "vm":  # not set yet while this object is copied
            raise AttributeError(name)
        return getattr(self.vm, name)

    @property
    def graph_bytes(self) -> int:
        """Device memory of the graphs, beside the arrays of shared variables."""
        return sum(captured.nbytes for captured in self._graphs.values())

    # -- calls -----------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.__dict__.pop("position_of_error", None)
        if self._has_failed or args or kwargs:
            return self.vm(*args, **kwargs)
        if not self._running.acquire(blocking=False):
            raise DnnThreadError(
                "two threads call one function at the same time, which stores its arguments and"
                " results; give each thread a copy of it: function.copy()"
            )
        try:
            return self._run_or_capture()
        finally:
            self._running.release()

    def _run_or_capture(self) -> list[Any]:
        # Shared variables rarely get other arrays, so their shapes are compared only then.
        last = self._last
        if last is not None and not last[0].has_shared_arrays():
            last = None
        signature = self._signature(last[1] if last else self._number_of_shapes())
        calls, addresses = self._seen.get(signature, (0, None))
        if calls < ORDINARY_CALLS:
            if len(self._seen) >= KEPT_SIGNATURES:
                self._seen.clear()
                self._budget.forget()
            self._seen[signature] = calls + 1, self._common(addresses)
            return self.vm()
        if is_current(self._device):
            return self._run_captured(signature, last)
        with on_device(self._device):
            return self._run_captured(signature, last)

    def _run_captured(self, signature: Any, last: tuple[Captured, int] | None) -> list[Any]:
        """Replay the graph for a signature, or capture it first. The device is the current one.

        `last` is what was launched last, if shared variables still have its arrays.
        """
        import cupy

        if cupy.cuda.get_current_stream().is_capturing():
            # The caller's graph may be launched at any time, which a graph of dnnops would not
            # know of.
            return self.vm()
        for position, thunk in self._before:
            self._run(position, thunk)
        key = (signature, tuple([np.asarray(cell[0]).tobytes() for cell in self._value_cells]))
        captured = self._found(key, last)
        if captured is None and self._may_capture(key):
            captured = self._captured(key)
        if captured is None:
            return self._run_rest()
        self.reason = ""
        self._last = captured, signature[0]
        return self._replay(captured)

    def _signature(self, number: int) -> Any:
        """Return what stands for the shapes and strides of all inputs.

        `number` stands for those of shared variables.
        """
        return (
            number,
            tuple([(cell[0].shape, cell[0].strides) for cell in self._argument_cells]),
            tuple([cell[0].shape for cell in self._host_cells]),
        )

    def _number_of_shapes(self) -> int:
        """Return a number for the shapes and strides of shared variables."""
        shapes = tuple([(cell[0].shape, cell[0].strides) for cell in self._shared_cells])
        if shapes not in self._shapes and len(self._shapes) >= KEPT_SIGNATURES:
            self._shapes.clear()
            self._seen.clear()
            self._budget.forget()
            self._forget()
        return self._shapes.setdefault(shapes, len(self._shapes))

    def _forget(self) -> None:
        """Release all graphs."""
        self._graphs.clear()
        self._last = None

    def _found(self, key: Any, last: tuple[Captured, int] | None) -> Captured | None:
        """Return the graph for a signature, unless it reads arrays that have been replaced."""
        captured = self._graphs.get(key)
        if captured is None:
            return None
        has_arrays = (last and captured is last[0]) or captured.has_shared_arrays()
        is_in_place = captured.has_arguments_in_place()
        if has_arrays and is_in_place:
            self._graphs.move_to_end(key)
            return captured
        # The value of a shared variable was set, or an argument is elsewhere.
        if not is_in_place:
            # All arguments are copied from now on, so this happens once for these shapes.
            calls, addresses = self._seen[key[0]]
            self._seen[key[0]] = calls, [None] * len(addresses)
            self._moves += 1
        del self._graphs[key]
        self._last = None
        return None

    def _common(self, addresses: list[int | None] | None) -> list[int | None]:
        """Return the addresses of the arguments that are those of former calls, or None."""
        own = [cell[0].data.ptr for cell in self._argument_cells]
        former = own if addresses is None else addresses
        return [x if x == y else None for x, y in zip(own, former, strict=True)]

    def _replay(self, captured: Captured) -> list[Any]:
        for replay, node in captured.stages:
            if replay is not None:
                replay.run()
            self._run(node.position, node.run)
        outputs = captured.replay.run()
        self.replays += 1
        for cell, value in captured.results:
            cell[0] = value
        for position, thunk in self._after:
            self._run(position, thunk)
        for position in captured.on_host:
            outputs[position] = self._output_cells[position][0]
        for cell, position in captured.updates:
            cell[0] = outputs[position]
        for cell in captured.written:
            cell[0] = None
        return outputs

    def _run_rest(self) -> list[Any]:
        """Run the nodes that do not run before the graph, one by one."""
        for position, (_, thunk, role) in enumerate(self._recorder.steps):
            if role is not Role.BEFORE:
                self._run(position, thunk)
            self._recorder.free(position)
        return self._finish([cell[0] for cell in self._output_cells])

    def _run(self, position: int, thunk: Any) -> None:
        # PyTensor adds the node to the message of an error.
        self.position_of_error = position
        thunk()
        del self.position_of_error

    def _finish(self, outputs: list[Any]) -> list[Any]:
        """Update shared variables, and release all results."""
        for cell, position in self._update_cells:
            cell[0] = outputs[position]
        for cell, is_computed in zip(self._output_cells, self._is_computed, strict=True):
            if is_computed:
                cell[0] = None
        self._recorder.free_all()
        return outputs

    # -- captures --------------------------------------------------------------------------

    def _captured(self, key: Any) -> Captured | None:
        """Capture the work of this call without running it; return None if that fails."""
        try:
            # Arguments that a caller keeps in one place are not copied.
            calls, addresses = self._seen[key[0]]
            addresses = self._common(addresses)
            self._seen[key[0]] = calls, addresses
            captured = self._recorder.capture([x is not None for x in addresses])
        except Exception as error:
            self._recorder.free_all(keep=Role.BEFORE)
            self._forget()
            self._has_failed = True
            self._set_reason(str(error).split("\n", 1)[0])
            if self._required:
                raise DnnNotSupportedError(
                    f"dnn.cuda_graph=True, but the function cannot be captured: {error}"
                ) from error
            return None
        except BaseException:
            self._recorder.free_all()
            raise
        self.captures += 1
        self._graphs[key] = captured
        while len(self._graphs) > KEPT_GRAPHS and (
            len(self._graphs) > MOST_GRAPHS or self.graph_bytes > KEPT_BYTES
        ):
            self._graphs.popitem(last=False)
        return captured

    def _may_capture(self, key: Any) -> bool:
        """Return whether to capture a call; otherwise note why not."""
        if self._required or self._budget.allows(key, self.captures - self._moves, self.replays):
            return True
        self._set_reason(self._why_new() if self._by_value else "its arrays keep changing")
        return False

    def _why_new(self) -> str:
        """Return why a graph is valid for some values only, and what to do about it."""
        x = self._by_value[0]
        reader = next(
            node
            for node, _, role in self._recorder.steps
            if role is Role.DEVICE and x in node.inputs
        )
        return (
            f"the shape of a result of {reader} depends on the value of {x}, which keeps changing."
            " Only values that come again are captured. Let shapes stay the same, for example with"
            " a mask instead of a slice that grows"
        )

    def _set_reason(self, reason: str) -> None:
        if self.reason != reason:
            self.reason = reason
            _report(reason)


def capturing(vm: Any, fgraph: FunctionGraph) -> Any:
    """Return a virtual machine that captures what a virtual machine runs.

    Parameters
    ----------
    vm : pytensor.link.vm.VM
        Virtual machine of a function.
    fgraph : FunctionGraph
        Graph of the function.

    Returns
    -------
    CapturingVM or pytensor.link.vm.VM
        `vm` itself if it uses no GPU or cannot be captured.

    Raises
    ------
    DnnNotSupportedError
        If the function cannot be captured, and ``dnn.cuda_graph`` is True.
    """
    required = flag_value("dnn.cuda_graph") == "True"
    if not _uses_device(fgraph):
        return vm
    try:
        return CapturingVM(vm, fgraph, schedule(fgraph, vm.nodes, vm.thunks), required)
    except DnnNotSupportedError as error:
        if required:
            raise DnnNotSupportedError(
                f"dnn.cuda_graph=True, but the function cannot be captured: {error}"
            ) from error
        _report(str(error))
        return vm


def why_not_captured(vm: Any, fgraph: FunctionGraph) -> str:
    """Return why a function on a GPU is not captured.

    Parameters
    ----------
    vm : pytensor.link.vm.VM or CapturingVM
        Virtual machine of the function.
    fgraph : FunctionGraph
        Graph of the function.

    Returns
    -------
    str
        Empty if the function is captured or uses no GPU, or if ``dnn.cuda_graph`` is False.
    """
    if isinstance(vm, CapturingVM):
        return vm.reason
    is_wanted = flag_value("dnn.cuda_graph") != "False"
    if not is_wanted or not hasattr(vm, "thunks") or not _uses_device(fgraph):
        return ""
    try:
        schedule(fgraph, vm.nodes, vm.thunks)
    except DnnNotSupportedError as error:
        return str(error)
    return "it was compiled with dnn.cuda_graph=False or with a linker that captures nothing"


def _uses_device(fgraph: FunctionGraph) -> bool:
    return any(is_on_device(x) for x in fgraph.variables)


def _report(reason: str) -> None:
    """Say why a function runs without a CUDA graph, under ``dnn.verbose``."""
    _log.debug("a function is not captured: %s", reason)
    if flag_value("dnn.verbose"):
        print(f"dnnops: a function is not captured as a CUDA graph: {reason}", flush=True)
