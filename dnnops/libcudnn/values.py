"""Numbers, enums and arrays of numbers as arguments and results."""

from __future__ import annotations

import ctypes
import operator
import struct
from array import array
from enum import Enum, IntEnum
from typing import Any

from dnnops.errors import DnnOverflowError, DnnTypeError, DnnValueError
from dnnops.libcudnn.calls import void_pointer
from dnnops.libcudnn.declarations import INTEGERS
from dnnops.libcudnn.handles import Handle, place
from dnnops.libcudnn.memory import host_memory, is_pointer

__all__ = [
    "as_element",
    "as_enum",
    "as_float",
    "as_int",
    "as_numbers",
    "bounds",
    "check_count",
    "new_array",
    "out_of_range",
    "outputs",
    "pack_error",
    "to_enum",
    "to_number",
]

#: More elements than any array of results has.
_MOST = 2**20
#: Blank memory for each number of results, and a blank element of each type. Repeating one is the
#: fastest way to make an array.
_BLANK = [array("q", bytes(8 * count)) for count in range(32)]
_ELEMENTS = {code: array(code, [0]) for code in "bBhHiIlLqQfd"}


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
    if not 0 <= count <= _MOST:
        check_count(count, name)
    out = _ELEMENTS[code] * count
    return out, out.buffer_info()[0]


def check_count(count: int, name: str) -> None:
    """Check a number of elements before memory for them is allocated.

    Raises
    ------
    DnnValueError
        If it is negative, or so large that it must be a mistake.
    """
    if count < 0:
        raise DnnValueError(f"{place(name)} is {count}; it must not be negative")
    if count > _MOST:
        raise DnnValueError(f"{place(name)} is {count}; expected at most {_MOST}")


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
        except OverflowError as error:
            raise DnnOverflowError(f"{place(name)}: {error}") from None
        except (TypeError, ValueError):
            pass
    raise DnnTypeError(f"{place(name)} is of type {type(value).__name__}; expected a number")


def bounds(code: str) -> tuple[int, int]:
    """Return the least and greatest number of an integer type, given as in `struct`."""
    bits = 8 * struct.calcsize(code)
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if code.islower() else (0, 2**bits - 1)


def out_of_range(error: OverflowError, *scalars: tuple[str, Any, str]) -> DnnOverflowError:
    """Return the exception for a call in which a number did not fit.

    Parameters
    ----------
    error : OverflowError
        Exception of the conversion to C, which does not name the argument, or of another argument.
    *scalars : tuple
        Name, value and C type of each argument that is a number.
    """
    if isinstance(error, DnnOverflowError):
        return error
    for name, value, type_ in scalars:
        if type_ in INTEGERS:
            least, greatest = bounds(INTEGERS[type_])
            if not least <= value <= greatest:
                return DnnOverflowError(
                    f"{place(name)} is {value}; expected {least} to {greatest} ({type_})"
                )
    return DnnOverflowError(place(str(error)))


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
    value : sequence, ctypes pointer or None
        Sequence of numbers or enums, or its address.
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
        If the argument is not a sequence, or an element is not an integer.
    DnnValueError
        If the sequence is too short or null, or an element does not fit into the type.
    """
    if not isinstance(value, list | tuple | range):
        value = _sequence(value, code, count, name)
        if not isinstance(value, list | tuple):
            return value
    if len(value) < count:
        raise DnnValueError(f"{place(name)} has {len(value)} elements; expected {count}")
    try:
        return struct.pack(f"{len(value)}{code}", *value)
    except struct.error as error:
        raise pack_error(value, name, error) from None


def _sequence(value: Any, code: str, count: int, name: str) -> Any:
    """Return another sequence than Python's as a list, or what is passed to cuDNN as it is."""
    if value is None or (type(value) is int and value == 0):
        if count > 0:
            raise DnnValueError(f"{place(name)} is null; expected {count} elements")
        return void_pointer(0)
    if code == "b" and isinstance(value, str | bytes):
        return (value.encode() if isinstance(value, str) else value) + bytes(1)
    if is_pointer(value):
        return void_pointer(host_memory(value, count * struct.calcsize(code), name))
    if isinstance(value, ctypes.Array):
        return list(value)
    elements = value.tolist() if hasattr(value, "tolist") else value  # of NumPy
    if not isinstance(elements, list | tuple):
        raise DnnTypeError(
            f"{place(name)} is of type {type(value).__name__}; expected a sequence or a pointer of"
            " ctypes"
        )
    return elements


def pack_error(value: Any, name: str, error: Exception) -> DnnTypeError | DnnValueError:
    """Return the exception for numbers that `struct` refused."""
    # `struct` raises the same exception for a wrong type.
    kind = DnnOverflowError if all(map(_is_number, value)) else DnnTypeError
    return kind(f"{place(name)} is {value!r}: {error}")


def _is_number(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, Handle)


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
    code = _format(data_type, kind)
    if isinstance(value, ctypes._SimpleCData | ctypes.Array) or not hasattr(value, "__float__"):
        return void_pointer(host_memory(value, struct.calcsize(code or "b"), name))
    if not code:
        raise DnnTypeError(
            f"{place(name)} is a number; expected a pointer of ctypes to an element of type"
            f" {to_enum(data_type, kind)!r}"
        )
    number = as_float(value, name) if code in "fde" else as_int(value, name)
    try:
        return struct.pack(code, number)
    except (struct.error, OverflowError) as error:
        raise DnnOverflowError(f"{place(name)} is {value!r}: {error}") from None


def to_number(memory: bytes, data_type: int, kind: type[IntEnum]) -> Any:
    """Return the number that an element's memory contains; the bytes of an unknown type."""
    code = _format(data_type, kind)
    return struct.unpack_from(code, memory)[0] if code else memory
