"""Handles and descriptors: integers that know their kind, and whether they were destroyed."""

from __future__ import annotations

import ctypes
import operator
import sys
from enum import Enum
from functools import cache
from threading import Lock
from types import FrameType
from typing import Any, ClassVar, Self

from dnnops.errors import DnnTypeError, DnnValueError

__all__ = [
    "LEAST_ADDRESS",
    "Handle",
    "as_handle",
    "as_optional_handle",
    "known_handle",
    "new_handle",
    "place",
    "retire",
]

#: No memory has addresses below this one, so a smaller number is some other argument.
LEAST_ADDRESS = 4096


class Handle(int):
    """Address of an object of cuDNN, with a subclass for each kind of object.

    It is a context manager that destroys the object. There is one handle for each object, so that
    an object cannot be destroyed through a second handle.
    """

    __slots__ = ()
    #: Function that destroys an object of this kind.
    destroy: ClassVar[Any] = None

    def __new__(cls, address: int) -> Self:
        """Return the handle of an object, which other code may have created.

        Parameters
        ----------
        address : int or ctypes.c_void_p
            Address of the object.

        Raises
        ------
        DnnTypeError
            If the argument is not an integer, or is a handle of another kind.
        DnnValueError
            If it cannot be the address of an object.
        """
        address = int(as_handle(address, cls, cls.__name__))
        with _lock:
            return _live.setdefault((cls, address), int.__new__(cls, address))

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

    def __enter__(self) -> Self:
        raise DnnValueError(f"{self!r} cannot be used")

    def destroy(self) -> None:
        """Raise `DnnValueError`, because the object was destroyed before."""
        raise DnnValueError(f"{self!r} cannot be destroyed again")

    def __repr__(self) -> str:
        return f"<destroyed {type(self).__name__} {int(self):#x}>"


#: The handle of each object that is not destroyed, by its class and address.
_live: dict[tuple[type[Handle], int], Any] = {}
_lock = Lock()


@cache
def _destroyed(name: str) -> Any:
    return type(name, (_Destroyed,), {"__slots__": ()})


def _mark(handle: Handle) -> None:
    # So that a generated function sees from the class alone whether a handle can be used.
    handle.__class__ = _destroyed(type(handle).__name__)


def new_handle(value: int, kind: type[Handle]) -> Handle | None:
    """Return the handle of an object that cuDNN created; None for a null pointer."""
    if not value:
        return None
    handle = int.__new__(kind, value)
    with _lock:
        # Other code destroyed the former object at this address.
        former = _live.get((kind, value))
        if former is not None:
            _mark(former)
        _live[kind, value] = handle
    return handle


def known_handle(value: int, kind: type[Handle]) -> Handle | None:
    """Return the handle of an object that cuDNN refers to; None for a null pointer.

    If the object was created by other code, or is destroyed, the handle cannot destroy it.
    """
    if not value:
        return None
    return _live.get((kind, value)) or int.__new__(kind, value)


def retire(handle: int, kind: type[Handle], name: str) -> None:
    """Mark an object as destroyed, before it is.

    Only one of several threads that destroy an object gets past this function. If cuDNN then fails
    to destroy the object, it stays unusable.

    Parameters
    ----------
    handle : int
        Handle or address. Addresses of objects that other code created are ignored.
    kind : type
        Class of the handle.
    name : str
        Name of the parameter.

    Raises
    ------
    DnnValueError
        If it is a handle whose object was destroyed, or that does not own its object.
    """
    with _lock:
        live = _live.get((kind, int(handle)))
        if isinstance(handle, Handle) and live is not handle:
            reason = "" if isinstance(handle, _Destroyed) else ", which other code must destroy"
            raise DnnValueError(f"{place(name)} is {handle!r}{reason}")
        if live is not None:
            del _live[kind, int(handle)]
            _mark(live)


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
    if address and not LEAST_ADDRESS <= address < 2**64:
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
    while frame is not None and not _is_generated(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_name}: {name}" if frame else name


def _is_generated(frame: FrameType) -> bool:
    # Functions of users, in which fields of structs are set, may have such names, too.
    in_package = frame.f_globals.get("__name__") == "dnnops.libcudnn"
    return in_package and frame.f_code.co_name.startswith("cudnn")
