"""Execution of a graph's plans with arrays of any library."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any
from weakref import finalize

import numpy as np

from dnnops import libcudnn
from dnnops.arguments import is_int
from dnnops.errors import (
    DnnLibraryError,
    DnnNotSupportedError,
    DnnUnavailableError,
    DnnValueError,
)
from dnnops.gpu.library import StreamAddress
from dnnops.graph.devices import current_device, default_handle, get_stream
from dnnops.graph.names import build_plan_policy
from dnnops.graph.places import TensorPlace, WorkspacePlace
from dnnops.graph.plan import Plan, reason_of
from dnnops.graph.plans import PlannedGraph
from dnnops.graph.scalars import as_host_number
from dnnops.graph.table import plan_table
from dnnops.graph.tensors import Tensor
from dnnops.libcudnn.handles import as_handle
from dnnops.runtime.build import CUDNN
from dnnops.runtime.op import raise_status

__all__ = ["ExecutableGraph"]


@cache
def _runner() -> Any:
    """Return the C function that executes a plan.

    It has one argument, because `ctypes` needs longer to convert several.
    """
    function = CUDNN.library.dnnops_cudnn_graph_execute
    function.argtypes = [ctypes.c_int64]
    return function


class _Calls:
    """What the calls of a built plan have in common.

    Attributes
    ----------
    descriptor : Descriptor
        The plan.
    scratch : WorkspacePlace
        Place of its workspace.
    replays : int
        Address of the C library's recordings of it as a CUDA graph, which calls with the same
        addresses replay; 0 if calls differ in numbers that are passed by value.
    last : tuple
        What may differ from call to call, as it was in the last one, the words of that call for the
        library, and their address.
    """

    def __init__(self, plan: Plan, is_recorded: bool):
        self.descriptor, self.scratch = plan.descriptor, WorkspacePlace(plan.workspace)
        self.last: tuple[list[int], array[int], int] = [], array("q"), 0
        self.replays = 0
        if is_recorded:
            library = CUDNN.library
            self.replays = library.dnnops_cudnn_graph_replays_new()
            delete = library.dnnops_cudnn_graph_replays_delete
            finalize(self, delete, self.replays).atexit = False


class ExecutableGraph(PlannedGraph):
    """A graph whose plans run with arrays. Parameters are those of `pygraph`."""

    _slots: dict[Any, TensorPlace] | None = None
    _constants: list[tuple[int, np.ndarray]] | None = None

    def _prepare(self) -> dict[Any, TensorPlace]:
        """Return the tensors to bind, by tensor and uid; the graph's numbers are stored."""
        if self.device is not None:
            raise DnnUnavailableError(
                f"graph {self.name!r} was planned for a described device; serialize it, and"
                " deserialize it where the device is"
            )
        slots: dict[Any, TensorPlace] = {}
        for tensor in (*self.get_inputs(), *self.get_outputs()):
            if tensor.value is None:
                slots[tensor] = slots[tensor.uid] = TensorPlace(tensor)
        constants = self.constants()
        self._bound = [n for uid, x in constants for n in (uid, x.ctypes.data)]
        self._bound_size = len(self._bound) + len(slots)
        # The library reads these numbers when it launches a plan, or else when it is recorded.
        self._is_recorded = not any(slot.by_value for slot in slots.values())
        self._run = _runner()
        self._handle_type: Any = libcudnn.cudnnHandle_t
        self._slots = slots
        return slots

    def constants(self) -> list[tuple[int, np.ndarray]]:
        """Return the numbers that belong to the graph, by uid, as arrays on the host."""
        if self._constants is None:
            self._constants = [
                (tensor.uid, as_host_number(tensor, tensor.value))
                for tensor in self.tensors.values()
                if tensor.value is not None
            ]
        return self._constants

    def execute(
        self,
        tensor_to_device_buffer: Mapping[Any, Any],
        workspace: Any = None,
        handle: Any = None,
    ) -> None:
        """Run the chosen plan.

        Parameters
        ----------
        tensor_to_device_buffer : mapping
            For each tensor with an array, by the tensor, its uid or its name: an array on the
            device, of CuPy, PyTorch, JAX or any library with ``__cuda_array_interface__`` or
            DLPack, or its address. For a tensor that is passed by value, a number. cuDNN uses the
            strides of the graph, whatever those of the array are.
        workspace : array, int or None
            Memory of `get_workspace_size` bytes; by default, dnnops provides it.
        handle : int, optional
            cuDNN's handle, by default that of the graph. Its stream is used. If the graph has none,
            CuPy's current stream is used.

        Raises
        ------
        DnnValueError
            If an array or the workspace is too small, an array is missing, or a key is not a tensor
            of the graph.
        DnnTypeError
            If an array is on the host, or has another data type than the tensor.
        CudnnError
            If cuDNN fails.
        """
        chosen = self._chosen
        plan = self.plan_at() if chosen is None else self.plans[chosen]
        self._execute(plan, tensor_to_device_buffer, workspace, handle)

    def execute_plan_at_index(
        self,
        tensor_to_device_buffer: Mapping[Any, Any],
        workspace: Any,
        index: int,
        handle: Any = None,
    ) -> None:
        """Run a plan; see `execute`."""
        self._execute(self.plan_at(index), tensor_to_device_buffer, workspace, handle)

    def time_plans(
        self,
        arrays: Mapping[Any, Any],
        workspace: Any = None,
        handle: Any = None,
        repeats: int = 30,
    ) -> list[Plan]:
        """Build and time all plans that are not excluded, and choose the fastest.

        Parameters
        ----------
        arrays, workspace, handle
            As for `execute`. The results are overwritten. The workspace must be large enough for
            every plan, so it is better left out.
        repeats : int
            Number of timed calls of each plan, after three others.

        Returns
        -------
        list of Plan
            The fastest first, then those that could not be built or run, which have a `reason`.

        Raises
        ------
        DnnNotSupportedError
            If no plan can be run.
        """
        if not is_int(repeats) or repeats < 1:
            raise DnnValueError(f"repeats must be a positive integer, got {repeats!r}")
        self._prepare()
        import cupy

        for plan in self.plans:
            if not plan.is_excluded:
                plan.time_ms, plan.reason = None, ""
        self.build_plans(build_plan_policy.ALL)
        if handle is None:
            handle = self._own_handle()
        address, null = get_stream(handle), cupy.cuda.Stream.null
        stream = cupy.cuda.Stream.from_external(StreamAddress(address)) if address else null
        with stream:
            for plan in self.plans:
                if plan.descriptor is None or plan.is_excluded:
                    continue
                try:
                    plan.time_ms = self._time(plan, arrays, workspace, handle, repeats)
                except DnnLibraryError as error:
                    plan.reason = reason_of(error)

        # Plans that were timed before they were excluded keep their times.
        def order(plan: Plan) -> tuple[bool, float]:
            return plan.is_excluded or plan.time_ms is None, plan.time_ms or 0.0

        fastest, *others = sorted(self.plans, key=order)
        if order(fastest)[0]:
            raise DnnNotSupportedError(f"graph {self.name!r}: no plan could be timed")
        self._chosen = next(i for i, plan in enumerate(self.plans) if plan is fastest)
        return [fastest, *others]

    def _time(
        self, plan: Plan, arrays: Mapping[Any, Any], workspace: Any, handle: Any, repeats: int
    ) -> float:
        import cupy

        events = [cupy.cuda.Event() for _ in range(repeats + 1)]
        for _ in range(3):
            self._execute(plan, arrays, workspace, handle)
        events[0].record()
        for event in events[1:]:
            self._execute(plan, arrays, workspace, handle)
            event.record()
        events[-1].synchronize()
        return float(np.median([cupy.cuda.get_elapsed_time(a, b) for a, b in pairwise(events)]))

    def plan_table(self, width: int | None = None) -> str:
        """Return a table of all plans, with times if `time_plans` measured them.

        Parameters
        ----------
        width : int, optional
            Characters in a line; by default, ``COLUMNS`` or those of the terminal.

        Returns
        -------
        str
        """
        return plan_table(self.plans, width)

    def _execute(self, plan: Any, arrays: Mapping[Any, Any], workspace: Any, handle: Any) -> None:
        slots = self._slots or self._prepare()
        bound, kept = self._bound[:], []
        for key, value in arrays.items():
            slot = slots.get(key)
            if slot is None:
                slot = self._find_slot(slots, key)
                if slot is None:
                    continue
            bound.append(slot.uid)
            array_of, pointer, known = slot.known
            # The reference is None once the array is gone.
            if array_of() is value is not None and pointer(value) == known:
                bound.append(known)
            elif slot.by_value:
                number = as_host_number(slot.tensor, value)
                kept.append(number)
                bound.append(number.ctypes.data)
            else:
                bound.append(slot.address(value))
        if len(bound) != self._bound_size:
            self._refuse_missing(slots, bound[::2])
        calls = plan.calls
        if calls is None or calls.descriptor is not plan.descriptor:
            plan.calls = calls = _Calls(plan, self._is_recorded)
        scratch = 0
        if workspace is not None:
            array_of, pointer, scratch = calls.scratch.known
            if array_of() is not workspace or pointer(workspace) != scratch:
                scratch = calls.scratch.address(workspace)
        if handle is None:
            handle = self._own_handle()
        if type(handle) is not self._handle_type:
            handle = as_handle(handle, self._handle_type, "handle")
        given, last = [handle, scratch, *bound], calls.last
        if given != last[0]:
            size, replays = plan.workspace, calls.replays
            fixed = handle, plan.descriptor.handle, scratch, size, self.device_number, replays
            words = array("q", [*fixed, len(bound), *bound])
            # One assignment, because another thread may execute the plan.
            calls.last = last = given, words, words.buffer_info()[0]
        status = self._run(last[2])
        if status:
            raise_status(CUDNN, status)

    def _own_handle(self) -> Any:
        """Return the graph's handle, or this thread's for the device of the plans."""
        if self.handle is not None:
            return self.handle
        if current_device() != self.device_number:
            raise DnnValueError(
                f"graph {self.name!r} was planned for device {self.device_number}, but device"
                f" {current_device()} is current"
            )
        return default_handle()

    def _find_slot(self, slots: dict[Any, TensorPlace], key: Any) -> TensorPlace | None:
        """Find a tensor by its name; None for None and for numbers that belong to the graph.

        Raises
        ------
        DnnValueError
            If it is not a tensor of the graph that has an array.
        """
        if key is None:
            return None
        found = key if isinstance(key, Tensor) else self.tensors.get(key)
        if found is None or self.tensors.get(found.name) is not found:
            raise DnnValueError(f"graph {self.name!r} has no tensor {key!r}")
        if found.is_virtual and found.value is None:
            raise DnnValueError(
                f"tensor {found.name!r} is virtual; call set_output(True) to get its values"
            )
        if found.value is not None:
            raise DnnValueError(f"tensor {found.name!r} has the value {found.value} of the graph")
        if found not in slots:
            raise DnnValueError(f"no operation of graph {self.name!r} uses tensor {found.name!r}")
        return slots[found]

    def _refuse_missing(self, slots: dict[Any, TensorPlace], given: Sequence[int]) -> None:
        missing = [s.tensor.name for key, s in slots.items() if key not in given and key == s.uid]
        if missing:
            raise DnnValueError(f"graph {self.name!r}: no arrays for {', '.join(missing)}")
        raise DnnValueError(f"graph {self.name!r}: a tensor has more than one array")
