"""Axes that the runtime libraries support: adjacent ones, of arrays of a limited rank."""

from __future__ import annotations

from collections.abc import Sequence

from dnnops.runtime.op import MAX_NDIM

__all__ = ["has_neighboring_statistics", "neighboring_axes"]


def neighboring_axes(axis: tuple[int, ...] | None, ndim: int) -> tuple[int, ...] | None:
    """Normalize the axes of a softmax if they are adjacent, as the runtime libraries require.

    Parameters
    ----------
    axis : tuple of int or None
        Axes of PyTensor's Softmax; None means all.
    ndim : int
        Number of dimensions of the array.

    Returns
    -------
    tuple of int or None
        The axes in ascending order, or None if there are no axes, if they are not adjacent, or if
        the array has more dimensions than the runtime libraries support.
    """
    if ndim > MAX_NDIM:
        return None
    axes = tuple(range(ndim)) if axis is None else tuple(sorted(a % ndim for a in axis))
    if not axes or axes != tuple(range(axes[0], axes[0] + len(axes))):
        return None
    return axes


def has_neighboring_statistics(axes: Sequence[int], ndim: int) -> bool:
    """Return whether the runtime libraries support the axes of a batch normalization.

    The libraries view an array as (batch, channel, inner), so the axes that keep separate
    statistics must be adjacent.

    Parameters
    ----------
    axes : sequence of int
        Non-negative axes over which mean and variance are computed.
    ndim : int
        Number of dimensions of the array.

    Returns
    -------
    bool
        Whether the axes are supported. False if the array has more dimensions than the runtime
        libraries support.
    """
    left = [axis for axis in range(ndim) if axis not in axes]
    return ndim <= MAX_NDIM and (not left or left[-1] - left[0] == len(left) - 1)
