"""Random streams: shared variables that each call of a compiled function advances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dnnops.compat import set_default_update

__all__ = ["advance", "is_marked", "marked", "recording"]

_made: ContextVar[list[Any] | None] = ContextVar("_made", default=None)


def marked(variable: Any) -> Any:
    """Mark a variable as the state of a random stream, and return it."""
    variable.tag.random_stream = True
    return variable


def is_marked(variable: Any) -> bool:
    """Return whether a variable was `marked`."""
    return getattr(variable.tag, "random_stream", False)


def advance(variable: Any, update: Any) -> None:
    """Let compiled functions advance a stream, unless they give it another update.

    Parameters
    ----------
    variable : SharedVariable
        State of the stream.
    update : Variable
        State for the next call.

    Raises
    ------
    DnnNotSupportedError
        If the installed PyTensor has no default updates.
    """
    set_default_update(marked(variable), update)
    made = _made.get()
    if made is not None:
        made.append(variable)


@contextmanager
def recording() -> Iterator[list[Any]]:
    """Collect the streams that are made within the block, except in blocks within it."""
    made: list[Any] = []
    token = _made.set(made)
    try:
        yield made
    finally:
        _made.reset(token)
