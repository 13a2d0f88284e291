"""cuDNN's C API as Python functions, with its enums, structs, handles and descriptors.

The names are those of cuDNN's headers, from which they are generated when one is first used.
Importing this package does nothing else. The page `libcudnn` of the documentation describes how
arguments and results correspond to those in C.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a name of cuDNN's headers.

    Raises
    ------
    DnnUnavailableError
        If cuDNN or its headers are missing.
    """
    # The names of modules have no capitals, those of cuDNN do.
    if name.islower() and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    names = _generated()
    if name == "__all__":
        return sorted(names)
    if name not in names:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, nor has cuDNN")
    globals().update(names)
    return names[name]


def __dir__() -> list[str]:
    """Return the names of cuDNN's headers; nothing if they are missing."""
    from dnnops.errors import DnnUnavailableError

    with suppress(DnnUnavailableError):
        return sorted(_generated())
    return []


def _generated() -> dict[str, Any]:
    from dnnops.libcudnn.loading import generated_module

    return {name: value for name, value in vars(generated_module()).items() if name[0] != "_"}
