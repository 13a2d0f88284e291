"""Local response and divisive normalization, their gradients, and sums over windows."""

from __future__ import annotations

from typing import Any

from dnnops.nnet.norm.window_base import window_sides

__all__ = ["window_norm", "window_sum"]


def _sum(lib: Any, x: Any, n: int, axes: Any, backward: bool = False) -> Any:
    sides = window_sides(n)[::-1] if backward else window_sides(n)
    for axis in axes:
        x = lib.sum_of_windows(x, n, axis, sides)
    return x


def window_sum(lib: Any, op: Any, x: Any) -> tuple[Any]:
    """Compute the results of `WindowSum`."""
    return (_sum(lib, x, op.n, op.axes, op.backward),)


def window_norm(lib: Any, op: Any, *operands: Any) -> tuple:
    """Compute a normalization of `WindowNormBase`, or its gradient."""
    # In float32, squares of large numbers are infinite.
    given = dict(zip(op.operands, map(lib.widest, operands), strict=True))
    x = given["x"]
    axes = op.window_axes(x.ndim)
    squared = x - given["means"] if "means" in given else x
    alpha = op.alpha / op.n ** len(axes)
    base = op.k + alpha * _sum(lib, squared * squared, op.n, axes)
    power = base**-op.beta
    if "gy" not in given:
        return (x * power,)
    # The effect of each element's square on the outputs of all elements whose window contains it.
    gy = given["gy"]
    shares = _sum(lib, gy * x * (power / base), op.n, axes, backward=True)
    through_squares = (2 * alpha * op.beta) * squared * shares
    return (gy * power - through_squares, through_squares)[: len(op.results)]
