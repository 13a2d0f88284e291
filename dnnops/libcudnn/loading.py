"""Generates the module with cuDNN's functions at its first use, and stores it for later processes.

The file is in PyTensor's compiledir, beside the runtime libraries. Its name contains a hash of the
headers and of this package, so that another cuDNN or dnnops has a file of its own.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from threading import Lock
from types import ModuleType

from dnnops.errors import DnnCacheError
from dnnops.libcudnn.declarations import read_headers
from dnnops.libcudnn.source import write_module
from dnnops.runtime import files
from dnnops.runtime.compiling import hash_files
from dnnops.runtime.find import find_cudnn

__all__ = ["generated_module"]

_PACKAGE = "dnnops.libcudnn"
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
            _modules.append(_load())
        return _modules[0]


def _load() -> ModuleType:
    headers = find_cudnn().include_dirs[0]
    own = Path(__file__).parent
    key = hash_files([*sorted(headers.glob("cudnn*.h")), *sorted(own.glob("*.py"))])
    with suppress(OSError, ValueError, DnnCacheError):
        path = _stored(f"libcudnn_{key}.py", headers)
        # Its classes and functions appear to be the package's.
        spec = spec_from_loader(_PACKAGE, SourceFileLoader(_PACKAGE, str(path)))
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    # The directory cannot be used, or the disk is full.
    module = ModuleType(_PACKAGE)
    code = compile(write_module(read_headers(headers)), f"<{_PACKAGE}>", "exec")
    exec(code, vars(module))
    return module


def _stored(name: str, headers: Path) -> Path:
    """Return the file of the module, which is written unless it exists and is intact.

    Raises
    ------
    OSError, ValueError, DnnCacheError
        If the file cannot be written, or others could have written to it.
    """
    path = _directory() / name
    if reason := files.distrust(path.parent, create=True):
        raise DnnCacheError(f"{path.parent} cannot be used: {reason}")
    try:
        if _is_intact(path.read_text(encoding="utf-8")):
            return path
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    source = write_module(read_headers(headers))
    files.replace(path, f"# {_digest(source)}\n{source}")
    return path


def _directory() -> Path:
    from pytensor import config

    return Path(config.compiledir) / "dnnops"


def _is_intact(text: str) -> bool:
    first, _, source = text.partition("\n")
    return first == f"# {_digest(source)}"


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()
