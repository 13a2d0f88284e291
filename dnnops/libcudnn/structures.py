"""Structs of cuDNN, as classes of ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from dnnops.errors import DnnOverflowError, DnnTypeError
from dnnops.libcudnn.handles import place
from dnnops.libcudnn.memory import host_memory
from dnnops.libcudnn.pointers import as_device
from dnnops.libcudnn.values import as_enum, as_int, bounds, check_count, to_enum

__all__ = ["Structure", "as_struct", "new_structs", "wrap_fields"]


#: Codes of integers in ctypes, which are those of `struct`.
_INTEGERS = "bBhHiIlLqQ"


class Structure(ctypes.Structure):
    """Base class of structs, with fields as attributes and arguments."""

    def __repr__(self) -> str:
        fields = (name for name, *_ in self._fields_ if name != "reserved")
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields)
        return f"{type(self).__name__}({values})"


def _fitting(number: int, code: str, name: str) -> int:
    """Return a number that fits into a field; ctypes would cut bits off."""
    least, greatest = bounds(code)
    if not least <= number <= greatest:
        raise DnnOverflowError(f"{place(name)} is {number}; expected {least} to {greatest}")
    return number


class _EnumField:
    """Field with a member of an enum."""

    def __init__(self, field: Any, name: str, kind: type[IntEnum]) -> None:
        self._field, self._name, self._kind = field, name, kind

    def __get__(self, struct: Any, owner: type) -> Any:
        return self if struct is None else to_enum(self._field.__get__(struct, owner), self._kind)

    def __set__(self, struct: Any, value: Any) -> None:
        number = _fitting(int(as_enum(value, self._kind, self._name)), "i", self._name)
        self._field.__set__(struct, number)


class _IntegerField:
    """Field with an integer."""

    def __init__(self, field: Any, name: str, code: str) -> None:
        self._field, self._name, self._code = field, name, code

    def __get__(self, struct: Any, owner: type) -> Any:
        return self if struct is None else self._field.__get__(struct, owner)

    def __set__(self, struct: Any, value: Any) -> None:
        number = _fitting(as_int(value, self._name), self._code, self._name)
        self._field.__set__(struct, number)


class _PointerField:
    """Field with the address of an array on the device, which the caller has to keep."""

    def __init__(self, field: Any, name: str) -> None:
        self._field, self._name = field, name

    def __get__(self, struct: Any, owner: type) -> Any:
        return self if struct is None else self._field.__get__(struct, owner) or 0

    def __set__(self, struct: Any, value: Any) -> None:
        self._field.__set__(struct, as_device(value, self._name))


def wrap_fields(
    kind: type[Structure], enums: Mapping[str, type[IntEnum]], pointers: Iterable[str]
) -> None:
    """Make fields of a struct check and convert values.

    Parameters
    ----------
    kind : type
        Class of the struct.
    enums : mapping
        Enums of fields.
    pointers : iterable of str
        Fields with addresses of arrays on the device.
    """
    for name, type_, *_ in kind._fields_:
        code = getattr(type_, "_type_", None)
        if isinstance(code, str) and code in _INTEGERS and name not in enums:
            field = getattr(kind, name)
            setattr(kind, name, _IntegerField(field, f"{kind.__name__}.{name}", code))
    for name, enum in enums.items():
        setattr(kind, name, _EnumField(getattr(kind, name), f"{kind.__name__}.{name}", enum))
    for name in pointers:
        setattr(kind, name, _PointerField(getattr(kind, name), f"{kind.__name__}.{name}"))


def as_struct(value: Any, kind: type[Structure], name: str) -> int:
    """Return the address of a struct.

    Parameters
    ----------
    value : Structure, ctypes pointer or None
        The struct or its address.
    kind : type
        Class of the structs that are accepted.
    name : str
        Name of the parameter.

    Returns
    -------
    int

    Raises
    ------
    DnnTypeError
        If the argument is neither.
    """
    if isinstance(value, ctypes.Structure) and not isinstance(value, kind):
        raise DnnTypeError(f"{place(name)} is a {type(value).__name__}; expected {kind.__name__}")
    if value is None:
        return 0
    return host_memory(value, ctypes.sizeof(kind), name)


def new_structs(kind: type[Structure], count: int, name: str) -> tuple[Any, int]:
    """Return an array of structs for results, and its address.

    Parameters
    ----------
    kind : type
        Class of the structs.
    count : int
        Number of structs.
    name : str
        Name of the parameter that gives it.
    """
    check_count(count, name)
    structs = (kind * count)()
    return structs, ctypes.addressof(structs)
