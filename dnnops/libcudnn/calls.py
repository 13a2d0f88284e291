"""Calls of the library's functions, and exceptions for the statuses that they return."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, NoReturn

from _cffi_backend import FFI

from dnnops.errors import DnnUnavailableError, cudnn_error
from dnnops.runtime.find import Library

__all__ = ["Symbols", "text", "void_pointer"]

# The type that modules compiled by cffi use, which understands declarations without pycparser. A
# call through it takes less time than one through ctypes, and checks that numbers fit.
_ffi = FFI()


def void_pointer(address: int) -> Any:
    """Return an address as an argument of type ``void *``, which also accepts bytes."""
    return _ffi.cast("void *", address)


def text(pointer: Any) -> str:
    """Return a string that a function returned."""
    return _ffi.string(pointer).decode() if pointer else ""


class Symbols:
    """Functions of the library as attributes, which are looked up when they are first used."""

    def __init__(self, library: Library, signatures: Mapping[str, str]) -> None:
        """Store where the functions are.

        Parameters
        ----------
        library : Library
            cuDNN.
        signatures : mapping
            Type of each function, with integers in place of pointers.
        """
        self._library = library
        self._signatures = signatures

    def __getattr__(self, name: str) -> Any:
        """Return a function.

        Raises
        ------
        DnnUnavailableError
            If the library cannot be loaded, or does not have the function.
        """
        if name not in self._signatures:
            raise AttributeError(f"the headers of cuDNN do not declare {name}")
        library = self._library
        try:
            loaded = ctypes.CDLL(str(library.library))
        except OSError as error:
            raise DnnUnavailableError(f"cuDNN cannot be loaded: {error}") from error
        try:
            address = ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value
        except AttributeError:
            raise DnnUnavailableError(
                f"{library.library} has no function {name}, which its headers of version"
                f" {library.version_text} declare"
            ) from None
        result, _, parameters = self._signatures[name].partition("(")
        function = _ffi.cast(f"{result}(*)({parameters}", address)
        setattr(self, name, function)
        return function

    def fail(self, name: str, status: int) -> NoReturn:
        """Raise the exception for a status that is not ``CUDNN_STATUS_SUCCESS``.

        Parameters
        ----------
        name : str
            Function that returned it.
        status : int
            The status.

        Raises
        ------
        CudnnError
            The subclass that is named after the status.
        """
        # Before other functions are called, which could change it.
        memory = ctypes.create_string_buffer(4096)
        self.cudnnGetLastErrorString(ctypes.addressof(memory), len(memory))
        reason = memory.value.decode(errors="replace")
        word = text(self.cudnnGetErrorString(status))
        message = f"{name} returned {word}" + (f" ({reason})" if reason else "")
        raise cudnn_error(word, status)(message)
