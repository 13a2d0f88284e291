"""The dtype in which the references of normalizations take squares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["widened"]

#: Fourth powers of numbers between the inverse of this and this are normal numbers of float64.
_MOST = 1e75


def widened(operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return operands in a dtype with the digits and the range of their sums of squares.

    Parameters
    ----------
    operands : sequence of ndarray
        Floating-point arrays and scalars.

    Returns
    -------
    list of ndarray
        In float64, which has enough of both for float32. If a float64 element has squares that
        leave its range, in long double, whose range is larger on most platforms.
    """
    wide = [np.asarray(x).astype("float64", copy=False) for x in operands]
    if not any(_is_extreme(x) for x in wide if x.ndim):
        return wide
    return [x.astype("longdouble") for x in wide]


def _is_extreme(x: np.ndarray) -> bool:
    """Return whether the largest finite element is so large or so small that squares lose it."""
    sizes = np.abs(x, where=np.isfinite(x), out=np.zeros_like(x))
    least = np.min(sizes, where=sizes > 0, initial=np.inf)
    return bool(sizes.max(initial=0.0) > _MOST or least < 1 / _MOST)
