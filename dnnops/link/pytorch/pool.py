"""Convert pooling to ``torch.nn.functional``, and gradients to ATen's backward functions."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.nn import functional

from dnnops.errors import DnnValueError
from dnnops.link.formulas.pool import divisor, is_empty, padding_after
from dnnops.link.formulas.shapes import require_same_shape
from dnnops.link.pytorch import library
from dnnops.link.pytorch.register import converts
from dnnops.nnet import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from dnnops.nnet.pool.geometry import windows_shape
from dnnops.nnet.pool.op import PoolBase
from dnnops.nnet.validate import show_shape

Sizes = tuple[int, ...]


def _checked(op: PoolBase, images: list[Any], pooled: list[Any], sizes: Any) -> tuple[int, ...]:
    """Check shapes, and return the shape of the pooled image.

    The Op's own check isn't used, because it compares values, and PyTorch would specialize the
    compiled graph for them.
    """
    ws, stride, pad = sizes
    require_same_shape(op, *(x.shape for x in images))
    for w, step, before in zip(ws, stride, pad, strict=True):
        if w < 1 or step < 1 or before < 0 or before >= w or (before and not op.ignore_border):
            raise DnnValueError(
                f"{op}: ws and stride must be positive, pad at least 0 and smaller than ws, and 0"
                f" without ignore_border; got ws={ws}, stride={stride}, pad={pad}"
            )
    if 0 in images[0].shape[2:]:
        raise DnnValueError(f"{op}: the image {show_shape(tuple(images[0].shape))} is empty")
    shape = windows_shape(tuple(images[0].shape), ws, stride, pad, op.ignore_border)
    require_same_shape(op, shape, *(x.shape for x in pooled))
    return shape


def _padded(op: PoolBase, x: Any, sizes: tuple[Sizes, ...], fill: float) -> tuple[Any, Any, Any]:
    """Return the image padded to contain all windows, together with the window and the stride.

    A single spatial axis is extended to two.
    """
    window, stride, pad = sizes
    after = padding_after(op, x.shape, sizes)
    sides = [side for pair in zip(reversed(pad), reversed(after), strict=True) for side in pair]
    if any(sides):
        x = functional.pad(x, sides, value=fill)
    if op.ndim == 1:
        return x[:, :, None], (1, *window), (1, *stride)
    return x, window, stride


def _inside(op: PoolBase, x: Any, shape: Any, pad: Sizes) -> Any:
    """Remove the padding from a padded image."""
    x = x[:, :, 0] if op.ndim == 1 else x
    for axis, (begin, size) in enumerate(zip(pad, shape[2:], strict=True)):
        x = x.narrow(axis + 2, begin, size)
    return x


def _unsqueezed(op: PoolBase, x: Any) -> Any:
    return x[:, :, None] if op.ndim == 1 else x


def _squeezed(op: PoolBase, x: Any) -> Any:
    return x[:, :, 0] if op.ndim == 1 else x


@converts(Pool, sizes=3)
def pool(op: Pool, x: Any, *sizes: Sizes) -> tuple[Any]:
    """Compute the pooled image."""
    shape = _checked(op, [x], [], sizes)
    if is_empty(op, x.shape, sizes):
        return (x.new_zeros(shape),)
    is_3d = op.ndim == 3
    if op.computes == "max":
        image, window, stride = _padded(op, x, sizes, -torch.inf)
        function = functional.max_pool3d if is_3d else functional.max_pool2d
        return (_squeezed(op, function(image, window, stride)),)
    image, window, stride = _padded(op, x, sizes, 0.0)
    function = functional.avg_pool3d if is_3d else functional.avg_pool2d
    total = _squeezed(op, function(image, window, stride, divisor_override=1))
    return (total / divisor(library, op, x.shape, sizes),)


@converts(AveragePoolGrad, sizes=3)
def average_gradient(op: AveragePoolGrad, x: Any, gz: Any, *sizes: Sizes) -> tuple[Any]:
    """Compute the gradient of sum or average pooling."""
    _checked(op, [x], [gz], sizes)
    if is_empty(op, x.shape, sizes):
        return (torch.zeros_like(x),)
    image, window, stride = _padded(op, x, sizes, 0.0)
    share = _unsqueezed(op, gz / divisor(library, op, x.shape, sizes))
    aten: Any = torch.ops.aten
    function = aten.avg_pool3d_backward if op.ndim == 3 else aten.avg_pool2d_backward
    found = function(share, image, window, stride, [0] * len(window), False, True, 1)
    return (_inside(op, found, x.shape, sizes[2]),)


def _first_maximum(op: PoolBase, x: Any, sizes: tuple[Sizes, ...]) -> tuple[Any, ...]:
    """Return a padded image, its window and stride, and the index of each window's first maximum.

    NaN counts as the largest number: it is replaced by infinity, because PyTorch would select the
    last NaN of a window. The padding is less than any pixel.
    """
    comparable = torch.nan_to_num(x, nan=torch.inf)
    image, window, stride = _padded(op, comparable, sizes, -torch.inf)
    function = functional.max_pool3d if op.ndim == 3 else functional.max_pool2d
    _, where = function(image, window, stride, return_indices=True)
    return image, window, stride, where


@converts(MaxPoolGrad, sizes=3)
def max_gradient(op: MaxPoolGrad, x: Any, maxout: Any, gz: Any, *sizes: Sizes) -> tuple[Any]:
    """Compute the gradient of max pooling."""
    _checked(op, [x], [maxout, gz], sizes)
    if is_empty(op, x.shape, sizes):
        return (torch.zeros_like(x),)
    image, window, stride, where = _first_maximum(op, x, sizes)
    aten: Any = torch.ops.aten
    of_3d, of_2d = aten.max_pool3d_with_indices_backward, aten.max_pool2d_with_indices_backward
    none, one = [0] * len(window), [1] * len(window)
    found = (of_3d if op.ndim == 3 else of_2d)(
        _unsqueezed(op, gz), image, window, stride, none, one, False, where
    )
    return (_inside(op, found, x.shape, sizes[2]),)


@converts(MaxPoolGradGrad, sizes=3)
def max_tangent(op: MaxPoolGradGrad, x: Any, maxout: Any, ggx: Any, *sizes: Sizes) -> tuple[Any]:
    """Compute the tangent of max pooling, given the tangent of the image."""
    _checked(op, [x, ggx], [maxout], sizes)
    if is_empty(op, x.shape, sizes):
        return (torch.zeros_like(maxout),)
    _, _, _, where = _first_maximum(op, x, sizes)
    moving, _, _ = _padded(op, ggx, sizes, 0.0)
    flat = moving.reshape(*moving.shape[:2], prod(moving.shape[2:]))
    found = flat.gather(2, where.reshape(*where.shape[:2], prod(where.shape[2:])))
    return (_squeezed(op, found.reshape(where.shape)),)
