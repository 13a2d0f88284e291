"""Geometry of pooling windows: their number, positions and elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.lib.stride_tricks import sliding_window_view
from pytensor.raise_op import CheckAndRaise

from dnnops.errors import DnnValueError
from dnnops.nnet.validate import sizes_argument, switch

#: Maximum window size, stride and padding. Loops over a window include its padding, and the
#: libraries use 32-bit counters.
MAX_WINDOW = 2**26

#: Reductions that pooling can apply to a window.
POOL_MODES = ("max", "sum", "average_inc_pad", "average_exc_pad")

#: Max pooling mode with a bitwise reproducible gradient.
MAX_DETERMINISTIC = "max_deterministic"

# The message has no names or values, so that all graphs share one C module.
_CHECK_WINDOWS = CheckAndRaise(
    DnnValueError,
    "pooling: windows don't fit their image. On each spatial axis ws and stride must be positive, "
    "pad must be at least 0 and smaller than ws, and pad 0 without ignore_border",
)


def pool_output_shape(
    img_shape: Sequence[Any],
    ws: Sequence[Any],
    stride: Sequence[Any],
    pad: Sequence[Any],
    ignore_border: bool,
) -> tuple[Any, ...]:
    """Return the shape of a pooling output.

    Parameters
    ----------
    img_shape : sequence of int, symbolic int or None
        Image shape, (batch, channels, spatial...).
    ws, stride, pad : sequence of int, symbolic int or None
        Window size, stride and padding of each spatial axis.
    ignore_border : bool
        Whether to ignore windows that extend past the end of the padded image.

    Returns
    -------
    tuple
        Output shape, (batch, channels, spatial...). An entry is an int if all the sizes it depends
        on are ints, and None if one of them is None.

    Raises
    ------
    DnnTypeError, DnnValueError
        If an argument has an invalid type or number of entries, or is out of bounds.
    """
    where = "pool_output_shape"
    img = sizes_argument(where, "img_shape", img_shape, (3, 4, 5))
    ndim = len(img) - 2
    beside = f", for an img_shape of {ndim + 2} entries,"

    def sizes(name: str, value: Any, minimum: int) -> tuple[Any, ...]:
        return sizes_argument(where, f"{name}{beside}", value, (ndim,), minimum)

    ignores = switch(where, "ignore_border", ignore_border)
    return windows_shape(
        img, sizes("ws", ws, 1), sizes("stride", stride, 1), sizes("pad", pad, 0), ignores
    )


def windows_shape(
    img_shape: Sequence[Any],
    ws: Sequence[Any],
    stride: Sequence[Any],
    pad: Sequence[Any],
    ignore_border: bool,
) -> tuple[Any, ...]:
    """Compute `pool_output_shape` from arguments that have already been checked."""
    spatial = tuple(
        None if None in map(_none_or_zero, axis) else _axis_windows(*axis, ignore_border)
        for axis in zip(img_shape[2:], ws, stride, pad, strict=True)
    )
    return (*img_shape[:2], *spatial)


def checked_output_shape(
    img_shape: Sequence[Any],
    ws: Sequence[Any],
    stride: Sequence[Any],
    pad: Sequence[Any],
    ignore_border: bool,
) -> tuple[Any, ...]:
    """Return `windows_shape` with a check, at run time, that symbolic windows fit.

    A graph that uses only the shape contains no pooling Op to check the windows, so its shape could
    be negative, or its computation could divide by zero.
    """
    checked = [
        step if all(map(_is_size, (w, step, p))) else _checked(w, step, p, ignore_border)
        for w, step, p in zip(ws, stride, pad, strict=True)
    ]
    return windows_shape(img_shape, ws, checked, pad, ignore_border)


def _checked(ws: Any, stride: Any, pad: Any, ignore_border: bool) -> Any:
    conditions: list[Any] = [pt.ge(ws, 1), pt.ge(stride, 1), pt.ge(pad, 0), pt.lt(pad, ws)]
    if not ignore_border:
        conditions.append(pt.eq(pad, 0))
    return _CHECK_WINDOWS(pt.as_tensor_variable(stride), *conditions)


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, np.integer))


def _none_or_zero(value: Any) -> int | None:
    # `None in (...)` would compare symbolic values with None, which is not a bool.
    return None if value is None else 0


def _axis_windows(size: Any, ws: Any, stride: Any, pad: Any, ignore_border: bool) -> Any:
    if ignore_border:
        windows = (size + 2 * pad - ws) // stride + 1
        # No window fits in a smaller image.
        return max(windows, 0) if _is_size(windows) else pt.maximum(windows, 0)
    # Count the windows that start inside the image or, if windows overlap, those needed to cover
    # it.
    starting = (size - 1) // stride + 1
    covering = (size - 1 - ws) // stride + 2
    if all(map(_is_size, (size, ws, stride))):
        return starting if stride >= ws else max(covering, 1)
    return pt.switch(pt.ge(stride, ws), starting, pt.maximum(covering, 1))


class Windows:
    """Windows of a pooling over NumPy arrays.

    Parameters
    ----------
    img_shape, out_shape : sequence of int
        Shapes of the image and of the pooled image, (batch, channels, spatial...).
    ws, stride, pad : sequence of int
        Window size, stride and padding of each spatial axis.
    """

    def __init__(
        self,
        img_shape: Sequence[int],
        out_shape: Sequence[int],
        ws: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
    ):
        self.img_shape = tuple(img_shape)
        self.out_shape = tuple(out_shape)
        self.ws = tuple(ws)
        self.stride = tuple(stride)
        axes = list(zip(img_shape[2:], out_shape[2:], ws, stride, pad, strict=True))
        # The extent must contain both the padded image and every window.
        self._extent = tuple(max((o - 1) * s + w, n + p, w) for n, o, w, s, p in axes)
        self._inside: Any = (..., *(slice(p, p + n) for n, _, _, _, p in axes))

    def of(self, array: np.ndarray, fill: float) -> np.ndarray:
        """Return the windows of images as an array (..., windows..., elements of a window)."""
        ndim = len(self.ws)
        lead = array.shape[: array.ndim - ndim]
        extended = np.full((*lead, *self._extent), fill, dtype=array.dtype)
        extended[self._inside] = array
        axes = tuple(range(-ndim, 0))
        every = sliding_window_view(extended, self.ws, axis=axes)
        chosen: Any = tuple(
            slice(0, o * s, s) for o, s in zip(self.out_shape[2:], self.stride, strict=True)
        )
        windows = every[(..., *chosen, *(slice(None),) * ndim)]
        return windows.reshape(*windows.shape[:-ndim], int(np.prod(self.ws)))

    def inside(self) -> np.ndarray:
        """Return a bool array (windows..., elements) that marks elements inside the image."""
        return self.of(np.ones(self.img_shape[2:], dtype=bool), fill=False)

    def first_maximum(self, x: np.ndarray) -> np.ndarray:
        """Return the index of the first maximum of each window; NaN counts as the maximum."""
        windows = self.of(x, fill=-np.inf)
        is_maximum = (windows == windows.max(axis=-1, keepdims=True)) | np.isnan(windows)
        # In a window of -inf, the padding must not be taken as the maximum.
        return (is_maximum & self.inside()).argmax(axis=-1)

    def divisor(self, mode: str, ignore_border: bool) -> np.ndarray:
        """Return the number by which the sum over each window is divided."""
        if mode == "sum":
            return np.ones(self.out_shape[2:], dtype="int64")
        if mode == "average_inc_pad" and ignore_border:
            return np.full(self.out_shape[2:], np.prod(self.ws))
        # Without padding, elements past the end of the image are not counted.
        return self.inside().sum(axis=-1)

    def scatter(self, parts: Iterable[np.ndarray], dtype: np.dtype) -> np.ndarray:
        """Sum the contributions to each pixel of all windows that contain it.

        `parts` yields one array of the pooled shape for each element of a window, in C order.
        """
        total = np.zeros((*self.img_shape[:2], *self._extent), dtype=dtype)
        for offset, part in zip(np.ndindex(*self.ws), parts, strict=True):
            where: Any = tuple(
                slice(i, i + o * s, s)
                for i, o, s in zip(offset, self.out_shape[2:], self.stride, strict=True)
            )
            total[(..., *where)] += part
        return np.ascontiguousarray(total[self._inside])
