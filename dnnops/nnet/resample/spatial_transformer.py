"""Spatial transformers, which resample images at the points of a grid, such as an affine grid.

The Ops in this module define the computation and run in plain NumPy; rewrites replace them with Ops
that call a library. The coordinates x and y run from -1 at the center of the first pixel to 1 at
the center of the last pixel. Samples are interpolated bilinearly between four pixels, and pixels
outside the image are zero.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytensor.gradient
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad, disconnected_type
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from dnnops.compat import shape_inference
from dnnops.errors import DnnValueError
from dnnops.nnet.expressions import is_connected
from dnnops.nnet.operands import float_operands
from dnnops.nnet.resample.bilinear import Corner, along_grid, corners, grid_coordinates
from dnnops.nnet.validate import (
    MAX_PARAMETER,
    Shape,
    float64_scalar,
    float_tensor,
    int_vector,
    merge_shapes,
    require_same_dtype,
    show_shape,
    static_vector,
    vector_entries,
)

__all__ = [
    "SpatialTransformerGrid",
    "SpatialTransformerGridGrad",
    "SpatialTransformerSampler",
    "SpatialTransformerSamplerGrad",
    "affine_grid",
    "grid_sample",
    "spatial_transformer",
]

#: Maximum size of an axis. Indices past the last pixel must still fit in 32-bit integers.
MAX_SIZE = MAX_PARAMETER - 2


def _sum(terms: list[Any]) -> Any:
    """Sum derivatives; return a disconnected one if there are none."""
    return sum(terms[1:], start=terms[0]) if terms else disconnected_type()


# -- the grid ------------------------------------------------------------------------------


class SpatialTransformerGrid(Op):
    """Grid of an affine transformation: ``SpatialTransformerGrid()(theta, out_shape)``.

    `theta` has shape (batch, 2, 3), and `out_shape` is an int64 vector with the number of rows and
    columns. The result, of shape (batch, rows, columns, 2), is ``theta @ (x, y, 1)`` for evenly
    spaced x and y from -1 to 1. A single row or column lies at 0.
    """

    __props__ = ()
    # The size of the output depends on the value of out_shape.
    _output_type_depends_on_input_value = True

    def make_node(self, theta: Any, out_shape: Any) -> Apply:  # type: ignore[override]
        name = type(self).__name__
        theta = float_tensor(name, "theta", theta, 3)
        out_shape = int_vector(name, "out_shape", out_shape, 2)
        shape = self._check(theta.type.shape, static_vector(out_shape, 2))
        return Apply(self, [theta, out_shape], [pt.tensor(dtype=theta.type.dtype, shape=shape)])

    def _check(self, theta: Shape, out_shape: Shape) -> Shape:
        """Check the shapes as far as they are known; return the shape of the result."""
        name = type(self).__name__
        if any(n not in (None, m) for n, m in zip(theta[1:], (2, 3), strict=True)):
            raise DnnValueError(
                f"{name}: theta must have shape (batch, 2, 3), got {show_shape(theta)}"
            )
        if any(n is not None and not 1 <= n <= MAX_SIZE for n in out_shape):
            raise DnnValueError(
                f"{name}: out_shape: the output's sizes must be between 1 and {MAX_SIZE}, got "
                f"{show_shape(out_shape)}"
            )
        return (theta[0], *out_shape, 2)

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [(shapes[0][0], *vector_entries(node.inputs[1], 2), 2)]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        return [SpatialTransformerGridGrad()(cotangents[0]), disconnected_type()]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        return [self(tangents[0], inputs[1]) if is_connected(tangents[0]) else disconnected_type()]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        theta, out_shape = inputs
        rows, columns = out_shape.tolist()
        self._check(theta.shape, (rows, columns))
        x, y = np.meshgrid(grid_coordinates(columns), grid_coordinates(rows))
        wide = theta.astype("float64")[:, None, None]
        grid = wide[..., 0] * x[..., None] + (wide[..., 1] * y[..., None] + wide[..., 2])
        output_storage[0][0] = np.asarray(grid, dtype=theta.dtype)


class SpatialTransformerGridGrad(Op):
    """Gradient of `SpatialTransformerGrid`: ``SpatialTransformerGridGrad()(dgrid)``.

    `dgrid`, of shape (batch, rows, columns, 2), is the gradient with respect to the grid. The
    result, of shape (batch, 2, 3), is the gradient with respect to `theta`.
    """

    __props__ = ()

    def make_node(self, dgrid: Any) -> Apply:  # type: ignore[override]
        dgrid = float_tensor(type(self).__name__, "dgrid", dgrid, 4)
        self._check(dgrid.type.shape)
        shape = (dgrid.type.shape[0], 2, 3)
        return Apply(self, [dgrid], [pt.tensor(dtype=dgrid.type.dtype, shape=shape)])

    def _check(self, shape: Shape) -> None:
        if shape[3] not in (None, 2):
            raise DnnValueError(
                f"{type(self).__name__}: dgrid must have shape (batch, rows, columns, 2), got "
                f"{show_shape(shape)}"
            )

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [(shapes[0][0], 2, 3)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        return [affine_grid(cotangents[0], inputs[0].shape[1:3])]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        return [self(tangents[0]) if is_connected(tangents[0]) else disconnected_type()]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        (dgrid,) = inputs
        self._check(dgrid.shape)
        wide = dgrid.astype("float64")
        x, y = np.meshgrid(grid_coordinates(dgrid.shape[2]), grid_coordinates(dgrid.shape[1]))
        by = [(wide * factor[..., None]).sum(axis=(1, 2)) for factor in (x, y, np.ones_like(x))]
        output_storage[0][0] = np.stack(by, axis=-1).astype(dgrid.dtype)


# -- the sampler ---------------------------------------------------------------------------


class SamplerBase(Op):
    """Base class of the sampler and its gradient."""

    __props__: tuple[str, ...] = ()
    operands: tuple[str, ...]

    def _operands(self, inputs: Any) -> tuple[list[TensorVariable], list[Shape]]:
        """Return the operands, and the static shapes of the image, the grid and the samples."""
        name = type(self).__name__
        operands = {
            operand: float_tensor(name, operand, x, 4)
            for operand, x in zip(self.operands, inputs, strict=True)
        }
        require_same_dtype(name, **operands)
        variables = list(operands.values())
        return variables, self._check([x.type.shape for x in variables])

    def _check(self, shapes: list[Shape]) -> list[Shape]:
        name = type(self).__name__
        img, grid, *gout = shapes
        (batch,) = merge_shapes(name, **{"batches of img": img[:1], "grid": grid[:1]})
        if grid[3] not in (None, 2):
            raise DnnValueError(
                f"{name}: grid must have shape (batch, rows, columns, 2), got {show_shape(grid)}"
            )
        if any(n is not None and not 1 <= n <= MAX_SIZE for n in img[2:]):
            raise DnnValueError(
                f"{name}: img must have between 1 and {MAX_SIZE} rows and columns, got "
                f"{show_shape(img)}"
            )
        samples: Shape = (batch, img[1], *grid[1:3])
        if gout:
            samples = merge_shapes(name, samples=samples, gout=gout[0])
        batch, channels, *points = samples
        return [(batch, channels, *img[2:]), (batch, *points, 2), samples]

    @staticmethod
    def _corners(img: np.ndarray, grid: np.ndarray) -> list[Corner]:
        with np.errstate(invalid="ignore", over="ignore"):  # coordinates may be infinite
            return list(corners(np, grid.astype("float64"), *img.shape[2:]))


class SpatialTransformerSampler(SamplerBase):
    """Bilinear sampling: ``SpatialTransformerSampler()(img, grid)``.

    `img` has shape (batch, channels, rows, columns), and `grid` has shape
    (batch, output rows, output columns, 2) and the same dtype. The result has shape
    (batch, channels, output rows, output columns). A pixel of weight 0 does not contribute to a
    sample, even if it is infinite or NaN. A NaN coordinate gives a NaN sample.
    """

    operands = ("img", "grid")

    def make_node(self, img: Any, grid: Any) -> Apply:  # type: ignore[override]
        operands, (_, _, shape) = self._operands((img, grid))
        return Apply(self, operands, [pt.tensor(dtype=operands[0].type.dtype, shape=shape)])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        img, grid = shapes
        return [(img[0], img[1], grid[1], grid[2])]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        return list(SpatialTransformerSamplerGrad().make_node(*inputs, *cotangents).outputs)

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        img, grid = inputs
        by_img, by_grid = tangents
        terms = []
        if is_connected(by_img):
            terms.append(SpatialTransformerSampler()(by_img, grid))
        if is_connected(by_grid):
            terms.append(along_grid(img, grid, by_grid))
        return [_sum(terms)]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        img, grid = inputs
        _, _, shape = self._check([img.shape, grid.shape])
        out = np.zeros(shape)
        for corner in self._corners(img, grid):
            pixels = corner.pixels(img, corner.inside & (corner.weight != 0))
            out += corner.weight[:, None] * pixels
        output_storage[0][0] = out.astype(img.dtype)


class SpatialTransformerSamplerGrad(SamplerBase):
    """Gradient of the sampler: ``SpatialTransformerSamplerGrad()(img, grid, gout)``.

    `gout` is the gradient with respect to the samples; the results are the gradients with respect
    to `img` and `grid`. If a point is exactly at the center of a pixel, its derivative is the
    one-sided derivative to the right and downwards. If a coordinate is NaN, the gradient of its
    point is NaN, and the point adds nothing to the gradient of the image.
    """

    operands = ("img", "grid", "gout")

    def make_node(self, img: Any, grid: Any, gout: Any) -> Apply:  # type: ignore[override]
        operands, shapes = self._operands((img, grid, gout))
        dtype = operands[0].type.dtype
        return Apply(self, operands, [pt.tensor(dtype=dtype, shape=s) for s in shapes[:2]])

    @shape_inference
    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[0], shapes[1]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[False, True], [True, True], [True, True]]

    # Both results are gradients of the scalar sum(gout * samples), which is linear in img and in
    # gout. Pullback and pushforward are therefore built from the same parts.

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        img, grid, gout = inputs
        for_img, for_grid = cotangents
        terms: list[list[Any]] = [[], [], []]
        if is_connected(for_img):
            terms[1].append(_gradients(for_img, grid, gout)[1])
            terms[2].append(SpatialTransformerSampler()(for_img, grid))
        if is_connected(for_grid):
            by_img, by_grid = _gradients_along_grid(img, grid, gout, for_grid)
            terms[0].append(by_img)
            terms[1].append(by_grid)
            terms[2].append(along_grid(img, grid, for_grid))
        return [_sum(t) for t in terms]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        img, grid, gout = inputs
        by_img, by_grid, by_gout = tangents
        terms: list[list[Any]] = [[], []]
        if is_connected(by_img):
            terms[1].append(_gradients(by_img, grid, gout)[1])
        if is_connected(by_grid):
            for term, part in zip(
                terms, _gradients_along_grid(img, grid, gout, by_grid), strict=True
            ):
                term.append(part)
        if is_connected(by_gout):
            for term, part in zip(terms, _gradients(img, grid, by_gout), strict=True):
                term.append(part)
        return [_sum(t) for t in terms]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        img, grid, gout = inputs
        self._check([x.shape for x in inputs])
        gradient = gout.astype("float64")
        by_img = np.zeros(img.shape)
        slopes = np.zeros((2, *gout.shape))  # derivatives of the samples along x and y
        lost = np.zeros(grid.shape[:3], dtype=bool)
        for corner in self._corners(img, grid):
            met = (corner.inside & (corner.weight != 0))[:, None]
            share = np.where(met, corner.weight[:, None], 0) * np.where(met, gradient, 0)
            # The corner's indices select elements with the channels last.
            np.add.at(by_img, corner.index(img.shape), share.transpose(0, 2, 3, 1))
            pixels = corner.pixels(img, corner.inside)
            slopes += np.stack([corner.by_x, corner.by_y])[:, :, None] * pixels
            lost |= np.isnan(corner.weight)
        by_grid = np.moveaxis((gradient * slopes).sum(axis=2), 0, -1)
        by_grid[lost] = np.nan
        output_storage[0][0] = by_img.astype(img.dtype)
        output_storage[1][0] = by_grid.astype(grid.dtype)


def _gradients(img: Any, grid: Any, gout: Any) -> list[Any]:
    return list(SpatialTransformerSamplerGrad().make_node(img, grid, gout).outputs)


def _gradients_along_grid(img: Any, grid: Any, gout: Any, direction: Any) -> list[Any]:
    """Differentiate the gradients of the image and the grid along a direction of the grid."""
    # Use new variables, because one input may depend on another.
    given = (img, grid, gout, direction)
    own = [x.type() for x in given]
    total = (own[2] * along_grid(own[0], own[1], own[3])).sum()
    found: Any = pytensor.gradient.grad(total, own[:2])
    replaced: Any = graph_replace(found, dict(zip(own, given, strict=True)), strict=False)
    return [pt.cast(d, x.type.dtype) for d, x in zip(replaced, (img, grid), strict=True)]


# -- functions -----------------------------------------------------------------------------


def affine_grid(theta: Any, out_shape: Any) -> TensorVariable:
    """Make the sampling grid of an affine transformation.

    Parameters
    ----------
    theta : tensor_like, (batch, 2, 3)
        Transformations, of dtype float16, float32 or float64. The point (x, y) of the output is
        sampled at ``theta @ (x, y, 1)`` in the image.
    out_shape : int vector, or sequence of 2 ints or symbolic int scalars
        Number of rows and columns of the output.

    Returns
    -------
    TensorVariable, (batch, rows, columns, 2)
        The coordinates x and y: -1 and 1 are the centers of the first and the last pixel. A single
        row or column of the output lies at 0.

    Raises
    ------
    DnnTypeError
        If a dtype or rank is invalid.
    DnnValueError
        If the shape of `theta` is invalid or a size is less than 1. Shapes and sizes that are not
        known statically are checked when the compiled function is called.
    """
    return SpatialTransformerGrid()(theta, out_shape)  # type: ignore[return-value]


def grid_sample(img: Any, grid: Any) -> TensorVariable:
    """Sample images at the points of a grid with bilinear interpolation.

    The result can be differentiated with respect to both operands, to any order.

    Parameters
    ----------
    img : tensor_like, (batch, channels, rows, columns)
        Images, of dtype float16, float32 or float64.
    grid : tensor_like, (batch, output rows, output columns, 2)
        Coordinates x and y of the points, with the dtype of `img`: -1 and 1 are the centers of the
        first and the last pixel. Pixels outside the image are zero.

    Returns
    -------
    TensorVariable, (batch, channels, output rows, output columns)

    Raises
    ------
    DnnTypeError
        If a dtype or rank is invalid.
    DnnValueError
        If the shapes don't match or an image has no pixels. Shapes that are not known statically
        are checked when the compiled function is called.

    Notes
    -----
    This function computes the same as PyTorch's ``grid_sample`` with ``align_corners=True`` and
    ``padding_mode='zeros'``.
    """
    return SpatialTransformerSampler()(img, grid)  # type: ignore[return-value]


def _scaled(size: Any, scale: Any) -> Any:
    """Scale a size, an int or a symbolic int, by a float64 scalar."""
    if isinstance(scale, Constant):
        factor = float(scale.data)
        if isinstance(size, int):
            return ceil(size * factor)
        scaled = size * int(factor) if factor.is_integer() else pt.ceil(size * scale)
    else:
        scaled = pt.ceil(size * scale)
    # PyTensor gives sizes float tangents, which it can't join into a vector of ints.
    return disconnected_grad(pt.cast(scaled, "int64"))


def scaled_sizes(where: str, img: Any, scale_width: Any, scale_height: Any) -> list[Any]:
    """Return the number of rows and columns of the output, as ints if they are known."""
    sizes = []
    for axis, name, value in ((2, "scale_height", scale_height), (3, "scale_width", scale_width)):
        # PyTensor would convert a Python number to float32 if that is its floatX.
        number = np.float64(value) if isinstance(value, float) else value
        scale = float64_scalar(where, name, number)
        if isinstance(scale, Constant) and float(scale.data) <= 0:
            raise DnnValueError(f"{where}: {name} must be more than 0, got {float(scale.data):g}")
        known = img.type.shape[axis]
        size = _scaled(img.shape[axis] if known is None else known, scale)
        if isinstance(size, int) and size > MAX_SIZE:
            raise DnnValueError(
                f"{where}: {name} {float(scale.data):g} gives {size} for a size of {known}; at most"  # type: ignore[attr-defined]
                f" {MAX_SIZE} is supported"
            )
        sizes.append(size)
    return sizes


def spatial_transformer(
    img: Any, theta: Any, scale_width: Any = 1, scale_height: Any = 1
) -> TensorVariable:
    """Apply affine transformations to images, as a spatial transformer layer does.

    Parameters
    ----------
    img : tensor_like, (batch, channels, rows, columns)
        Images, of dtype float16, float32 or float64.
    theta : tensor_like, (batch, 2, 3)
        Transformations, with the dtype of `img`. The point (x, y) of the output is sampled at
        ``theta @ (x, y, 1)`` in the image. Coordinates run from -1 at the center of the first
        pixel to 1 at the center of the last pixel.
    scale_width, scale_height : number or scalar variable
        Ratios of the output size to the input size, greater than 0.

    Returns
    -------
    TensorVariable, (batch, channels, ceil(rows * scale_height), ceil(columns * scale_width))
        The transformed images, interpolated bilinearly; pixels outside the image are zero. As in
        Theano, the sizes are float64 products rounded up: 100 rows times 1.1 gives 111 rows,
        because the product is slightly more than 110 in float64.

    Raises
    ------
    DnnTypeError
        If a dtype or rank is invalid.
    DnnValueError
        If the shapes don't match, or if a scale is not finite or not greater than 0. Shapes and
        values that are not known statically are checked when the compiled function is called.

    See Also
    --------
    affine_grid, grid_sample : The two steps of this function.

    Notes
    -----
    Based on Jaderberg, Simonyan, Zisserman and Kavukcuoglu, Spatial Transformer Networks (2015).
    """
    where = "spatial_transformer"
    img, theta = float_operands(where, {"img": img, "theta": theta}, {"img": 4, "theta": 3})
    require_same_dtype(where, img=img, theta=theta)
    sizes = scaled_sizes(where, img, scale_width, scale_height)
    return grid_sample(img, affine_grid(theta, sizes))
