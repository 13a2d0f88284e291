"""The deviation of data whose squares may be infinite."""

from __future__ import annotations

from typing import Any

__all__ = ["inverse_deviation"]


def inverse_deviation(lib: Any, centered: Any, mean: Any, axes: Any, epsilon: Any) -> Any:
    """Return ``1 / sqrt(mean(centered**2) + epsilon)``.

    Parameters
    ----------
    lib : module
        `dnnops.link.jax.library` or `dnnops.link.pytorch.library`.
    centered : array
        Data less its mean.
    mean : callable
        Returns the mean of an array over `axes`, which are kept.
    axes : tuple of int
    epsilon : number or scalar array

    Returns
    -------
    array
    """
    largest = lib.amax(abs(centered), axes)
    # Squares of smaller numbers don't overflow, and need no rounding.
    scale = 1 / lib.where((largest > 2.0**32) & (largest < float("inf")), largest, 1.0)
    scaled = centered * scale
    return scale / lib.sqrt(mean(scaled * scaled) + epsilon * scale * scale)
