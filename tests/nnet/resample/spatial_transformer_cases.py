"""Cases of the spatial transformer, and the expected samples, computed pixel by pixel."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np
from hypothesis import strategies as st


@dataclass(frozen=True)
class Case:
    """An image, and the number of rows and columns of the output."""

    img_shape: tuple[int, int, int, int]
    out_shape: tuple[int, int]
    seed: int

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Return the shape of the samples."""
        return (*self.img_shape[:2], *self.out_shape)

    def theta(self, dtype: str = "float64") -> np.ndarray:
        """Return transformations for which part of the output lies inside the image."""
        rng = np.random.default_rng(self.seed + 1)
        theta = np.array([[1, 0, 0], [0, 1, 0]]) + 0.4 * rng.standard_normal(
            (self.img_shape[0], 2, 3)
        )
        return theta.astype(dtype)

    def grid(self, dtype: str = "float64") -> np.ndarray:
        """Return points inside and outside of the image, none at or near a pixel's center.

        The result is not differentiable there, which would disturb finite differences.
        """
        rng = np.random.default_rng(self.seed + 2)
        points = []
        for size in (self.img_shape[3], self.img_shape[2]):
            shape = (self.img_shape[0], *self.out_shape)
            # Along an axis with one pixel, every point is on the image.
            position = rng.integers(-2, size + 1, shape) + rng.uniform(0.1, 0.9, shape)
            points.append(2 * position / (size - 1) - 1 if size > 1 else position)
        return np.stack(points, axis=-1).astype(dtype)

    def arrays(self, dtype: str = "float64") -> list[np.ndarray]:
        """Return an image, points, and a gradient with respect to the samples."""
        rng = np.random.default_rng(self.seed)
        img, gout = (
            rng.standard_normal(shape).astype(dtype)
            for shape in (self.img_shape, self.sample_shape)
        )
        return [img, self.grid(dtype), gout]


@st.composite
def cases(
    draw: st.DrawFn,
    max_batch: int = 3,
    max_channels: int = 3,
    max_size: int = 6,
    empty: bool = False,
) -> Case:
    """Return a strategy for `Case`.

    Parameters
    ----------
    max_batch, max_channels, max_size : int
        Largest values; the smallest are 1.
    empty : bool
        Whether batch and channels may be 0.
    """
    least = 0 if empty else 1
    size = st.integers(1, max_size)
    img_shape = (draw(st.integers(least, max_batch)), draw(st.integers(least, max_channels)))
    return Case(
        (*img_shape, draw(size), draw(size)),
        (draw(size), draw(size)),
        draw(st.integers(0, 2**32 - 1)),
    )


def tent(distance: float) -> float:
    """Return the weight of a pixel at a distance, by linear interpolation."""
    return max(0.0, 1 - abs(distance))


def sample_by_loops(img: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Sum all pixels of an image for each point, weighted by distance."""
    batch, channels, rows, columns = img.shape
    out = np.zeros((batch, channels, *grid.shape[1:3]))
    for n, i, j in np.ndindex(*grid.shape[:3]):
        x = (grid[n, i, j, 0] + 1) / 2 * (columns - 1)
        y = (grid[n, i, j, 1] + 1) / 2 * (rows - 1)
        for row in range(max(0, floor(y)), min(rows, floor(y) + 2)):
            for column in range(max(0, floor(x)), min(columns, floor(x) + 2)):
                out[n, :, i, j] += tent(x - column) * tent(y - row) * img[n, :, row, column]
    return out


def grid_by_loops(theta: np.ndarray, out_shape: tuple[int, int]) -> np.ndarray:
    """Transform the coordinates of each pixel of the output."""
    rows, columns = out_shape
    grid = np.zeros((len(theta), rows, columns, 2))
    for n, i, j in np.ndindex(len(theta), rows, columns):
        x = -1 + 2 * j / (columns - 1) if columns > 1 else 0
        y = -1 + 2 * i / (rows - 1) if rows > 1 else 0
        grid[n, i, j] = theta[n] @ [x, y, 1]
    return grid
