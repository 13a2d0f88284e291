"""Random streams: shared variables that each call of a compiled function advances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from dnnops.compat import default_update, set_default_update

__all__ = ["STEP", "advance", "is_marked", "marked", "recording", "stream_of_entries"]

#: Added to a state of two integers, it changes the seed, which takes all values in turn.
STEP = np.array([0x1E3779B97F4A7C15, 0])

_of_entries: WeakKeyDictionary[SharedVariable, SharedVariable] = WeakKeyDictionary()
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


def stream_of_entries(state: Any) -> Any:
    """Return the state that dropout of several entries draws from.

    The update of a stream that belongs to one dropout depends on the size of its operand, which
    ``vectorize_graph`` may replace. It gets a second stream, whose seed changes with each call.

    Parameters
    ----------
    state : TensorVariable
        State of two integers.

    Returns
    -------
    TensorVariable
        Another stream if functions advance `state` by themselves, else `state`.
    """
    if not isinstance(state, SharedVariable) or default_update(state) is None:
        return state
    stream = _of_entries.get(state)
    if stream is None:
        value = state.get_value() + STEP
        stream = _of_entries[state] = pytensor.shared(value, shape=(2,))
        advance(stream, stream + STEP)
    return stream
