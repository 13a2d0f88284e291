"""Bilinear interpolation between the pixels of images: which pixels, and their weights.

Written once for NumPy, which the sampler's Ops run in, for PyTensor, whose expressions are
differentiated where there is no Op, and for the libraries of `dnnops.link`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytensor.tensor as pt

__all__ = ["Corner", "along_grid", "corners", "grid_coordinates"]


def grid_coordinates(size: int) -> np.ndarray:
    """Return `size` coordinates from -1 to 1, in float64; a single one is 0, the middle."""
    if size == 1:
        return np.zeros(1)
    return (2.0 * np.arange(size) - (size - 1)) / (size - 1)


@dataclass(frozen=True)
class Corner:
    """One of the four pixels around each point of a grid, (batch, rows, columns) of the output.

    Attributes
    ----------
    inside
        Whether the pixel lies in the image.
    weight
        The pixel's part in the value at the point: NaN where a coordinate is.
    by_x, by_y
        The derivatives of `weight` by the point's coordinates.
    """

    _row: Any
    _column: Any
    _xp: Any
    inside: Any
    weight: Any
    by_x: Any
    by_y: Any

    def index(self, img_shape: Any) -> tuple[Any, ...]:
        """Return indices into an image (batch, channels, rows, columns), all of them valid.

        What they select has the channels last: (batch, output rows, output columns, channels).
        """
        batch, _, rows, columns = img_shape
        return (
            self._xp.arange(batch)[:, None, None],
            slice(None),
            self._xp.clip(self._row, 0, rows - 1),
            self._xp.clip(self._column, 0, columns - 1),
        )

    def pixels(self, img: Any, chosen: Any) -> Any:
        """Return the pixels (batch, channels, output rows, output columns), 0 if not `chosen`."""
        values = self._xp.where(chosen[..., None], img[self.index(img.shape)], 0)
        return self._xp.moveaxis(values, -1, 1)


def _to_integers(x: Any) -> Any:
    return x.astype("int64")


def corners(
    xp: Any, grid: Any, rows: Any, columns: Any, integers: Callable[[Any], Any] = _to_integers
) -> Iterator[Corner]:
    """Yield the four pixels around each point of a grid.

    Parameters
    ----------
    xp : module
        ``numpy``, ``pytensor.tensor``, or one with functions of their names.
    grid : (batch, output rows, output columns, 2)
        Coordinates x and y in float64; -1 and 1 are the centers of the first and the last pixels.
    rows, columns : int
        The image's, symbolic ones for PyTensor.
    integers : callable, optional
        Makes integers of numbers that are whole.
    """
    steps = []
    for axis, size in enumerate((columns, rows)):
        scale = (size - 1) / 2
        # Far away is as good as infinity, and becomes an integer.
        position = xp.clip((grid[..., axis] + 1) * scale, -2, size)
        before = xp.floor(position)
        distance = position - before
        pixel = integers(xp.where(xp.isnan(before), -2, before))
        steps.append([(pixel, 1 - distance, -scale, size), (pixel + 1, distance, scale, size)])
    for (row, down, by_y, height), (column, across, by_x, width) in product(steps[1], steps[0]):
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        yield Corner(row, column, xp, inside, across * down, by_x * down, across * by_y)


def along_grid(img: Any, grid: Any, direction: Any) -> Any:
    """Return the derivative of the samples as the grid moves, as an expression.

    Parameters
    ----------
    img : TensorVariable, (batch, channels, rows, columns)
    grid, direction : TensorVariable, (batch, output rows, output columns, 2)

    Returns
    -------
    TensorVariable, (batch, channels, output rows, output columns)
        In the dtype of `img`.
    """
    wide, moved = grid.astype("float64"), direction.astype("float64")
    total: Any = 0
    for corner in corners(pt, wide, img.shape[2], img.shape[3]):
        weight = corner.by_x * moved[..., 0] + corner.by_y * moved[..., 1]
        total = total + weight[:, None] * corner.pixels(img, corner.inside)
    return total.astype(img.type.dtype)
