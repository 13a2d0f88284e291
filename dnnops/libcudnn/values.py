"""Numbers, enums and arrays of numbers as arguments and results."""

from __future__ import annotations

import ctypes
import operator
import struct
from array import array
from enum import Enum, IntEnum
from typing import Any

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.libcudnn.calls import void_pointer
from dnnops.libcudnn.handles import Handle, place
from dnnops.libcudnn.pointers import as_address

__all__ = [
    "as_element",
    "as_enum",
    "as_float",
    "as_int",
    "as_numbers",
    "new_array",
    "outputs",
    "to_enum",
    "to_number",
]

#: Blank memory for each number of results.
_BLANK = [array("q", bytes(8 * count)) for count in range(32)]


def outputs(count: int) -> tuple[array[int], int]:
    """Return memory for results, with eight bytes for each, and its address."""
    out = _BLANK[count][:] if count < len(_BLANK) else array("q", bytes(8 * count))
    return out, out.buffer_info()[0]


def new_array(code: str, count: int, name: str) -> tuple[array[Any], int]:
    """Return an array for results, and its address.

    Parameters
    ----------
    code : str
        Type of the elements, as in `array.array`.
    count : int
        Number of elements.
    name : str
        Name of the parameter that gives it.
    """
    if count < 0:
        raise DnnValueError(f"{place(name)} is {count}; expected no negative number")
    out = array(code, bytes(array(code).itemsize * count))
    return out, out.buffer_info()[0]


def as_int(value: Any, name: str) -> int:
    """Return an argument as an int; accept integers of NumPy and ctypes."""
    if isinstance(value, ctypes._SimpleCData):
        value = value.value
    try:
        if not isinstance(value, Handle):
            return operator.index(value)
    except TypeError:
        pass
    raise DnnTypeError(f"{place(name)} is of type {type(value).__name__}; expected an integer")


def as_float(value: Any, name: str) -> float:
    """Return an argument as a float; accept numbers of NumPy and ctypes."""
    if isinstance(value, ctypes._SimpleCData):
        value = value.value
    if not isinstance(value, str | bytes | bytearray | Handle | Enum):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    raise DnnTypeError(f"{place(name)} is of type {type(value).__name__}; expected a number")


def as_enum(value: Any, kind: type[IntEnum], name: str) -> int:
    """Return an argument as the value of an enum; accept integers, even unknown ones."""
    if isinstance(value, kind):
        return value
    if isinstance(value, Enum):
        raise DnnTypeError(f"{place(name)} is {value!r}; expected a {kind.__name__}")
    if isinstance(value, str):
        raise DnnTypeError(
            f"{place(name)} is {value!r}; expected a {kind.__name__}, such as"
            f" {kind.__name__}[{next(iter(kind)).name!r}]"
        )
    return as_int(value, name)


def to_enum(value: int, kind: type[IntEnum]) -> int:
    """Return the member of an enum; a value that the headers do not define stays an int."""
    return kind._value2member_map_.get(value, value)  # type: ignore[return-value]


def as_numbers(value: Any, code: str, count: int, name: str) -> Any:
    """Return an array on the host as an argument of type ``void *``.

    Parameters
    ----------
    value : sequence, ctypes pointer, int or None
        Sequence of numbers, enums or handles, or an address.
    code : str
        Type of the elements, as in `struct`.
    count : int
        Number of elements that cuDNN reads; a longer sequence is accepted.
    name : str
        Name of the parameter.

    Returns
    -------
    bytes or pointer of cffi

    Raises
    ------
    DnnTypeError
        If an element is no integer.
    DnnValueError
        If the sequence is too short or null, or an element does not fit into the type.
    """
    if hasattr(value, "tolist"):  # of NumPy
        value = value.tolist()
    if isinstance(value, str | bytes):
        return (value.encode() if isinstance(value, str) else value) + bytes(1)
    if not isinstance(value, list | tuple | range):
        address = as_address(value, name)
        if not address and count > 0:
            raise DnnValueError(f"{place(name)} is null; expected {count} elements")
        return void_pointer(address)
    if len(value) < count:
        raise DnnValueError(f"{place(name)} has {len(value)} elements; expected {count}")
    try:
        return struct.pack(f"{len(value)}{code}", *value)
    except struct.error as error:
        wrong = next((item for item in value if not hasattr(item, "__index__")), None)
        kind = DnnValueError if wrong is None else DnnTypeError
        raise kind(f"{place(name)} is {value!r}: {error}") from None


#: Formats of `struct` by type of data; others have no number in Python.
_FORMATS = {
    "FLOAT": "f",
    "DOUBLE": "d",
    "HALF": "e",
    "INT8": "b",
    "INT32": "i",
    "UINT8": "B",
    "INT64": "q",
    "UINT32": "I",
    "BOOLEAN": "?",
}


def _format(data_type: Any, kind: type[IntEnum]) -> str:
    member = to_enum(data_type, kind)
    return _FORMATS.get(getattr(member, "name", "").removeprefix("CUDNN_DATA_"), "")


def as_element(value: Any, data_type: Any, kind: type[IntEnum], name: str) -> Any:
    """Return one element of a tensor as an argument of type ``void *``.

    Parameters
    ----------
    value : float, ctypes pointer or None
        A number, or the address of an element.
    data_type : int
        Type of the tensor.
    kind : type
        The enum ``cudnnDataType_t``.
    name : str
        Name of the parameter.

    Returns
    -------
    bytes or pointer of cffi

    Raises
    ------
    DnnTypeError
        If the argument is neither, or numbers of this type have to be given by address.
    """
    if value is None:
        return void_pointer(0)
    if isinstance(value, ctypes._SimpleCData) or not hasattr(value, "__float__"):
        return void_pointer(as_address(value, name))
    code = _format(data_type, kind)
    if not code:
        raise DnnTypeError(
            f"{place(name)} is a number; expected a pointer of ctypes to an element of type"
            f" {to_enum(data_type, kind)!r}"
        )
    return struct.pack(code, float(value) if code in "fde" else as_int(value, name))


def to_number(memory: bytes, data_type: int, kind: type[IntEnum]) -> Any:
    """Return the number that an element's memory contains; the bytes of an unknown type."""
    code = _format(data_type, kind)
    return struct.unpack_from(code, memory)[0] if code else memory
