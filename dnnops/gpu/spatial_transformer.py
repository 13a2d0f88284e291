"""Spatial transformers on a GPU, with cuDNN and with dnnops kernels.

`dnnops.dnn` uses cuDNN; rewrites replace the abstract Ops with the dnnops kernels. The kernels
agree with the abstract Ops on NaN, on infinite pixels, and on outputs with a single row or column,
which is sampled at 0. cuDNN samples it at -1, like the first of several rows or columns.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor import as_tensor_variable

from dnnops.arguments import switch_or_flag
from dnnops.dtypes import FLOAT_DTYPES
from dnnops.errors import DnnNotSupportedError, DnnTypeError
from dnnops.gpu.base import as_gradient, device_operands, gradient_like
from dnnops.gpu.derivatives import GpuAbstractOp
from dnnops.gpu.library import GPU_KERNELS
from dnnops.gpuarray.transfer import cast
from dnnops.gpuarray.type import GpuArrayType
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.resample.spatial_transformer import (
    SamplerBase,
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
    SpatialTransformerSampler,
    SpatialTransformerSamplerGrad,
)
from dnnops.nnet.validate import int_vector, named_operands, static_vector
from dnnops.runtime.implementations import implements

__all__ = [
    "GpuDnnTransformerGradI",
    "GpuDnnTransformerGradT",
    "GpuDnnTransformerGrid",
    "GpuDnnTransformerSampler",
    "GpuTransformerGradI",
    "GpuTransformerGradT",
    "GpuTransformerGrid",
    "GpuTransformerSampler",
]


class _TransformerOp(GpuAbstractOp):
    """Base class of the Ops in this module, which take their derivatives from an abstract Op."""

    function = "dnnops_cudnn_spatial_transformer"
    contiguous_only = True
    #: ``Kind`` in ``spatial_transformer.cpp``.
    kind: ClassVar[int]
    #: Whether the Op uses dnnops kernels instead of cuDNN.
    kernels: ClassVar[bool] = False
    deterministic = False

    def parameters(self) -> list[int]:
        return [self.kind, int(self.kernels), int(self.deterministic)]

    def _output(self, like: Any, shape: Any) -> Any:
        return GpuArrayType(like.type.dtype, tuple(shape), like.type.device)()


# -- the grid ------------------------------------------------------------------------------


class GpuDnnTransformerGrid(_TransformerOp, SpatialTransformerGrid):
    """`SpatialTransformerGrid` on cuDNN, called as ``GpuDnnTransformerGrid()(theta, out_dims)``.

    `theta` has the shape (batch, 2, 3). `out_dims` gives the rows and columns of the output or, as
    in Theano, its batch, channels, rows and columns; the first two are ignored. A single row or
    column of the output lies at -1, not in the middle.
    """

    kind = 0
    abstract_class = SpatialTransformerGrid

    def make_node(self, theta: Any, out_dims: Any) -> Apply:  # type: ignore[override]
        name = type(self).__name__
        (theta,) = device_operands(name, 3, theta=theta)
        if not isinstance(out_dims, tuple | list):
            out_dims = as_tensor_variable(out_dims)
            if isinstance(out_dims, Constant):
                out_dims = out_dims.data
        length = out_dims.type.shape if isinstance(out_dims, Variable) else np.shape(out_dims)
        out_dims = out_dims[2:] if length == (4,) else out_dims
        out_shape = int_vector(name, "out_dims", out_dims, 2)
        shape = self._check(theta.type.shape, static_vector(out_shape, 2))
        return Apply(self, [theta, out_shape], [self._output(theta, shape)])

    def host_expressions(self, theta: Any, out_shape: Any) -> list[Any]:
        (grid,) = super().host_expressions(theta, out_shape)
        if self.kernels or not {1, None} & {*static_vector(out_shape, 2)}:
            return [grid]
        # cuDNN's single row or column lies at -1, that of the abstract Op at 0.
        is_single = pt.eq(out_shape[::-1], 1)
        moved = pt.switch(is_single, theta[:, :, :2], pt.zeros_like(theta[:, :, :2]))
        return [grid - moved.sum(axis=2)[:, None, None, :]]

    # Grid and gradient are linear and each other's transpose, so derivatives of all orders use the
    # same points.

    def _gradient(self) -> Any:
        return GpuDnnTransformerGradT()

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        gradient = self._gradient()(gradient_like(cotangents[0], inputs[0]))
        return [as_gradient(gradient), disconnected_type()]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        tangent, theta = tangents[0], inputs[0]
        return [
            self(gradient_like(tangent, theta), inputs[1]) if is_connected(tangent) else tangent
        ]


class GpuDnnTransformerGradT(_TransformerOp, SpatialTransformerGridGrad):
    """Gradient of `GpuDnnTransformerGrid`, called as ``GpuDnnTransformerGradT()(dgrid)``.

    `dgrid` is the gradient with respect to the grid; the result is the gradient with respect to
    `theta`.
    """

    kind = 1
    abstract_class = SpatialTransformerGridGrad

    def make_node(self, dgrid: Any) -> Apply:  # type: ignore[override]
        (dgrid,) = device_operands(type(self).__name__, 4, dgrid=dgrid)
        self._check(dgrid.type.shape)
        return Apply(self, [dgrid], [self._output(dgrid, (dgrid.type.shape[0], 2, 3))])

    def host_expressions(self, dgrid: Any) -> list[Any]:
        (dtheta,) = super().host_expressions(dgrid)
        if self.kernels or not {1, None} & {*dgrid.type.shape[1:3]}:
            return [dtheta]
        total = dgrid.sum(axis=(1, 2))[:, :, None]
        is_single = pt.stack([pt.eq(dgrid.shape[2], 1), pt.eq(dgrid.shape[1], 1), np.array(False)])
        return [dtheta - pt.switch(is_single, total, pt.zeros_like(total))]

    def _grid(self) -> Any:
        return GpuDnnTransformerGrid()

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        (dgrid,) = inputs
        theta = gradient_like(cotangents[0], dgrid)
        return [as_gradient(self._grid()(theta, dgrid.shape[1:3]))]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        (tangent,) = tangents
        return [self(gradient_like(tangent, inputs[0])) if is_connected(tangent) else tangent]


# -- the sampler ---------------------------------------------------------------------------


class _TransformerSampler(_TransformerOp, SamplerBase):
    def _device_operands(self, inputs: Any) -> tuple[list[Any], list[Any]]:
        name = type(self).__name__
        arrays = device_operands(name, 4, **named_operands(name, self.operands, inputs))
        return arrays, self._check([x.type.shape for x in arrays])


class GpuDnnTransformerSampler(_TransformerSampler, SpatialTransformerSampler):
    """`SpatialTransformerSampler` on cuDNN, called as ``GpuDnnTransformerSampler()(img, grid)``."""

    kind = 2
    abstract_class = SpatialTransformerSampler

    def make_node(self, img: Any, grid: Any) -> Apply:  # type: ignore[override]
        arrays, (_, _, shape) = self._device_operands((img, grid))
        return Apply(self, arrays, [self._output(arrays[0], shape)])

    def _gradient(self) -> Any:
        return GpuDnnTransformerGradI()

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        gradient = self._gradient()
        operands = [*inputs, gradient_like(cotangents[0], inputs[0])]
        if inputs[0].type.dtype not in gradient.dtypes:
            operands = [cast(x, "float32") for x in operands]
        results = gradient.make_node(*operands).outputs
        return [as_gradient(gradient_like(g, x)) for g, x in zip(results, inputs, strict=True)]


class GpuDnnTransformerGradI(_TransformerSampler, SpatialTransformerSamplerGrad):
    """Gradients of `GpuDnnTransformerSampler` with respect to `img` and `grid`.

    Called as ``GpuDnnTransformerGradI()(img, grid, dy)``, where `dy` is the gradient with respect
    to the samples. cuDNN supports at most 1024 channels, and the order of its sums varies between
    runs.

    Raises
    ------
    DnnTypeError
        If the operands are neither float32 nor float64. cuDNN rounds each addition to float16, in
        an order that varies; `GpuDnnTransformerSampler` takes its float16 gradients in float32.
    DnnNotSupportedError
        If there are more than 1024 channels.
    """

    kind = 3
    abstract_class = SpatialTransformerSamplerGrad
    #: Maximum number of channels of `img`; None if there is no limit.
    most_channels: ClassVar[int | None] = 1024
    #: Dtypes of the operands.
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")

    def make_node(self, img: Any, grid: Any, dy: Any) -> Apply:  # type: ignore[override]
        arrays, shapes = self._device_operands((img, grid, dy))
        if (dtype := arrays[0].type.dtype) not in self.dtypes:
            raise DnnTypeError(
                f"{type(self).__name__}: expected {' or '.join(self.dtypes)}, got {dtype}; "
                "gradients of dnn_spatialtf convert other dtypes"
            )
        channels = shapes[0][1]
        if None not in (self.most_channels, channels) and channels > self.most_channels:
            raise DnnNotSupportedError(
                f"{type(self).__name__}: cuDNN's gradient supports at most {self.most_channels} "
                f"channels, got {channels}; dnnops.nnet.spatial_transformer supports any number"
            )
        return Apply(self, arrays, [self._output(arrays[0], s) for s in shapes[:2]])


# -- dnnops kernels ------------------------------------------------------------------------


# These support cases that cuDNN does not: NaN, infinity, a single row or column, any number of
# channels, and other dtypes.


@implements(SpatialTransformerGrid, on=GPU_KERNELS, operands=(0,))
class GpuTransformerGrid(GpuDnnTransformerGrid):
    """`SpatialTransformerGrid` computed by a dnnops kernel."""

    kernels = True

    def _gradient(self) -> Any:
        return GpuTransformerGradT()


@implements(SpatialTransformerGridGrad, on=GPU_KERNELS)
class GpuTransformerGradT(GpuDnnTransformerGradT):
    """`SpatialTransformerGridGrad` computed by a dnnops kernel; every run gives the same result."""

    kernels = True

    def _grid(self) -> Any:
        return GpuTransformerGrid()


@implements(SpatialTransformerSampler, on=GPU_KERNELS)
class GpuTransformerSampler(GpuDnnTransformerSampler):
    """`SpatialTransformerSampler` computed by a dnnops kernel."""

    kernels = True

    def _gradient(self) -> Any:
        return GpuTransformerGradI()


@implements(SpatialTransformerSamplerGrad, on=GPU_KERNELS)
class GpuTransformerGradI(GpuDnnTransformerGradI):
    """`SpatialTransformerSamplerGrad` computed by dnnops kernels.

    Parameters
    ----------
    deterministic : bool, optional
        Whether the results must be identical in every run. This is slow for few channels, because
        one thread then sums up each result. Default: the flag ``dnn.deterministic``.
    """

    __props__ = ("deterministic",)
    kernels = True
    most_channels = None
    dtypes = FLOAT_DTYPES

    def __init__(self, deterministic: bool | None = None):
        self.deterministic = switch_or_flag(
            type(self).__name__, "deterministic", deterministic, "dnn.deterministic"
        )
