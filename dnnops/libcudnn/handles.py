"""Handles and descriptors: integers that know their kind, and whether they were destroyed."""

from __future__ import annotations

import ctypes
import operator
import sys
from enum import Enum
from functools import cache
from types import FrameType
from typing import Any, ClassVar, Self

from dnnops.errors import DnnTypeError, DnnValueError

__all__ = [
    "LEAST_ADDRESS",
    "Handle",
    "as_handle",
    "as_optional_handle",
    "new_handle",
    "place",
    "retire",
]

#: No memory has addresses below this one, so a smaller number is some other argument.
LEAST_ADDRESS = 4096


class Handle(int):
    """Address of an object of cuDNN, with a subclass for each kind of object.

    It is a context manager that destroys the object.
    """

    __slots__ = ()
    #: Function that destroys an object of this kind.
    destroy: ClassVar[Any] = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # The class changes if the object was destroyed in the block.
        if not isinstance(self, _Destroyed):
            self.destroy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {int(self):#x}>"

    def __reduce__(self) -> Any:
        raise DnnTypeError(f"{self!r} cannot be copied or pickled")


class _Destroyed(Handle):
    """Handle of an object that no longer exists."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<destroyed {type(self).__name__} {int(self):#x}>"


@cache
def _destroyed(name: str) -> Any:
    return type(name, (_Destroyed,), {"__slots__": ()})


def new_handle(value: int, kind: type[Handle]) -> Handle | None:
    """Return a handle for an address that cuDNN returned; None for a null pointer."""
    return kind(value) if value else None


def retire(handle: int) -> None:
    """Mark a handle as destroyed; integers are ignored."""
    if isinstance(handle, Handle):
        # So that a generated function sees from the class alone whether a handle can be used.
        handle.__class__ = _destroyed(type(handle).__name__)


def as_handle(value: Any, kind: type[Handle], name: str) -> int:
    """Return an argument as the address of an object.

    Parameters
    ----------
    value : Handle, int or ctypes pointer
        The argument. The kind of object at an integer's address is not known.
    kind : type
        Class of the handles that are accepted.
    name : str
        Name of the parameter.

    Returns
    -------
    int

    Raises
    ------
    DnnTypeError
        If the argument is a handle of another kind, or no address.
    DnnValueError
        If it is null, or the object was destroyed.
    """
    address = as_optional_handle(value, kind, name)
    if not address:
        raise DnnValueError(f"{place(name)} is null; expected a {kind.__name__}")
    return address


def as_optional_handle(value: Any, kind: type[Handle], name: str) -> int:
    """Return an argument as the address of an object, which may be null; see `as_handle`."""
    if isinstance(value, Handle):
        if isinstance(value, _Destroyed):
            raise DnnValueError(f"{place(name)} is {value!r}")
        if not isinstance(value, kind):
            raise DnnTypeError(
                f"{place(name)} is a {type(value).__name__}; expected a {kind.__name__}"
            )
        return value
    if value is None:
        return 0
    address = value.value or 0 if isinstance(value, ctypes.c_void_p) else _index(value)
    if address is None:
        raise DnnTypeError(
            f"{place(name)} is of type {type(value).__name__}; expected a {kind.__name__},"
            " an integer or ctypes.c_void_p"
        )
    if 0 < address < LEAST_ADDRESS or address < 0:
        raise DnnValueError(f"{place(name)} is {address}, which is not the address of an object")
    return address


def _index(value: Any) -> int | None:
    if isinstance(value, bool | Enum):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def place(name: str) -> str:
    """Return the name of a parameter with that of the generated function being called."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_name.startswith("cudnn"):
        frame = frame.f_back
    return f"{frame.f_code.co_name}: {name}" if frame else name
