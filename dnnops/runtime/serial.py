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


class SerialFunction(Function):
    """A compiled function that runs one call at a time.

    PyTensor's functions store the arguments and results of a call, so calls that overlap would mix
    them up. `Function.copy` returns a function with a storage of its own, whose calls may overlap
    with those of this one. A call within a call of the same thread, which cannot wait, raises
    `DnnThreadError`.
    """

    __slots__ = ("__weakref__", "_is_called", "_running")

    _is_called: bool

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._renew_lock()
        _functions.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._running:
            if self._is_called:
                raise DnnThreadError(
                    "a function is called by an Op, a hook or a signal handler within a call of"
                    " itself, whose arguments and results it stores; call a copy of it:"
                    " function.copy()"
                )
            self._is_called = True
            try:
                # Not super(), which takes longer.
                return Function.__call__(self, *args, **kwargs)
            finally:
                self._is_called = False

    def _renew_lock(self) -> None:
        self._running = RLock()
        self._is_called = False


_functions: WeakSet[SerialFunction] = WeakSet()
# PyTensor registers it for the class itself only.
copyreg.pickle(SerialFunction, copyreg.dispatch_table[Function])  # type: ignore[arg-type]


def _renew_locks() -> None:
    """Replace the locks in a forked process, where the threads that hold them do not exist."""
    for function in _functions:
        function._renew_lock()


os.register_at_fork(after_in_child=_renew_locks)
