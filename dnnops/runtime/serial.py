"""Compiled functions that several threads may call: a call waits until the one before has ended."""

from __future__ import annotations

import copyreg
import os
from threading import RLock
from typing import Any
from weakref import WeakSet

from pytensor.compile.executor import Function

from dnnops.errors import DnnThreadError

__all__ = ["SerialFunction"]


class _Turn:
    """Whose turn it is among the calls that use one storage."""

    def __init__(self) -> None:
        self.renew()
        _turns.add(self)

    def renew(self) -> None:
        self.running = RLock()
        self.is_called = False


_turns: WeakSet[_Turn] = WeakSet()


class SerialFunction(Function):
    """A compiled function that runs one call at a time.

    PyTensor's functions store the arguments and results of a call, so calls that overlap would mix
    them up. `Function.copy` returns a function with a storage of its own, whose calls may overlap
    with those of this one, unless `share_memory` is True. A call within a call of the same thread,
    which cannot wait, raises `DnnThreadError`.
    """

    __slots__ = ("_turn",)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._turn = _Turn()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        turn = self._turn
        with turn.running:
            if turn.is_called:
                raise DnnThreadError(
                    "a function is called by an Op, a hook or a signal handler within a call of"
                    " itself, whose arguments and results it stores; call a copy of it:"
                    " function.copy()"
                )
            turn.is_called = True
            try:
                # Not super(), which takes longer.
                return Function.__call__(self, *args, **kwargs)
            finally:
                turn.is_called = False

    def copy(self, share_memory: bool = False, *args: Any, **kwargs: Any) -> Any:
        """Return a copy; see `Function.copy`."""
        copied = super().copy(share_memory, *args, **kwargs)
        if share_memory:
            copied._turn = self._turn
        return copied


# PyTensor registers it for the class itself only.
copyreg.pickle(SerialFunction, copyreg.dispatch_table[Function])  # type: ignore[arg-type]


def _renew_locks() -> None:
    """Replace the locks in a forked process, where the threads that hold them do not exist."""
    for turn in _turns:
        turn.renew()


os.register_at_fork(after_in_child=_renew_locks)
