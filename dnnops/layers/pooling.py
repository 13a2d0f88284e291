"""Pooling, with the arguments of cudnn.torch's modules."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import pytensor.tensor as pt

from dnnops import nnet
from dnnops.errors import DnnNotSupportedError, DnnValueError
from dnnops.layers.images import batched, by_width, size
from dnnops.layers.layer import Layer
from dnnops.nnet.validate import show_shape

__all__ = [
    "SpatialAveragePooling",
    "SpatialMaxPooling",
    "TemporalMaxPooling",
    "VolumetricAveragePooling",
    "VolumetricMaxPooling",
]


class _Pooling(Layer):
    """Pooling over the last axes. Lengths are in the order of the axes: time, rows, columns."""

    mode: ClassVar[str]
    convertible = True

    def __init__(self, kernel: tuple[Any, ...], stride: tuple[Any, ...], pad: tuple[Any, ...]):
        super().__init__()
        where = self._name()
        self.kernel = tuple(size(where, "window size", value) for value in kernel)
        self.stride = tuple(
            length if value is None else size(where, "stride", value)
            for length, value in zip(self.kernel, stride, strict=True)
        )
        self.pad = tuple(size(where, "padding", value, 0) for value in pad)
        if any(2 * p > k for p, k in zip(self.pad, self.kernel, strict=True)):
            raise DnnValueError(
                f"{where}: the padding must be at most half of the window, got {self.pad} for "
                f"windows of {self.kernel}"
            )
        self.ceil_mode = False

    def ceil(self) -> Self:
        """Let windows extend past the end, so that every element is in one; return the layer.

        As in PyTorch, a window does not start beyond the input and its padding at the start.

        Raises
        ------
        DnnNotSupportedError
            If averages have padding.
        """
        if any(self.pad) and self.mode != "max":
            raise DnnNotSupportedError(
                f"{self._name()}: ceil does not support averages with padding"
            )
        self.ceil_mode = True
        return self

    def floor(self) -> Self:
        """Ignore elements that fill no window, which is the default; return the layer."""
        self.ceil_mode = False
        return self

    def _extended(self, x: Any) -> Any:
        """Append what never is a maximum, so that the last windows are whole."""
        lowest = np.asarray(-np.inf, x.type.dtype)
        first = x.type.ndim - len(self.kernel)
        for axis, (window, step, pad) in enumerate(
            zip(self.kernel, self.stride, self.pad, strict=True), first
        ):
            known = x.type.shape[axis]
            length = x.shape[axis] if known is None else known
            maximum = pt.maximum if known is None else max
            steps = -(-maximum(length + 2 * pad - window, 0) // step)
            # The last window must start within the input or the padding before it.
            steps = steps - (steps * step >= length + pad)
            missing = maximum(steps * step + window - length - 2 * pad, 0)
            if isinstance(missing, int) and not missing:
                continue
            sizes = [missing if i == axis else x.shape[i] for i in range(x.type.ndim)]
            x = pt.concatenate([x, pt.alloc(lowest, *sizes)], axis=axis)
        return x

    def _pooled(self, x: Any) -> Any:
        pool = nnet.pool_2d if len(self.kernel) == 2 else nnet.pool_3d
        extends = self.ceil_mode and any(self.pad)
        spatial = zip(x.type.shape[-len(self.kernel) :], self.pad, self.kernel, strict=True)
        if not self.ceil_mode and any(n is not None and n + 2 * p < k for n, p, k in spatial):
            raise DnnValueError(
                f"{self._name()}: windows of {self.kernel} with a padding of {self.pad} are larger"
                f" than the input, {show_shape(x.type.shape)}"
            )
        return pool(
            self._extended(x) if extends else x,
            self.kernel,
            ignore_border=extends or not self.ceil_mode,
            stride=self.stride,
            pad=self.pad,
            mode=self.mode,
        )

    def forward(self, x: Any) -> Any:
        return batched(self._name(), x, 2 + len(self.kernel), self._pooled)

    def describe(self) -> str:
        parts = [by_width(self.kernel).replace(",", "x"), by_width(self.stride)]
        if any(self.pad):
            parts.append(by_width(self.pad))
        return f"({', '.join(parts)})"


class SpatialMaxPooling(_Pooling):
    """Maxima of windows, as ``cudnn.SpatialMaxPooling``.

    Parameters
    ----------
    kw, kh : int
        Width and height of a window.
    dw, dh : int, optional
        Distances between windows along the width and the height; by default, their sizes.
    pad_w, pad_h : int
        Padding on both sides, at most half of the window. It is never the maximum.

    Raises
    ------
    DnnTypeError
        If an argument is not an int.
    DnnValueError
        If an argument is out of bounds.

    Notes
    -----
    ``forward(x)`` takes images of shape (batch, channels, rows, columns) or one image without a
    batch. ``ceil()`` includes windows that extend past the end. Without it, windows must not be
    larger than padded images of known size.
    """

    mode = "max"

    def __init__(
        self,
        kw: int,
        kh: int,
        dw: int | None = None,
        dh: int | None = None,
        pad_w: int = 0,
        pad_h: int = 0,
    ):
        super().__init__((kh, kw), (dh, dw), (pad_h, pad_w))


class SpatialAveragePooling(SpatialMaxPooling):
    """Averages of windows, as ``cudnn.SpatialAveragePooling``.

    See `SpatialMaxPooling`. The zeros of the padding count.
    """

    mode = "average_inc_pad"


class VolumetricMaxPooling(_Pooling):
    """Maxima of windows of volumes, as ``cudnn.VolumetricMaxPooling``.

    Parameters
    ----------
    kt, kw, kh : int
        Sizes of a window along time, width and height.
    dt, dw, dh : int, optional
        Distances between windows; by default, their sizes.
    pad_t, pad_w, pad_h : int
        Padding on both sides, at most half of the window. It is never the maximum.

    Raises
    ------
    DnnTypeError, DnnValueError
        As for `SpatialMaxPooling`.
    """

    mode = "max"

    def __init__(
        self,
        kt: int,
        kw: int,
        kh: int,
        dt: int | None = None,
        dw: int | None = None,
        dh: int | None = None,
        pad_t: int = 0,
        pad_w: int = 0,
        pad_h: int = 0,
    ):
        super().__init__((kt, kh, kw), (dt, dh, dw), (pad_t, pad_h, pad_w))


class VolumetricAveragePooling(VolumetricMaxPooling):
    """Averages of windows of volumes, as ``cudnn.VolumetricAveragePooling``.

    See `VolumetricMaxPooling`. The zeros of the padding count.
    """

    mode = "average_inc_pad"


class TemporalMaxPooling(_Pooling):
    """Maxima over steps of sequences, as ``nn.TemporalMaxPooling``.

    Parameters
    ----------
    kw : int
        Number of steps in a window.
    dw : int, optional
        Distance between windows; by default, `kw`.

    Raises
    ------
    DnnTypeError, DnnValueError
        As for `SpatialMaxPooling`.

    Notes
    -----
    ``forward(x)`` takes sequences of shape (batch, steps, features), or one sequence without a
    batch.
    """

    mode = "max"

    def __init__(self, kw: int, dw: int | None = None):
        super().__init__((kw, 1), (dw, 1), (0, 0))

    def forward(self, x: Any) -> Any:
        return batched(self._name(), x, 3, lambda x: self._pooled(x.dimshuffle(0, "x", 1, 2))[:, 0])

    def describe(self) -> str:
        return f"({self.kernel[0]}, {self.stride[0]})"
