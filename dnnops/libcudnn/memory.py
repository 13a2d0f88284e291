"""Memory on the host that cuDNN reads or writes during a call."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.libcudnn.handles import Handle, as_handle, place
from dnnops.libcudnn.pointers import check_address

__all__ = ["host_memory", "is_pointer", "object_or_memory"]

_REFERENCE: Any = type(ctypes.byref(ctypes.c_int()))
_POINTERS: Any = (ctypes._Pointer, ctypes.c_void_p, ctypes.c_char_p, _REFERENCE)
#: Objects of ctypes that contain the memory.
_OWNERS: Any = (ctypes.Array, ctypes.Structure, ctypes.Union, ctypes._SimpleCData)


def is_pointer(value: Any) -> bool:
    """Return whether an argument is a pointer of ctypes, so its value is an address."""
    return isinstance(value, _POINTERS)


def host_memory(value: Any, size: int, name: str, writable: bool = False) -> int:
    """Return the address of memory on the host.

    Parameters
    ----------
    value : array, ctypes object or ctypes pointer
        The memory. How much there is behind a pointer of ctypes is not known.
    size : int
        Number of bytes that cuDNN reads or writes.
    name : str
        Name of the parameter.
    writable : bool
        Whether cuDNN writes to it.

    Returns
    -------
    int

    Raises
    ------
    DnnTypeError
        If the argument is something else. An integer is not accepted, because most integers are
        mistaken for a sequence with one element, and reading from there ends the process.
    DnnValueError
        If the memory is too small, null, not contiguous or read-only.
    """
    if is_pointer(value):
        address, available = _pointed(value)
    elif isinstance(value, _OWNERS):
        address, available = ctypes.addressof(value), ctypes.sizeof(value)
    elif isinstance(interface := getattr(value, "__array_interface__", None), dict):
        address, available = _array(interface, name, writable)
    else:
        raise DnnTypeError(
            f"{place(name)} is of type {type(value).__name__}; expected an array on the host or a"
            " pointer of ctypes"
        )
    if not address and size > 0:
        raise DnnValueError(f"{place(name)} is null; expected {size} bytes")
    if available is not None and available < size:
        raise DnnValueError(f"{place(name)} has {available} bytes; expected {size}")
    check_address(address, name)
    return address


def object_or_memory(value: Any, size: int, name: str, writable: bool) -> int:
    """Return the address of an object of cuDNN, or of memory on the host; see `host_memory`."""
    if value is None:
        return 0
    if isinstance(value, Handle):
        return int(as_handle(value, Handle, name))
    return host_memory(value, size, name, writable)


def _pointed(value: Any) -> tuple[int, int | None]:
    address = ctypes.cast(value, ctypes.c_void_p).value or 0
    if isinstance(value, _REFERENCE):
        owner = value._obj
        return address, ctypes.addressof(owner) + ctypes.sizeof(owner) - address
    return address, None


def _array(interface: dict[str, Any], name: str, writable: bool) -> tuple[int, int]:
    # Their presence means that the elements are not contiguous.
    if interface.get("strides") is not None:
        raise DnnValueError(f"{place(name)} is not contiguous")
    address, read_only = interface["data"]
    if writable and read_only:
        raise DnnValueError(f"{place(name)} is read-only")
    return address, math.prod(interface["shape"]) * np.dtype(interface["typestr"]).itemsize
