"""Conditions that are checked where a value is computed."""

from __future__ import annotations

from typing import Any

from pytensor.raise_op import CheckAndRaise

from dnnops.errors import DnnValueError

__all__ = ["CheckedValue", "checked"]


class CheckedValue(CheckAndRaise):
    """`CheckAndRaise`, which has no pushforward, with one: ``op(value, *conditions)``."""

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        # Where the value is computed, the conditions have been checked.
        return [tangents[0]]


def checked(x: Any, problem: str, *conditions: Any) -> Any:
    """Raise DnnValueError with `problem` unless all conditions are met.

    Parameters
    ----------
    x : Variable or int
        What is returned; a variable raises the error when it is computed.
    problem : str
    *conditions : bool or scalar variable
        One that is known raises the error at once.
    """
    if any(condition is False for condition in conditions):
        raise DnnValueError(problem)
    symbolic = [condition for condition in conditions if condition is not True]
    return CheckedValue(DnnValueError, problem)(x, *symbolic) if symbolic else x
