"""Spatial transformers: the affine grid, bilinear sampling, and their gradients."""

from __future__ import annotations

from typing import Any

from dnnops.nnet.resample.bilinear import Corner, corners

__all__ = ["grid", "grid_gradient", "sampler", "sampler_gradient"]


def _coordinates(lib: Any, size: int, like: Any) -> Any:
    """Return `size` coordinates from -1 to 1; a single coordinate is 0."""
    steps = lib.zeros((size,), like) + lib.arange(size)
    return (2 * steps - (size - 1)) / max(size - 1, 1)


def grid(lib: Any, op: Any, theta: Any, out_shape: Any) -> tuple[Any]:
    """Compute the results of `SpatialTransformerGrid`."""
    theta = lib.widest(theta)
    rows, columns = out_shape
    y, x = (_coordinates(lib, size, theta) for size in (rows, columns))
    parts = theta[:, None, None]
    return (parts[..., 0] * x[:, None] + (parts[..., 1] * y[:, None, None] + parts[..., 2]),)


def grid_gradient(lib: Any, op: Any, dgrid: Any) -> tuple[Any]:
    """Compute the results of `SpatialTransformerGridGrad`."""
    dgrid = lib.widest(dgrid)
    y, x = (_coordinates(lib, size, dgrid) for size in dgrid.shape[1:3])
    factors = (x[:, None], y[:, None, None], lib.zeros((1,), dgrid) + 1)
    return (lib.stack([(dgrid * factor).sum(axis=(1, 2)) for factor in factors], -1),)


def _corners(lib: Any, img: Any, grid: Any) -> list[Corner]:
    _, _, rows, columns = img.shape
    return list(corners(lib, lib.widest(grid), rows, columns, integers=lib.integers))


def sampler(lib: Any, op: Any, img: Any, grid: Any) -> tuple[Any]:
    """Compute the results of `SpatialTransformerSampler`."""
    out: Any = 0.0
    for corner in _corners(lib, img, grid):
        pixels = corner.pixels(img, corner.inside & (corner.weight != 0))
        out = out + corner.weight[:, None] * pixels
    return (out,)


def sampler_gradient(lib: Any, op: Any, img: Any, grid: Any, gout: Any) -> tuple[Any, Any]:
    """Compute the results of `SpatialTransformerSamplerGrad`."""
    gradient = lib.widest(gout)
    by_img = lib.zeros(img.shape, gradient)
    by_x: Any = 0.0
    by_y: Any = 0.0
    for corner in _corners(lib, img, grid):
        met = (corner.inside & (corner.weight != 0))[:, None]
        share = lib.where(met, corner.weight[:, None] * gradient, 0.0)
        by_img = lib.add_at(by_img, corner.index(img.shape), lib.moveaxis(share, 1, -1))
        pixels = corner.pixels(img, corner.inside)
        by_x = by_x + corner.by_x[:, None] * pixels
        by_y = by_y + corner.by_y[:, None] * pixels
    # A NaN coordinate affects all weights, but only one of their two derivatives.
    lost = lib.isnan(grid).any(-1)[..., None]
    by_grid = lib.stack([(gradient * slope).sum(axis=1) for slope in (by_x, by_y)], -1)
    return by_img, lib.where(lost, float("nan"), by_grid)
