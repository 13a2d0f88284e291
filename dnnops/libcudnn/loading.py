"""Generates the module with cuDNN's functions when one is first used."""

from __future__ import annotations

import linecache
from threading import Lock
from types import ModuleType

from dnnops.libcudnn.declarations import read_headers
from dnnops.libcudnn.source import write_module
from dnnops.runtime.find import find_cudnn

__all__ = ["generated_module"]

_PACKAGE = "dnnops.libcudnn"
_FILE = f"<generated {_PACKAGE}>"
_lock = Lock()
_modules: list[ModuleType] = []


def generated_module() -> ModuleType:
    """Return the module with cuDNN's functions, enums, structs and handles.

    Raises
    ------
    DnnUnavailableError
        If cuDNN or its headers are missing. The message says where they were searched for.
    """
    with _lock:  # two modules would have different classes
        if not _modules:
            _modules.append(_generate())
        return _modules[0]


def _generate() -> ModuleType:
    source = write_module(read_headers(find_cudnn().include_dirs[0]))
    # Its classes and functions appear to be the package's.
    module = ModuleType(_PACKAGE)
    exec(compile(source, _FILE, "exec"), vars(module))
    # Where tracebacks and debuggers look for lines. Without a time, the entry stays.
    linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
    return module
