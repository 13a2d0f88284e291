"""Values of cuDNN's enum members by their names in C."""

from __future__ import annotations

from enum import IntEnum
from functools import cache

from dnnops import libcudnn
from dnnops.errors import DnnNotSupportedError

__all__ = ["constant", "find_constant"]


@cache
def _constants() -> dict[str, IntEnum]:
    kinds = [getattr(libcudnn, name) for name in dir(libcudnn) if name.endswith("_t")]
    enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, IntEnum)]
    return {name: member for enum in enums for name, member in enum.__members__.items()}


def find_constant(name: str) -> IntEnum | None:
    """Return a member of an enum, or None if the installed headers do not declare it."""
    return _constants().get(name)


def constant(name: str) -> IntEnum:
    """Return a member of an enum.

    Raises
    ------
    DnnNotSupportedError
        If the installed headers do not declare it.
    """
    found = find_constant(name)
    if found is None:
        raise DnnNotSupportedError(f"cuDNN {libcudnn.cudnnGetVersion()} has no {name}")
    return found
