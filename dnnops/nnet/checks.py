"""Checks of conditions when a value is computed."""

from __future__ import annotations

from typing import Any

from pytensor.raise_op import CheckAndRaise

from dnnops.errors import DnnValueError

__all__ = ["CheckedValue", "checked"]


class CheckedValue(CheckAndRaise):
    """A `CheckAndRaise` with a pushforward: ``CheckedValue(error, message)(x, *conditions)``."""

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        # The conditions are checked when the value itself is computed.
        return [tangents[0]]


def checked(
    x: Any, problem: str, *conditions: Any, error: type[DnnValueError] = DnnValueError
) -> Any:
    """Return `x` with a check that raises an error unless all conditions hold.

    Parameters
    ----------
    x : Variable or int
        Value to return.
    problem : str
        Message of the error.
    *conditions : bool or scalar variable
        Conditions to check. A bool is checked immediately, and a variable when the result is
        computed.
    error : type
        Class of the error.
    """
    if any(condition is False for condition in conditions):
        raise error(problem)
    symbolic = [condition for condition in conditions if condition is not True]
    return CheckedValue(error, problem)(x, *symbolic) if symbolic else x
