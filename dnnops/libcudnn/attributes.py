"""Attributes of the objects of cuDNN's graph API, whose types a call gives as an argument."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Any

import numpy as np

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.libcudnn.calls import void_pointer
from dnnops.libcudnn.handles import Handle, place
from dnnops.libcudnn.pointers import as_address
from dnnops.libcudnn.values import new_array, to_enum

__all__ = ["Attribute", "as_attribute"]

#: Formats of `struct` by type of attribute. All other types are enums.
_FORMATS = {
    "HANDLE": "P",
    "BACKEND_DESCRIPTOR": "P",
    "VOID_PTR": "P",
    "BOOLEAN": "?",
    "CHAR": "c",
    "INT32": "i",
    "INT64": "q",
    "FLOAT": "f",
    "DOUBLE": "d",
    "FRACTION": "qq",
}


def _format(attribute_type: Any, kind: type[IntEnum]) -> str:
    member = to_enum(attribute_type, kind)
    return _FORMATS.get(getattr(member, "name", "").removeprefix("CUDNN_TYPE_"), "i")


def as_attribute(
    value: Any, attribute_type: int, kind: type[IntEnum], count: int, name: str
) -> Any:
    """Return elements of an attribute as an argument of type ``void *``.

    Parameters
    ----------
    value : sequence, str, handle, enum, float, or ctypes pointer
        Elements, one element that is no integer, or their address. Fractions are pairs of integers.
    attribute_type : int
        Type of the elements.
    kind : type
        The enum ``cudnnBackendAttributeType_t``.
    count : int
        Number of elements that cuDNN reads.
    name : str
        Name of the parameter.

    Returns
    -------
    bytes or pointer of cffi

    Raises
    ------
    DnnTypeError
        If an element does not have the type.
    DnnValueError
        If there are fewer elements.
    """
    if isinstance(value, str):
        value = value.encode()
    elif hasattr(value, "__array_interface__"):
        # The elements of the array may have another type.
        value = np.atleast_1d(value).tolist()
    elif isinstance(value, Handle | Enum | bool | float):
        value = [value]
    if isinstance(value, bytes):
        elements: Sequence[Any] = [value[i : i + 1] for i in range(len(value))]
    elif isinstance(value, list | tuple | range):
        elements = value
    else:
        return void_pointer(as_address(value, name))
    if len(elements) < count:
        raise DnnValueError(f"{place(name)} has {len(elements)} elements; expected {count}")
    return _packed(elements, _format(attribute_type, kind), name)


def _packed(elements: Sequence[Any], code: str, name: str) -> bytes:
    if code == "P":
        elements = [as_address(element, name) for element in elements]
    elif code == "qq":
        elements = [part for fraction in elements for part in fraction]
    try:
        return struct.pack(f"{len(elements)}{code[0]}", *elements)
    except struct.error as error:
        raise DnnTypeError(f"{place(name)} is {elements!r}: {error}") from None


class Attribute:
    """Memory into which cuDNN writes the elements of an attribute.

    Attributes
    ----------
    address : int
        Address of the memory, or zero.
    """

    def __init__(
        self, value: Any, attribute_type: int, kind: type[IntEnum], count: int, name: str
    ) -> None:
        """Allocate the memory unless an argument gives it.

        Parameters
        ----------
        value : sequence of handles, array, ctypes pointer or None
            Descriptors to fill, or memory.
        attribute_type, kind, name
            As in `as_attribute`.
        count : int
            Number of elements for which there is memory.
        """
        self._code = _format(attribute_type, kind)
        self._given, self._memory = value, None
        if value is None or isinstance(value, list | tuple):
            self._memory, self.address = new_array("q", 2 * count, "requestedElementCount")
            if value:
                if len(value) < count:
                    raise DnnValueError(
                        f"{place(name)} has {len(value)} elements; expected {count}"
                    )
                packed = _packed(value[:count], self._code, name)
                memoryview(self._memory).cast("B")[: len(packed)] = packed
            if not count:
                self.address = 0
        else:
            self.address = as_address(value, name)
            size = count * struct.calcsize(self._code)
            if getattr(value, "nbytes", size) < size:
                raise DnnValueError(f"{place(name)} has {value.nbytes} bytes; expected {size}")

    def elements(self, count: int) -> Any:
        """Return the first elements: numbers, pairs, text or the descriptors that were given."""
        if self._memory is None or isinstance(self._given, list | tuple):
            return self._given if self._memory is None else tuple(self._given[:count])
        count = min(count, len(self._memory) // 2)
        values = struct.unpack_from(f"{count * len(self._code)}{self._code[0]}", self._memory)
        if self._code == "c":
            return b"".join(values).rstrip(b"\0").decode(errors="replace")
        if self._code == "qq":
            return tuple(zip(values[::2], values[1::2], strict=True))
        return values
