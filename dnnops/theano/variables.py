"""Theano's variable classes, which can be used with `isinstance` and called without an owner."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph import basic
from pytensor.tensor import variable

__all__ = ["StandIn", "TensorVariable", "Variable"]


class StandIn:
    """Stand-in for a PyTensor class in `isinstance`, in calls and as a base class.

    It isn't derived from that class, so that `isinstance` checks in PyTensor aren't affected.

    Parameters
    ----------
    actual : type
        The class of PyTensor.
    exceptions : callable, optional
        Function that returns its derived classes whose instances don't count.
    """

    def __init__(self, actual: type, exceptions: Callable[[], tuple[type, ...]] = tuple):
        self._actual = actual
        self._exceptions = exceptions
        self.__name__ = actual.__name__
        self.__doc__ = actual.__doc__
        # What Class.__init__(self) of a derived class calls.
        vars(self)["__init__"] = actual.__init__  # type: ignore[misc]

    def __call__(self, type: Any, owner: Any = None, index: Any = None, name: Any = None) -> Any:
        """Create a variable, by default without an owner."""
        return self._actual(type, owner, index, name)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._actual) and not isinstance(instance, self._exceptions())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._actual) and not issubclass(subclass, self._exceptions())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (self._actual,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actual, name)


def _no_tensor_variables() -> tuple[type, ...]:
    # There are no sparse variables before this module is imported, which takes most of a second.
    sparse = sys.modules.get("pytensor.sparse.variable")
    return (basic.Constant, SharedVariable, *([sparse.SparseVariable] if sparse else []))


Variable = StandIn(basic.Variable)
#: In Theano, shared variables, constants and sparse matrices were not instances of this class.
TensorVariable = StandIn(variable.TensorVariable, _no_tensor_variables)
