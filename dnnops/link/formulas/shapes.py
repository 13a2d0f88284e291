"""Shape checks that don't specialize a compiled graph for the sizes that are compared."""

from __future__ import annotations

from typing import Any

from dnnops.errors import DnnValueError
from dnnops.nnet.validate import show_shape

__all__ = ["require_same_shape"]


def require_same_shape(op: Any, *shapes: Any) -> None:
    """Raise `DnnValueError` if the shapes differ, since a library might broadcast them."""
    if any(tuple(shape) != tuple(shapes[0]) for shape in shapes[1:]):
        found = ", ".join(show_shape(tuple(shape)) for shape in shapes)
        raise DnnValueError(f"{op}: the operands must have the same shape, got {found}")
