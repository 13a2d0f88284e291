"""Execution of a graph's plans with arrays of any library."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

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
from dnnops.graph.devices import get_stream
from dnnops.graph.names import as_data_type, build_plan_policy, dtype_of
from dnnops.graph.plan import Plan, reason_of
from dnnops.graph.plans import PlannedGraph
from dnnops.graph.table import plan_table
from dnnops.graph.tensor import Tensor
from dnnops.libcudnn.handles import as_handle
from dnnops.libcudnn.pointers import as_device
from dnnops.runtime.build import CUDNN
from dnnops.runtime.op import raise_status

__all__ = ["ExecutableGraph"]


#: Of the memory of all arrays; the descriptors declare it.
_ALIGNMENT = 16


@cache
def _runner() -> Any:
    """Return the C function that executes a plan."""
    function = CUDNN.library.dnnops_cudnn_graph_execute
    function.argtypes = [ctypes.c_int64] * 7
    return function


class _Slot:
    """A tensor that `execute` needs an array for, with what it checked about the last one."""

    __slots__ = ("by_value", "dtype", "label", "shape", "span", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.by_value = tensor, tensor.is_pass_by_value
        self.span, self.label = tensor.span, f"tensor {tensor.name!r}"
        self.dtype: Any = None
        self.shape: Any = None

    def address(self, value: Any) -> int:
        """Return the address of an array after checking its dtype and size.

        Raises
        ------
        DnnTypeError
            If it is no array on the device, or has another data type.
        DnnValueError
            If it is too small, null or not aligned.
        """
        address = self._address(value)
        if not address or address % _ALIGNMENT:
            fault = f"not aligned to {_ALIGNMENT} bytes; copy it" if address else "a null pointer"
            raise DnnValueError(f"{self.label} is {fault}")
        return address

    def _address(self, value: Any) -> int:
        if type(value) is int:
            return as_device(value, self.label)
        try:
            dtype, shape = value.dtype, value.shape
        except AttributeError:
            return as_device(value, self.label)
        # PyTorch's dtypes are single objects, NumPy's nearly always are.
        if dtype is not self.dtype or shape != self.shape:
            self._check(value, dtype, shape)
            self.dtype, self.shape = dtype, shape
        pointer = getattr(value, "data_ptr", None)
        if pointer is not None and getattr(value, "is_cuda", False):
            return pointer()
        return as_device(value, self.label)

    def _check(self, value: Any, dtype: Any, shape: Any) -> None:
        tensor = self.tensor
        if dtype_of(tensor.data_type) is not None and as_data_type(dtype) != tensor.data_type:
            raise DnnTypeError(f"{self.label} has data type {tensor.data_type.name}, got {dtype}")
        size = int(np.prod(tuple(shape), dtype=np.int64)) * _item_size(value)
        if size < self.span and not _reaches(value, self.span):
            raise DnnValueError(
                f"{self.label} of dim {tensor.dim} and stride {tensor.stride} needs {self.span}"
                f" bytes, but the array of shape {tuple(shape)} has {size}"
            )


def _item_size(value: Any) -> int:
    size = getattr(value, "itemsize", None)
    return int(size if isinstance(size, int) else value.dtype.itemsize)


def _reaches(value: Any, span: int) -> bool:
    """Return whether a strided array reaches over so many bytes."""
    item = _item_size(value)
    stride = getattr(value, "stride", None)
    if callable(stride):
        strides = [n * item for n in stride()]
    else:
        strides = list(getattr(value, "strides", None) or ())
    if len(strides) != len(value.shape):
        return False
    last = sum((n - 1) * s for n, s in zip(value.shape, strides, strict=True))
    return last + item >= span


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
        for tensor in self.tensors.values():
            if not tensor.is_virtual and tensor.value is None:
                slots[tensor] = slots[tensor.uid] = _Slot(tensor)
        constants = self.constants()
        self._uids = array("q", [uid for uid, _ in constants])
        self._pointers = array("q", [x.ctypes.data for _, x in constants])
        self._count = len(constants) + len(slots) // 2
        self._run = _runner()
        self._handle_type: Any = libcudnn.cudnnHandle_t
        self._slots = slots
        return slots

    def constants(self) -> list[tuple[int, np.ndarray]]:
        """Return the numbers that belong to the graph, by uid, as arrays on the host."""
        if self._constants is None:
            self._constants = [
                (tensor.uid, _number(tensor, tensor.value))
                for tensor in self.tensors.values()
                if tensor.value is not None
            ]
        return self._constants

    def execute(self, arrays: Mapping[Any, Any], workspace: Any = None, handle: Any = None) -> None:
        """Run the chosen plan.

        Parameters
        ----------
        arrays : mapping
            For each tensor with an array, by the tensor, its uid or its name: an array on the
            device, of CuPy, PyTorch, JAX or any library with ``__cuda_array_interface__`` or
            DLPack, or its address. For a tensor that is passed by value, a number. cuDNN uses the
            strides of the graph, whatever those of the array are.
        workspace : array, int or None
            Memory of `get_workspace_size` bytes; by default, dnnops provides it.
        handle : int, optional
            cuDNN's handle, by default that of the graph. Its stream is used.

        Raises
        ------
        DnnValueError
            If an array is missing or too small, or a key is no tensor of the graph.
        DnnTypeError
            If an array is on the host, or has another data type than the tensor.
        CudnnError
            If cuDNN fails.
        """
        self._execute(self.plan_at(), arrays, workspace, handle)

    def execute_plan_at_index(
        self, arrays: Mapping[Any, Any], workspace: Any, index: int, handle: Any = None
    ) -> None:
        """Run a plan; see `execute`."""
        self._execute(self.plan_at(index), arrays, workspace, handle)

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
        import cupy

        self.build_plans(build_plan_policy.ALL)
        stream = get_stream(self.handle if handle is None else handle)
        with cupy.cuda.ExternalStream(stream):
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
            Characters in a line; by default, those of the terminal.

        Returns
        -------
        str
        """
        return plan_table(self.plans, width)

    def _execute(self, plan: Any, arrays: Mapping[Any, Any], workspace: Any, handle: Any) -> None:
        slots = self._slots or self._prepare()
        uids, pointers, kept = self._uids[:], self._pointers[:], []
        for key, value in arrays.items():
            slot = slots.get(key)
            if slot is None:
                slot = self._find_slot(slots, key)
                if slot is None:
                    continue
            uids.append(slot.tensor.uid)
            if slot.by_value:
                number = _number(slot.tensor, value)
                kept.append(number)
                pointers.append(number.ctypes.data)
            else:
                pointers.append(slot.address(value))
        if len(uids) != self._count:
            self._refuse_missing(slots, uids)
        scratch = 0 if workspace is None else as_device(workspace, "workspace")
        if handle is None:
            handle = self.handle
        if type(handle) is not self._handle_type:
            handle = as_handle(handle, self._handle_type, "handle")
        status = self._run(
            handle,
            plan.descriptor.handle,
            len(uids),
            uids.buffer_info()[0],
            pointers.buffer_info()[0],
            scratch,
            plan.workspace,
        )
        if status:
            raise_status(CUDNN, status)

    def _find_slot(self, slots: dict[Any, _Slot], key: Any) -> _Slot | None:
        """Find a tensor by its name; None for None and for numbers that belong to the graph.

        Raises
        ------
        DnnValueError
            If it is no tensor of the graph that has an array.
        """
        if key is None:
            return None
        found = key if isinstance(key, Tensor) else self.tensors.get(key)
        if found is None or self.tensors.get(found.name) is not found:
            raise DnnValueError(f"graph {self.name!r} has no tensor {key!r}")
        if found.is_virtual:
            raise DnnValueError(
                f"tensor {found.name!r} is virtual; call set_output(True) to get its values"
            )
        if found.value is not None:
            raise DnnValueError(f"tensor {found.name!r} has the value {found.value} of the graph")
        return slots[found]

    def _refuse_missing(self, slots: dict[Any, _Slot], uids: Any) -> None:
        given = list(uids)
        missing = [
            s.tensor.name for key, s in slots.items() if key not in given and key == s.tensor.uid
        ]
        if missing:
            raise DnnValueError(f"graph {self.name!r}: no arrays for {', '.join(missing)}")
        raise DnnValueError(f"graph {self.name!r}: a tensor has more than one array")


def _number(tensor: Tensor, value: Any) -> np.ndarray:
    """Return a number that is passed by value, as an array on the host.

    Raises
    ------
    DnnTypeError
        If it is no number.
    """
    dtype = dtype_of(tensor.data_type)
    if dtype is None or dtype == "bfloat16":
        raise DnnTypeError(
            f"tensor {tensor.name!r}: numbers of type {tensor.data_type.name} are not supported"
        )
    try:
        number = value.item() if hasattr(value, "item") else value
        return np.array(number, dtype)
    except (TypeError, ValueError) as error:
        raise DnnTypeError(f"tensor {tensor.name!r} is a number, got {value!r}") from error
