"""Attributes of the objects of cuDNN's graph API, whose types a call gives as an argument."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from dnnops.errors import DnnTypeError, DnnValueError
from dnnops.libcudnn.calls import void_pointer
from dnnops.libcudnn.handles import Handle, as_handle, place
from dnnops.libcudnn.memory import host_memory, is_pointer
from dnnops.libcudnn.pointers import as_address, is_on_device
from dnnops.libcudnn.values import (
    as_enum,
    check_count,
    new_array,
    pack_error,
    to_enum,
)

__all__ = ["Attribute", "ElementTypes", "as_attribute"]

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
#: Types whose enum or handle has another name.
_CLASSES = {
    "HANDLE": "cudnnHandle_t",
    "NAN_PROPOGATION": "cudnnNanPropagation_t",
    "ATTRIB_NAME": "cudnnBackendAttributeName_t",
    "REDUCTION_OPERATOR_TYPE": "cudnnReduceTensorOp_t",
    "TENSOR_REORDERING_MODE": "cudnnBackendTensorReordering_t",
}


class ElementTypes:
    """Types of elements by type of attribute.

    Attributes
    ----------
    kind : type
        The enum ``cudnnBackendAttributeType_t``.
    """

    def __init__(self, kind: type[IntEnum], names: Mapping[str, Any]) -> None:
        """Find the class of each type of attribute.

        Parameters
        ----------
        kind : type
            The enum ``cudnnBackendAttributeType_t``.
        names : mapping
            Enums and classes of handles by name.
        """
        self.kind = kind
        # CUDNN_TYPE_HEUR_MODE is cudnnBackendHeurMode_t, CUDNN_TYPE_GENSTATS_MODE is
        # cudnnGenStatsMode_t. The backend's are preferred, because both APIs have a NormMode.
        classes = {
            name.lower(): value
            for name, value in names.items()
            if isinstance(value, type) and issubclass(value, IntEnum | Handle)
        }
        self._classes = {}
        for member in kind.__members__:
            word = member.removeprefix("CUDNN_TYPE_")
            joined = word.replace("_", "").lower()
            for name in (
                _CLASSES.get(word, "").lower(),
                f"cudnnbackend{joined}_t",
                f"cudnn{joined}_t",
            ):
                if name in classes:
                    self._classes[word] = classes[name]
                    break

    def find(self, attribute_type: Any) -> tuple[str, Any]:
        """Return the format of the elements of an attribute, and their class if they have one."""
        member = to_enum(attribute_type, self.kind)
        word = getattr(member, "name", "").removeprefix("CUDNN_TYPE_")
        return _FORMATS.get(word, "i"), self._classes.get(word)


def as_attribute(
    value: Any, attribute_type: int, types: ElementTypes, count: int, name: str
) -> Any:
    """Return elements of an attribute as an argument of type ``void *``.

    Parameters
    ----------
    value : sequence, str, handle, number, array on the device, or ctypes pointer
        Elements, one element, or their address as a pointer of ctypes. Fractions are pairs of
        integers.
    attribute_type : int
        Type of the elements.
    types : ElementTypes
        Classes of the elements.
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
        If there are fewer elements, or one is null, destroyed or out of range.
    """
    check_count(count, "elementCount")
    code, kind = types.find(attribute_type)
    if value is None and count == 0:
        return void_pointer(0)
    if is_pointer(value):
        return void_pointer(host_memory(value, count * struct.calcsize(code), name))
    elements = _elements(value, code, name)
    if len(elements) < count:
        raise DnnValueError(f"{place(name)} has {len(elements)} elements; expected {count}")
    return _packed(elements, code, kind, name)


def _elements(value: Any, code: str, name: str) -> Sequence[Any]:
    """Return elements as a sequence; what is not a sequence is one element."""
    if isinstance(value, list | tuple | range):
        return value
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return [value[i : i + 1] for i in range(len(value))]
    if isinstance(value, ctypes.Array):
        return list(value)
    if value is None:
        raise DnnValueError(f"{place(name)} is null; expected elements")
    if is_on_device(value):
        if code != "P":
            raise DnnTypeError(f"{place(name)} is on the device; expected elements on the host")
        return [value]
    if hasattr(value, "tolist"):  # of NumPy, whose elements may have another type
        value = value.tolist()
        if isinstance(value, list):
            return value
    if isinstance(value, ctypes._SimpleCData):
        value = value.value
    if code == "P" or hasattr(value, "__index__") or hasattr(value, "__float__"):
        return [value]
    raise DnnTypeError(f"{place(name)} is of type {type(value).__name__}; expected a sequence")


def _packed(elements: Sequence[Any], code: str, kind: Any, name: str) -> bytes:
    if code == "P":
        elements = [_address(element, kind, name) for element in elements]
    elif code == "qq":
        elements = _parts(elements, name)
    elif kind is not None and issubclass(kind, IntEnum):
        elements = [as_enum(element, kind, name) for element in elements]
    elif any(isinstance(element, Handle) for element in elements):
        raise DnnTypeError(f"{place(name)} is {elements!r}; expected no handles")
    try:
        return struct.pack(f"{len(elements)}{code[0]}", *elements)
    except (struct.error, OverflowError) as error:
        raise pack_error(elements, name, error) from None


def _address(element: Any, kind: Any, name: str) -> int:
    return as_address(element, name) if kind is None else as_handle(element, kind, name)


def _parts(fractions: Sequence[Any], name: str) -> list[Any]:
    """Return numerators and denominators."""
    parts: list[Any] = []
    for fraction in fractions:
        if not isinstance(fraction, list | tuple) or len(fraction) != 2:
            raise DnnTypeError(f"{place(name)} contains {fraction!r}; expected pairs of integers")
        parts += fraction
    return parts


class Attribute:
    """Memory into which cuDNN writes the elements of an attribute.

    Attributes
    ----------
    address : int
        Address of the memory, or zero.
    """

    def __init__(
        self, value: Any, attribute_type: int, types: ElementTypes, count: int, name: str
    ) -> None:
        """Allocate the memory unless an argument gives it.

        Parameters
        ----------
        value : sequence of handles, array, ctypes object or pointer, or None
            Descriptors to fill, or memory, which must be contiguous and writable.
        attribute_type, types, name
            As in `as_attribute`.
        count : int
            Number of elements for which there is memory.
        """
        check_count(count, "requestedElementCount")
        self._code, kind = types.find(attribute_type)
        self._given, self._memory = value, None
        if value is None or isinstance(value, list | tuple):
            self._memory, self.address = new_array("q", 2 * count, "requestedElementCount")
            if value:
                if len(value) < count:
                    raise DnnValueError(
                        f"{place(name)} has {len(value)} elements; expected {count}"
                    )
                packed = _packed(value[:count], self._code, kind, name)
                memoryview(self._memory).cast("B")[: len(packed)] = packed
            if not count:
                self.address = 0
        else:
            size = count * struct.calcsize(self._code)
            self.address = host_memory(value, size, name, writable=True)

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
