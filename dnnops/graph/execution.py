"""Execution of a graph's plans with arrays of any library."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from operator import attrgetter
from typing import Any
from weakref import finalize, ref

import numpy as np

from dnnops import libcudnn
from dnnops.arguments import is_int
from dnnops.errors import (
    DnnLibraryError,
    DnnNotSupportedError,
    DnnTypeError,
    DnnUnavailableError,
    DnnValueError,
)
from dnnops.gpu.library import StreamAddress
from dnnops.graph.devices import current_device, default_handle, get_stream
from dnnops.graph.names import as_data_type, build_plan_policy, dtype_of
from dnnops.graph.plan import Plan, reason_of
from dnnops.graph.plans import PlannedGraph
from dnnops.graph.scalars import as_host_number
from dnnops.graph.table import plan_table
from dnnops.graph.tensors import ALIGNMENT, Tensor, strides_of
from dnnops.libcudnn.handles import as_handle
from dnnops.libcudnn.pointers import as_device
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


#: Functions that return the address of an array, and its dtype, shape and strides, by its type. The
#: address is None if `as_device` has to find or to refuse it.
_READERS: dict[type, Callable[[Any], tuple[int | None, Any]]] = {}


def _reader(value: Any) -> Callable[[Any], tuple[int | None, Any]]:
    """Return the function for the type of an argument."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        read = _read_address
    elif hasattr(value, "data_ptr") and hasattr(value, "is_cuda"):
        read = _read_torch
    elif hasattr(value, "strides") and _has_pointer(value):
        read = _read_cupy
    else:
        read = _read_any
    _READERS[type(value)] = read
    return read


def _has_pointer(value: Any) -> bool:
    try:
        return type(value.data.ptr) is int
    except (AttributeError, ValueError):  # NumPy's for dtypes that have no buffer
        return False


def _read_cupy(value: Any) -> tuple[int | None, Any]:
    return value.data.ptr, (value.dtype, value.shape, value.strides)


def _read_torch(value: Any) -> tuple[int | None, Any]:
    address = value.data_ptr() if value.is_cuda else None
    return address, (value.dtype, value.shape, value.stride())


def _read_any(value: Any) -> tuple[int | None, Any]:
    return None, (value.dtype, value.shape, getattr(value, "strides", None))


def _read_address(value: Any) -> tuple[int | None, Any]:
    return None, None


def _pointer(value: Any) -> Callable[[Any], int] | None:
    """Return what reads only the address of arrays of this type, if that needs no check."""
    kind = type(value)
    read = _READERS.get(kind) or _reader(value)
    if read is _read_torch:
        return getattr(kind, "data_ptr", None)  # an object may forward what its class lacks
    return attrgetter("data.ptr") if read is _read_cupy else None


def _no_array() -> Any:
    """Stand for the reference to an array, where there is none."""
    return _no_array


class _Place:
    """Where `execute` needs an array.

    Attributes
    ----------
    label : str
        What messages call it.
    known : tuple
        A reference to the array of the last call, the function that reads its address, and the
        address. An array that is the same object at the same address is not checked again. Its
        memory cannot have become smaller, whatever has become of its shape. Without an array, the
        function is never called.
    """

    __slots__ = ("known", "label")

    def __init__(self, label: str) -> None:
        self.label = label
        self.known: tuple[Callable[[], Any], Callable[[Any], int], int] = _no_array, id, 0

    def address(self, value: Any) -> int:
        """Return the address of an array after checking it.

        Raises
        ------
        DnnTypeError
            If it is not an array on the device, or has another data type.
        DnnValueError
            If it is too small, null or not aligned.
        """
        address = self.check(value)
        pointer = _pointer(value)
        # Not every class allows weak references.
        if pointer is None or not type(value).__weakrefoffset__:
            self.known = _no_array, id, 0
        else:
            self.known = ref(value), pointer, address
        return address

    def check(self, value: Any) -> int:
        raise NotImplementedError


class _Scratch(_Place):
    """The workspace of a plan, whose size must suffice if it is known."""

    __slots__ = ("size",)

    def __init__(self, size: int | None) -> None:
        super().__init__("workspace")
        self.size = size or 0

    def check(self, value: Any) -> int:
        size = getattr(value, "nbytes", None)
        if isinstance(size, int) and size < self.size:
            raise DnnValueError(f"the workspace has {size} bytes; the plan needs {self.size}")
        return as_device(value, self.label)


