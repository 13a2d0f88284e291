"""Learning rates that depend on the step.

A schedule is a function of the number of steps before this one, a scalar variable, that returns the
learning rate of this step. Every optimizer takes one in place of a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi
from typing import Any

import pytensor.tensor as pt

from dnnops.arguments import is_int, number, shown
from dnnops.errors import DnnTypeError, DnnValueError

__all__ = ["Schedule", "cosine", "exponential", "linear", "piecewise"]

Schedule = Callable[[Any], Any]


def _steps(where: str, name: str, value: Any, minimum: int) -> float:
    if not is_int(value):
        raise DnnTypeError(f"{where}: {name} must be an int, got {shown(value)}")
    if value < minimum:
        raise DnnValueError(f"{where}: {name} must be at least {minimum}, got {value}")
    return float(value)


def _decaying(
    where: str, rate: Any, steps: Any, warmup: Any, end: Any, shape: Callable[[Any], Any]
) -> Schedule:
    """Return a schedule that rises to `rate`, then falls to `end` as `shape` falls from 1 to 0."""
    high, low = (number(where, name, v, 0.0) for name, v in (("rate", rate), ("end", end)))
    rise = _steps(where, "warmup", warmup, 0)
    fall = _steps(where, "steps", steps, 1) - rise
    if fall <= 0:
        raise DnnValueError(f"{where}: warmup={warmup} must be less than steps={steps}")

    def schedule(step: Any) -> Any:
        done = pt.clip((step - rise) / fall, 0.0, 1.0)
        found = low + (high - low) * shape(done)
        return pt.switch(step < rise, high * (step + 1) / (rise + 1), found) if rise else found

    return schedule


def linear(rate: float, steps: int, warmup: int = 0, end: float = 0.0) -> Schedule:
    """Fall linearly from `rate` to `end`, after a linear rise.

    Parameters
    ----------
    rate, end : float
        The highest learning rate, and the one after all steps.
    steps : int
        Number of steps, those of the rise included.
    warmup : int
        Number of steps of the rise.

    Returns
    -------
    callable
        Schedule.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.
    """
    return _decaying("linear", rate, steps, warmup, end, lambda done: 1 - done)


def cosine(rate: float, steps: int, warmup: int = 0, end: float = 0.0) -> Schedule:
    """Fall from `rate` to `end` along half a period of the cosine; see `linear`.

    References
    ----------
    Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts (2017).
    """
    return _decaying("cosine", rate, steps, warmup, end, lambda done: (1 + pt.cos(done * pi)) / 2)


def exponential(rate: float, factor: float, every: int = 1) -> Schedule:
    """Multiply the learning rate by `factor` after `every` steps.

    Parameters
    ----------
    rate : float
        Initial learning rate.
    factor : float
        Non-negative factor.
    every : int
        Number of steps with the same learning rate.

    Returns
    -------
    callable
        Schedule.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.
    """
    where = "exponential"
    first, base = number(where, "rate", rate, 0.0), number(where, "factor", factor, 0.0)
    length = _steps(where, "every", every, 1)
    return lambda step: first * base ** pt.floor(step / length)


def piecewise(rates: Sequence[float], boundaries: Sequence[int]) -> Schedule:
    """Use one learning rate after the other.

    Parameters
    ----------
    rates : sequence of float
        Learning rates.
    boundaries : sequence of int
        For each rate but the first, the number of steps after which it begins, in ascending order.

    Returns
    -------
    callable
        Schedule.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument is invalid.
    """
    where = "piecewise"
    found = [number(where, "rates", rate, 0.0) for rate in rates]
    begins = [_steps(where, "boundaries", step, 0) for step in boundaries]
    if len(found) != len(begins) + 1 or begins != sorted(begins):
        raise DnnValueError(
            f"{where}: there must be one rate more than boundaries, which ascend; got "
            f"{shown(rates)} and {shown(boundaries)}"
        )

    def schedule(step: Any) -> Any:
        rate: Any = found[0]
        for begin, later in zip(begins, found[1:], strict=True):
            rate = pt.switch(step < begin, rate, later)
        return rate

    return schedule
