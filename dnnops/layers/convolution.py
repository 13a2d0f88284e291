"""Convolutions, with the arguments of cudnn.torch's modules."""

from __future__ import annotations

from math import prod, sqrt
from typing import Any, ClassVar

from dnnops import nnet
from dnnops.arguments import switch
from dnnops.errors import DnnValueError
from dnnops.layers.images import batched, by_width, size
from dnnops.layers.initializers import Initializer, he_uniform, uniform
from dnnops.layers.layer import Layer

__all__ = [
    "SpatialConvolution",
    "SpatialFullConvolution",
    "TemporalConvolution",
    "VolumetricConvolution",
    "VolumetricFullConvolution",
]


class _Convolution(Layer):
    """A convolution over any number of axes.

    Lengths are tuples in the order of the axes: time, rows and columns.
    """

    transposed: ClassVar[bool] = False
    convertible = True
    takes_own_dtype = True
    weight: Any
    bias: Any

    def __init__(
        self,
        planes: tuple[Any, Any],
        kernel: tuple[Any, ...],
        stride: tuple[Any, ...],
        pad: tuple[Any, ...],
        dilation: tuple[Any, ...],
        groups: Any,
        bias: Any,
        initializer: Initializer | None,
        dtype: str | None,
        rng: Any,
    ):
        super().__init__(dtype, rng)
        where = self._name()

        def sizes(name: str, values: tuple[Any, ...], minimum: int = 1) -> tuple[int, ...]:
            return tuple(size(where, name, value, minimum) for value in values)

        self.n_input_plane, self.n_output_plane = sizes("number of planes", planes)
        self.kernel, self.stride = sizes("kernel size", kernel), sizes("stride", stride)
        self.pad, self.dilation = sizes("padding", pad, 0), sizes("dilation", dilation)
        self.groups = size(where, "groups", groups)
        if self.n_input_plane % self.groups or self.n_output_plane % self.groups:
            raise DnnValueError(
                f"{where}: groups={self.groups} must divide the numbers of planes, "
                f"{self.n_input_plane} and {self.n_output_plane}"
            )
        first, second = self.n_output_plane, self.n_input_plane
        if self.transposed:
            first, second = second, first
        shape = (first, second // self.groups, *self.kernel)
        # The defaults of Torch and PyTorch.
        self.parameter("weight", shape, initializer or he_uniform(sqrt(5)))
        self.bias = None
        if switch(where, "bias", bias):
            bound = 1 / sqrt(prod(shape[1:]))
            self.parameter("bias", (self.n_output_plane,), uniform(bound))

    def _biased(self, x: Any) -> Any:
        if self.bias is None:
            return x
        return x + self.bias.dimshuffle("x", 0, *["x"] * len(self.kernel))

    def _convolved(self, x: Any) -> Any:
        convolve = (nnet.conv1d, nnet.conv2d, nnet.conv3d)[len(self.kernel) - 1]
        out = convolve(
            x,
            self.weight,
            border_mode=self.pad,
            subsample=self.stride,
            filter_flip=False,
            filter_dilation=self.dilation,
            num_groups=self.groups,
        )
        return self._biased(out)

    def forward(self, x: Any) -> Any:
        return batched(self._name(), x, 2 + len(self.kernel), self._convolved)

    def describe(self) -> str:
        kernel = by_width(self.kernel).replace(",", "x")
        parts = [f"({self.n_input_plane} -> {self.n_output_plane}, {kernel}"]
        plain = set(self.stride) == {1}
        if not plain or any(self.pad):
            parts.append(by_width(self.stride))
        if any(self.pad):
            parts.append(by_width(self.pad))
        return ", ".join(parts) + (")" if self.bias is not None else ") without bias")


class SpatialConvolution(_Convolution):
    """Convolution of images, as ``cudnn.SpatialConvolution``.

    Parameters
    ----------
    n_input_plane, n_output_plane : int
        Numbers of channels.
    kw, kh : int
        Width and height of the filters.
    dw, dh : int
        Strides along the width and the height.
    pad_w, pad_h : int
        Zeros on both sides of the width and the height.
    groups : int
        Number of groups of channels that are convolved separately.
    dilation_w, dilation_h : int
        Distances between neighboring elements of the filters in the image.
    bias : bool
        Whether to add a bias.
    initializer : callable, optional
        Initial value of the filters, by default Torch's: see `he_uniform`.
    dtype, rng
        See `Layer`.

    Raises
    ------
    DnnTypeError
        If an argument has the wrong type.
    DnnValueError
        If a size is out of bounds, or if `groups` does not divide the numbers of channels.

    Notes
    -----
    ``forward(x)`` takes images of shape (batch, channels, rows, columns) or one image without a
    batch. As in all deep-learning libraries but Theano, filters are not flipped.

    Attributes
    ----------
    weight : SharedVariable, (n_output_plane, n_input_plane // groups, kh, kw)
    bias : SharedVariable of shape (n_output_plane,), or None
    """

    def __init__(
        self,
        n_input_plane: int,
        n_output_plane: int,
        kw: int,
        kh: int,
        dw: int = 1,
        dh: int = 1,
        pad_w: int = 0,
        pad_h: int = 0,
        groups: int = 1,
        *,
        dilation_w: int = 1,
        dilation_h: int = 1,
        bias: bool = True,
        initializer: Initializer | None = None,
        dtype: str | None = None,
        rng: Any = None,
    ):
        super().__init__(
            (n_input_plane, n_output_plane),
            (kh, kw),
            (dh, dw),
            (pad_h, pad_w),
            (dilation_h, dilation_w),
            groups,
            bias,
            initializer,
            dtype,
            rng,
        )


class VolumetricConvolution(_Convolution):
    """Convolution of volumes, as ``cudnn.VolumetricConvolution``; see `SpatialConvolution`.

    Parameters
    ----------
    n_input_plane, n_output_plane : int
        Numbers of channels.
    kt, kw, kh : int
        Sizes of the filters along time, width and height.
    dt, dw, dh : int
        Strides.
    pad_t, pad_w, pad_h : int
        Zeros on both sides.
    groups, bias, initializer, dtype, rng
        See `SpatialConvolution`.
    dilation_t, dilation_w, dilation_h : int
        Distances between neighboring elements of the filters in the volume.

    Raises
    ------
    DnnTypeError, DnnValueError
        As for `SpatialConvolution`.
    """

    def __init__(
        self,
        n_input_plane: int,
        n_output_plane: int,
        kt: int,
        kw: int,
        kh: int,
        dt: int = 1,
        dw: int = 1,
        dh: int = 1,
        pad_t: int = 0,
        pad_w: int = 0,
        pad_h: int = 0,
        groups: int = 1,
        *,
        dilation_t: int = 1,
        dilation_w: int = 1,
        dilation_h: int = 1,
        bias: bool = True,
        initializer: Initializer | None = None,
        dtype: str | None = None,
        rng: Any = None,
    ):
        super().__init__(
            (n_input_plane, n_output_plane),
            (kt, kh, kw),
            (dt, dh, dw),
            (pad_t, pad_h, pad_w),
            (dilation_t, dilation_h, dilation_w),
            groups,
            bias,
            initializer,
            dtype,
            rng,
        )


class TemporalConvolution(_Convolution):
    """Convolution over time, as ``cudnn.TemporalConvolution``.

    Parameters
    ----------
    input_frame_size, output_frame_size : int
        Numbers of features.
    kw : int
        Number of steps that a filter spans.
    dw : int
        Stride.
    pad_w : int
        Steps of zeros on both sides.
    groups, bias, initializer, dtype, rng
        See `SpatialConvolution`.
    dilation_w : int
        Distance between neighboring elements of the filters in the sequence.

    Raises
    ------
    DnnTypeError, DnnValueError
        As for `SpatialConvolution`.

    Notes
    -----
    ``forward(x)`` takes sequences of shape (batch, steps, features), or one sequence without a
    batch, and returns the same kind.
    """

    def __init__(
        self,
        input_frame_size: int,
        output_frame_size: int,
        kw: int,
        dw: int = 1,
        pad_w: int = 0,
        groups: int = 1,
        *,
        dilation_w: int = 1,
        bias: bool = True,
        initializer: Initializer | None = None,
        dtype: str | None = None,
        rng: Any = None,
    ):
        super().__init__(
            (input_frame_size, output_frame_size),
            (kw,),
            (dw,),
            (pad_w,),
            (dilation_w,),
            groups,
            bias,
            initializer,
            dtype,
            rng,
        )

    def _convolved(self, x: Any) -> Any:
        return super()._convolved(x.dimshuffle(0, 2, 1)).dimshuffle(0, 2, 1)

    def describe(self) -> str:
        sizes = [self.n_input_plane, self.n_output_plane, *self.kernel, *self.stride, *self.pad]
        text = ", ".join(map(str, sizes if any(self.pad) else sizes[:-1]))
        return f"({text})" + ("" if self.bias is not None else " without bias")


class _FullConvolution(_Convolution):
    """A transposed convolution over any number of axes."""

    transposed = True

    def __init__(self, adj: tuple[Any, ...], *arguments: Any):
        super().__init__(*arguments)
        self.adj = tuple(size(self._name(), "adjustment", value, 0) for value in adj)
        for extra, stride, dilation in zip(self.adj, self.stride, self.dilation, strict=True):
            if extra >= max(stride, dilation):
                raise DnnValueError(
                    f"{self._name()}: an adjustment must be smaller than the stride or the "
                    f"dilation, got {self.adj} with strides {self.stride}"
                )

    def _convolved(self, x: Any) -> Any:
        ndim = len(self.kernel)
        lengths = [
            (x.shape[2 + axis] - 1) * self.stride[axis]
            + self.dilation[axis] * (self.kernel[axis] - 1)
            + 1
            + self.adj[axis]
            - 2 * self.pad[axis]
            for axis in range(ndim)
        ]
        convolve = nnet.conv2d_transpose if ndim == 2 else nnet.conv3d_transpose
        out = convolve(
            x,
            self.weight,
            (None, self.n_output_plane, *lengths),
            border_mode=self.pad,
            input_dilation=self.stride,
            filter_flip=False,
            filter_dilation=self.dilation,
            num_groups=self.groups,
        )
        return self._biased(out)


class SpatialFullConvolution(_FullConvolution):
    """Transposed convolution of images, as ``cudnn.SpatialFullConvolution``.

    Parameters
    ----------
    n_input_plane, n_output_plane, kw, kh, dw, dh, pad_w, pad_h : int
        See `SpatialConvolution`. The padding is cropped from the result.
    adj_w, adj_h : int
        Columns and rows that are added at the end, fewer than the stride.
    groups, bias, initializer, dtype, rng
        See `SpatialConvolution`.

    Raises
    ------
    DnnTypeError, DnnValueError
        As for `SpatialConvolution`, or if an adjustment is too large.

    Notes
    -----
    A side of ``n`` pixels becomes ``(n - 1) * d - 2 * pad + k + adj`` pixels long. `weight` has the
    shape (n_input_plane, n_output_plane // groups, kh, kw).
    """

    def __init__(
        self,
        n_input_plane: int,
        n_output_plane: int,
        kw: int,
        kh: int,
        dw: int = 1,
        dh: int = 1,
        pad_w: int = 0,
        pad_h: int = 0,
        adj_w: int = 0,
        adj_h: int = 0,
        groups: int = 1,
        *,
        bias: bool = True,
        initializer: Initializer | None = None,
        dtype: str | None = None,
        rng: Any = None,
    ):
        super().__init__(
            (adj_h, adj_w),
            (n_input_plane, n_output_plane),
            (kh, kw),
            (dh, dw),
            (pad_h, pad_w),
            (1, 1),
            groups,
            bias,
            initializer,
            dtype,
            rng,
        )


class VolumetricFullConvolution(_FullConvolution):
    """Transposed convolution of volumes, as ``cudnn.VolumetricFullConvolution``.

    Parameters
    ----------
    n_input_plane, n_output_plane, kt, kw, kh, dt, dw, dh, pad_t, pad_w, pad_h : int
        See `VolumetricConvolution`. The padding is cropped from the result.
    adj_t, adj_w, adj_h : int
        Elements that are added at the end, fewer than the stride.
    groups, bias, initializer, dtype, rng
        See `SpatialConvolution`.

    Raises
    ------
    DnnTypeError, DnnValueError
        As for `SpatialFullConvolution`.
    """

    def __init__(
        self,
        n_input_plane: int,
        n_output_plane: int,
        kt: int,
        kw: int,
        kh: int,
        dt: int = 1,
        dw: int = 1,
        dh: int = 1,
        pad_t: int = 0,
        pad_w: int = 0,
        pad_h: int = 0,
        adj_t: int = 0,
        adj_w: int = 0,
        adj_h: int = 0,
        groups: int = 1,
        *,
        bias: bool = True,
        initializer: Initializer | None = None,
        dtype: str | None = None,
        rng: Any = None,
    ):
        super().__init__(
            (adj_t, adj_h, adj_w),
            (n_input_plane, n_output_plane),
            (kt, kh, kw),
            (dt, dh, dw),
            (pad_t, pad_h, pad_w),
            (1, 1, 1),
            groups,
            bias,
            initializer,
            dtype,
            rng,
        )