class _Slot(_Place):
    """A tensor that `execute` needs an array for."""

    __slots__ = ("by_value", "checked", "span", "tensor", "uid")

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(f"tensor {tensor.name!r}")
        self.tensor, self.uid, self.by_value = tensor, tensor.uid, tensor.is_pass_by_value
        self.span = tensor.span
        self.checked: Any = None

    def check(self, value: Any) -> int:
        read = _READERS.get(type(value)) or _reader(value)
        address, form = read(value)
        if form != self.checked and form is not None:
            self._check_form(value, *form)
            self.checked = form
        if address is None:
            address = as_device(value, self.label)
        if not address or address % ALIGNMENT:
            fault = f"not aligned to {ALIGNMENT} bytes; copy it" if address else "a null pointer"
            raise DnnValueError(f"{self.label} is {fault}")
        return address

    def _check_form(self, value: Any, dtype: Any, shape: Any, strides: Any) -> None:
        tensor = self.tensor
        if dtype_of(tensor.data_type) is not None and as_data_type(dtype) != tensor.data_type:
            raise DnnTypeError(f"{self.label} has data type {tensor.data_type.name}, got {dtype}")
        item = _item_size(value)
        if strides is None:
            strides = [item * n for n in strides_of(shape)]
        elif hasattr(value, "data_ptr"):
            strides = [item * n for n in strides]
        size = item + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if size < self.span:
            raise DnnValueError(
                f"{self.label} of dim {tensor.dim} and stride {tensor.stride} needs {self.span}"
                f" bytes, but the array of shape {tuple(shape)} has {size}"
            )


def _item_size(value: Any) -> int:
    size = getattr(value, "itemsize", None)
    return int(size if isinstance(size, int) else value.dtype.itemsize)


class _Calls:
    """What the calls of a built plan have in common.

    Attributes
    ----------
    descriptor : Descriptor
        The plan.
    scratch : _Scratch
        Place of its workspace.
    replays : int
        Address of the C library's recordings of it as a CUDA graph, which calls with the same
        addresses replay; 0 if calls differ in numbers that are passed by value.
    last : tuple
        What may differ from call to call, as it was in the last one, the words of that call for the
        library, and their address.
    """

    def __init__(self, plan: Plan, is_recorded: bool):
        self.descriptor, self.scratch = plan.descriptor, _Scratch(plan.workspace)
        self.last: tuple[list[int], array[int], int] = [], array("q"), 0
        self.replays = 0
        if is_recorded:
            library = CUDNN.library
            self.replays = library.dnnops_cudnn_graph_replays_new()
            delete = library.dnnops_cudnn_graph_replays_delete
            finalize(self, delete, self.replays).atexit = False


class ExecutableGraph(PlannedGraph):
    """A graph whose plans run with arrays. Parameters are those of `pygraph`."""

    _slots: dict[Any, _Slot] | None = None
    _constants: list[tuple[int, np.ndarray]] | None = None

    def _prepare(self) -> dict[Any, _Slot]:
        """Return the tensors to bind, by tensor and uid; the graph's numbers are stored."""
        if self.device is not None:
            raise DnnUnavailableError(
                f"graph {self.name!r} was planned for a described device; serialize it, and"
                " deserialize it where the device is"
            )
        slots: dict[Any, _Slot] = {}
        for tensor in (*self.get_inputs(), *self.get_outputs()):
            if tensor.value is None:
                slots[tensor] = slots[tensor.uid] = _Slot(tensor)
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
        timed = [i for i, plan in enumerate(self.plans) if plan.time_ms is not None]
        if not timed:
            raise DnnNotSupportedError(f"graph {self.name!r}: no plan could be timed")
        self._chosen = min(timed, key=lambda i: self.plans[i].time_ms or 0.0)
        return sorted(self.plans, key=lambda p: (p.time_ms is None, p.time_ms or 0.0))

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

    def _find_slot(self, slots: dict[Any, _Slot], key: Any) -> _Slot | None:
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

    def _refuse_missing(self, slots: dict[Any, _Slot], given: Sequence[int]) -> None:
        missing = [s.tensor.name for key, s in slots.items() if key not in given and key == s.uid]
        if missing:
            raise DnnValueError(f"graph {self.name!r}: no arrays for {', '.join(missing)}")
        raise DnnValueError(f"graph {self.name!r}: a tensor has more than one array")
