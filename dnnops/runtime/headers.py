"""The structs, functions and callbacks of the C headers, as ctypes sees them.

cffi reads the headers that the runtime libraries share with Python: ``dnnops_runtime.h`` and those
in ``c_code/abi/python``. Their structs and signatures are not repeated in Python.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

__all__ = [
    "CHOSEN",
    "CPU",
    "GPU",
    "RUNTIME",
    "callback",
    "declarations",
    "declare",
    "parse",
    "structure",
]

#: Headers that Python reads, relative to ``c_code/abi``. Each is parsed when it is needed.
RUNTIME = "dnnops_runtime.h"
CHOSEN, CPU, GPU = (f"python/dnnops_{name}.h" for name in ("chosen", "onednn", "cudnn"))

_ABI = Path(__file__).resolve().parents[1] / "c_code" / "abi"
_PRIMITIVES: dict[str, Any] = {
    "char": ctypes.c_char,
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "double": ctypes.c_double,
}


def declarations(header: str) -> str:
    """Return the part of a header that cffi reads.

    Blocks for C++ and all other lines of the preprocessor are dropped, except macros that are
    integers.
    """
    header = re.sub(r"^#ifdef __cplusplus$.*?^#endif$", "", header, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^#(?!define \w+ \d+$).*$", "", header, flags=re.MULTILINE)


@cache
def parse(header: str) -> Any:
    """Return cffi's view of a header in ``c_code/abi``, and of ``dnnops_runtime.h``."""
    # Imported here because it takes 17 ms, with its parser.
    from cffi import FFI

    ffi = FFI()
    if header != RUNTIME:
        ffi.include(parse(RUNTIME))
    ffi.cdef(declarations((_ABI / header).read_text(encoding="utf-8")))
    return ffi


@cache
def structure(name: str, header: str = RUNTIME) -> type[Any]:
    """Return the ctypes class of a struct.

    Parameters
    ----------
    name : str
        Name of the struct's type.
    header : str
        Header that declares it.

    Returns
    -------
    type
        Subclass of `ctypes.Structure` with the fields of the struct.
    """
    return _structure(parse(header).typeof(name))


@cache
def _structure(kind: Any) -> type[Any]:
    fields = [(name, _as_ctypes(field.type)) for name, field in kind.fields]
    return type(kind.cname, (ctypes.Structure,), {"_fields_": fields})


# Libraries keep the addresses of these functions.
_callbacks: list[Any] = []


def callback(name: str, header: str, function: Callable[..., Any]) -> Any:
    """Return a Python function as a C function, which is never freed.

    Parameters
    ----------
    name : str
        Name of the function's type.
    header : str
        Header that declares it.
    function : callable
        Python function, which must not raise: ctypes would return an undefined value.

    Returns
    -------
    ctypes function
        `function` gets pointers to structs and numbers as ctypes pointers, ``void *`` as an int or
        None, and ``char *`` as bytes.
    """
    kind = parse(header).typeof(name)
    arguments = (_as_ctypes(argument, typed=True) for argument in kind.args)
    _callbacks.append(ctypes.CFUNCTYPE(_as_ctypes(kind.result), *arguments)(function))
    return _callbacks[-1]


def declare(library: ctypes.CDLL, path: str, header: str) -> None:
    """Set the types of arguments and results of the functions that a header declares.

    Without them, ctypes would pass and return 32-bit integers.

    Parameters
    ----------
    library : CDLL
        Library that exports the functions.
    path : str
        Path that it was loaded from.
    header : str
        Header that declares them.
    """
    ffi = parse(header)
    declared = ffi.dlopen(path)
    for name in dir(declared):
        if isinstance(getattr(declared, name), int):
            continue  # a constant
        kind = ffi.typeof(getattr(declared, name))
        function = getattr(library, name)
        function.argtypes = [_as_ctypes(argument) for argument in kind.args]
        function.restype = _as_ctypes(kind.result)


def _as_ctypes(kind: Any, typed: bool = False) -> Any:
    """Return the ctypes type for a type of cffi.

    If `typed` is False, pointers other than strings become ``void *``, which accepts whatever
    ctypes can pass as an address.
    """
    match kind.kind:
        case "void":
            return None
        case "primitive":
            return _PRIMITIVES[kind.cname]
        case "array":
            return _as_ctypes(kind.item) * kind.length
        case "struct":
            return _structure(kind)
        case "pointer" if kind.item.cname == "char":
            return ctypes.c_char_p
        case "pointer" if typed and kind.item.kind != "void":
            return ctypes.POINTER(_as_ctypes(kind.item))
    return ctypes.c_void_p
