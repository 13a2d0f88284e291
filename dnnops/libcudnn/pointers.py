"""Addresses of arguments: memory on the device or the host, and objects of CUDA."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import cache
from numbers import Integral
from typing import Any

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.libcudnn.handles import LEAST_ADDRESS, Handle, as_handle, place

__all__ = [
    "as_address",
    "as_callback",
    "as_cuda_object",
    "as_device",
    "check_address",
    "is_on_device",
]

_DLPACK_CPU = 1
_FUNCTION: Any = ctypes.CFUNCTYPE(None).__base__
_POINTERS: Any = (
    ctypes._Pointer,
    _FUNCTION,
    ctypes.c_char_p,
    type(ctypes.byref(ctypes.c_int())),
)
#: Host memory that ctypes owns.
_MEMORY = (ctypes.Array, ctypes.Structure, ctypes.Union)


def as_device(value: Any, name: str) -> int:
    """Return the address of an array on the device.

    Parameters
    ----------
    value : object
        An integer, a pointer of ctypes, an array with ``data.ptr``, ``__cuda_array_interface__`` or
        ``__dlpack__``, an object with ``ptr``, or None for a null pointer.
    name : str
        Name of the parameter.

    Returns
    -------
    int

    Raises
    ------
    DnnTypeError
        If the argument is an array on the host, or no array.
    DnnValueError
        If it is an address that CUDA does not know.
    """
    if value is None:
        return 0
    if type(value) is int:
        return _known(value, name)
    try:  # the fastest ways for arrays of PyTorch and of CuPy
        if hasattr(value, "data_ptr"):
            if value.is_cuda:
                return value.data_ptr()
        elif type(address := value.data.ptr) is int:
            return address
    except (AttributeError, ValueError):  # NumPy's for dtypes that have no buffer
        pass
    address = _interface(value, name)
    if address is not None:
        return address
    if _on_host(value):
        raise DnnTypeError(
            f"{place(name)} is a {type(value).__name__} in the host's memory; expected an array on"
            " the device"
        )
    address = _number(value)
    if address is None:
        raise DnnTypeError(
            f"{place(name)} is of type {type(value).__name__}; expected an array on the device, an"
            " integer or a pointer of ctypes"
        )
    return _known(address, name)


def _known(address: int, name: str) -> int:
    """Return an address after asking CUDA whether it is one of memory that it manages."""
    if not address:
        return 0
    check_address(address, name)
    query = _query()
    if query is not None and query(address) == _INVALID_VALUE:
        raise DnnValueError(
            f"{place(name)} is {address:#x}, which is not an address of memory that CUDA allocated"
            " or registered"
        )
    return address


def as_address(value: Any, name: str) -> int:
    """Return the address of memory anywhere, or of an object of cuDNN.

    Parameters
    ----------
    value : object
        As in `as_device`, an array on the host, or a handle.
    name : str
        Name of the parameter.

    Returns
    -------
    int

    Raises
    ------
    DnnTypeError
        If the argument has no address.
    DnnValueError
        If it cannot be an address, or is a handle whose object was destroyed.
    """
    if value is None:
        return 0
    if isinstance(value, Handle):
        return int(as_handle(value, Handle, name))
    if isinstance(value, _MEMORY):
        return ctypes.addressof(value)
    array = getattr(value, "__array_interface__", None)
    if isinstance(array, dict):
        return array["data"][0]
    address = _interface(value, name)
    if address is None:
        address = _number(value)
    if address is None:
        raise DnnTypeError(
            f"{place(name)} is of type {type(value).__name__}; expected an array, an integer or a"
            " pointer of ctypes"
        )
    check_address(address, name)
    return address


def check_address(address: int, name: str) -> None:
    """Check that an integer can be an address, or null.

    Raises
    ------
    DnnValueError
        If it is too small or too large.
    """
    if address and not LEAST_ADDRESS <= address < 2**64:
        raise DnnValueError(f"{place(name)} is {address}, which is not an address")


def is_on_device(value: Any) -> bool:
    """Return whether an argument is an array on the device, whose elements must not be read."""
    if _on_host(value):
        return False
    where = getattr(value, "__dlpack_device__", None)
    if where is not None:
        return where()[0] != _DLPACK_CPU
    # PyTorch raises other errors than AttributeError for tensors that require a gradient.
    with suppress(Exception):
        return value.__cuda_array_interface__ is not None
    return False


def as_callback(value: Any, name: str) -> int:
    """Return the address of a function that cuDNN calls.

    Parameters
    ----------
    value : function of ctypes, ctypes pointer, int or None
        An instance of a type such as ``cudnnCallback_t``, or the address of a function.
    name : str
        Name of the parameter.

    Returns
    -------
    int

    Raises
    ------
    DnnTypeError
        If the argument is none of these.
    DnnValueError
        If it cannot be an address.
    """
    if value is None:
        return 0
    address = None
    if isinstance(value, _FUNCTION) or not callable(value):
        address = _number(value)
    if address is None:
        hint = ", in which functions can be wrapped" if callable(value) else ""
        raise DnnTypeError(
            f"{place(name)} is of type {type(value).__name__}; expected a cudnnCallback_t{hint}"
        )
    check_address(address, name)
    return address


def as_cuda_object(value: Any, name: str) -> int:
    """Return the address of a stream or a graph.

    Parameters
    ----------
    value : object
        An integer, a pointer of ctypes, an object with ``__cuda_stream__``, ``ptr``,
        ``cuda_stream`` or ``handle``, or None for the default stream.
    name : str
        Name of the parameter.

    Returns
    -------
    int

    Raises
    ------
    DnnTypeError
        If the argument is none of these.
    DnnValueError
        If it cannot be an address.
    """
    if value is None:
        return 0
    stream = getattr(value, "__cuda_stream__", None)
    if stream is not None:
        return _checked(int(stream()[1]), name)
    for attribute in ("ptr", "cuda_stream", "handle"):
        address = getattr(value, attribute, None)
        if isinstance(address, int):
            return _checked(address, name)
    address = _number(value)
    if address is None:
        raise DnnTypeError(
            f"{place(name)} is of type {type(value).__name__}; expected a CUDA object, an integer"
            " or a pointer of ctypes"
        )
    return _checked(address, name)


def _checked(address: int, name: str) -> int:
    # CUDA has special streams whose numbers are small.
    if not 0 <= address < 2**64:
        raise DnnValueError(f"{place(name)} is {address}, which is not an address")
    return address


def _number(value: Any) -> int | None:
    """Return the address that an integer or a pointer of ctypes contains."""
    if type(value) is int:
        return value
    if isinstance(value, ctypes.c_void_p | ctypes.c_size_t | ctypes.c_uint64):
        return value.value or 0
    if isinstance(value, _POINTERS):
        return ctypes.cast(value, ctypes.c_void_p).value or 0
    if isinstance(value, bool | Enum | Handle):
        return None
    with suppress(TypeError):
        return operator.index(value)
    if hasattr(value, "__int__") and not hasattr(value, "__float__"):  # of NVIDIA's cuda-python
        return int(value)
    address = getattr(value, "ptr", None)  # of CuPy's MemoryPointer
    return address if isinstance(address, int) else None


def _interface(value: Any, name: str) -> int | None:
    """Return the address of an array with one of the protocols for arrays on the device."""
    # PyTorch raises other errors than AttributeError, such as for bfloat16.
    with suppress(Exception):
        return int(value.__cuda_array_interface__["data"][0])
    where = getattr(value, "__dlpack_device__", None)
    if where is None or where()[0] == _DLPACK_CPU:
        return None
    try:
        # Without a stream, the producer might wait for its own.
        capsule = value.__dlpack__(stream=-1)
    except Exception as error:
        # PyTorch's for tensors that require a gradient, for example, says what to do.
        raise DnnTypeError(
            f"{place(name)} is a {type(value).__name__} that does not export its memory: {error}"
        ) from error
    # The struct starts with the address. The array keeps the memory after the capsule is gone.
    tensor = _pointer_of_capsule()(capsule, b"dltensor")
    data = ctypes.c_void_p.from_address(tensor).value or 0
    return data + ctypes.c_uint64.from_address(tensor + _DLTENSOR_OFFSET).value


#: Offset of ``byte_offset`` in the struct ``DLTensor``.
_DLTENSOR_OFFSET = 40


@cache
def _pointer_of_capsule() -> Any:
    function = ctypes.pythonapi.PyCapsule_GetPointer
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return prototype(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _on_host(value: Any) -> bool:
    """Return whether an argument is memory of the host."""
    if isinstance(value, Integral):  # NumPy's have the protocol of its arrays
        return False
    if isinstance(value, _MEMORY) or hasattr(value, "__array_interface__"):
        return True
    where = getattr(value, "__dlpack_device__", None)
    if where is not None:
        return where()[0] == _DLPACK_CPU
    return isinstance(value, bytes | bytearray | memoryview)


_MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE
_INVALID_VALUE = 1  # CUDA_ERROR_INVALID_VALUE


@cache
def _query() -> Callable[[int], int] | None:
    """Return a function that asks CUDA's driver about an address; None without a driver.

    It returns ``CUDA_ERROR_INVALID_VALUE`` for memory that CUDA did not allocate or register.
    """
    try:
        function = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    except (OSError, AttributeError):
        return None
    from _cffi_backend import FFI

    ffi = FFI()
    address = ctypes.cast(function, ctypes.c_void_p).value
    get = ffi.cast("int(*)(void *, int, uint64_t)", address)
    # Nobody reads the answer, so threads may share it.
    answer = ffi.new("uint64_t *")
    return lambda value: get(answer, _MEMORY_TYPE, value)
