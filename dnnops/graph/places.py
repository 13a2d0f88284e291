"""Places of a graph's arrays: how arguments of `execute` are checked, and their addresses read."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any
from weakref import ref

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.graph.names import as_data_type, dtype_of
from dnnops.graph.tensors import ALIGNMENT, Tensor, strides_of
from dnnops.libcudnn.pointers import as_device

__all__ = ["TensorPlace", "WorkspacePlace"]

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


class WorkspacePlace(_Place):
    """The workspace of a plan, whose size must suffice if it is known.

    Parameters
    ----------
    size : int or None
        Bytes that the plan needs.
    """

    __slots__ = ("size",)

    def __init__(self, size: int | None) -> None:
        super().__init__("workspace")
        self.size = size or 0

    def check(self, value: Any) -> int:
        size = getattr(value, "nbytes", None)
        if isinstance(size, int) and size < self.size:
            raise DnnValueError(f"the workspace has {size} bytes; the plan needs {self.size}")
        return as_device(value, self.label)


class TensorPlace(_Place):
    """A tensor that `execute` needs an array for.

    Parameters
    ----------
    tensor : Tensor
    """

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
