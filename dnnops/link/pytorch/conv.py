"""Convert convolutions to ``torch.nn.functional``, and gradients to ATen's backward function."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from dnnops.link.pytorch.register import converts
from dnnops.nnet import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.conv.base import ConvBase

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def _flipped(op: ConvBase, kern: Any) -> Any:
    return torch.flip(kern, tuple(range(2, kern.ndim))) if op.filter_flip else kern


def _padding(op: ConvBase, kernel: Any) -> tuple[list[int], list[int]]:
    """Return the padding that PyTorch adds to both sides of each axis, and the remaining padding.

    The remaining padding is listed for each side, last axis first.
    """
    pads = op.padding(tuple(kernel))
    missing = [n - min(pad) for pad in reversed(pads) for n in pad]
    return [min(pad) for pad in pads], missing


@converts(Conv)
def conv(op: Conv, img: Any, kern: Any) -> tuple[Any]:
    """Compute a convolution."""
    shape = op.check_shapes(tuple(img.shape), tuple(kern.shape))
    if 0 in (*img.shape, *kern.shape):
        return (img.new_zeros(shape),)
    padding, missing = _padding(op, kern.shape[2:])
    if any(missing):
        img = functional.pad(img, missing)
    convolve = _CONVOLUTIONS[op.ndim]
    stride, dilation = op.subsample, op.filter_dilation
    return (convolve(img, _flipped(op, kern), None, stride, padding, dilation, op.num_groups),)


def _gradient(
    op: ConvBase, topgrad: Any, img: Any, kern: Any, padding: list[int], by_kern: bool
) -> Any:
    return torch.ops.aten.convolution_backward(
        topgrad,
        img,
        kern,
        None,
        op.subsample,
        padding,
        op.filter_dilation,
        False,
        [0] * op.ndim,
        op.num_groups,
        [not by_kern, by_kern, False],
    )[int(by_kern)]


@converts(ConvGradInputs, sizes=1)
def conv_grad_inputs(
    op: ConvGradInputs, kern: Any, topgrad: Any, spatial: tuple[int, ...]
) -> tuple[Any]:
    """Compute the gradient of a convolution with respect to the image."""
    shape = (topgrad.shape[0], kern.shape[1] * op.num_groups, *spatial)
    op.check_shapes(shape, tuple(kern.shape), tuple(topgrad.shape))
    if 0 in (*kern.shape, *topgrad.shape, *shape):
        return (kern.new_zeros(shape),)
    padding, missing = _padding(op, kern.shape[2:])
    before, after = missing[-2::-2], missing[-1::-2]
    padded = [n + b + a for n, b, a in zip(spatial, before, after, strict=True)]
    img = topgrad.new_empty((*shape[:2], *padded))
    gradient = _gradient(op, topgrad, img, _flipped(op, kern), padding, False)
    for axis, (begin, size) in enumerate(zip(before, spatial, strict=True)):
        gradient = gradient.narrow(axis + 2, begin, size)
    return (gradient,)


@converts(ConvGradWeights, sizes=1)
def conv_grad_weights(
    op: ConvGradWeights, img: Any, topgrad: Any, spatial: tuple[int, ...]
) -> tuple[Any]:
    """Compute the gradient of a convolution with respect to the filters."""
    shape = (topgrad.shape[1], img.shape[1] // op.num_groups, *spatial)
    op.check_shapes(tuple(img.shape), shape, tuple(topgrad.shape))
    if 0 in (*img.shape, *topgrad.shape, *shape):
        return (img.new_zeros(shape),)
    padding, missing = _padding(op, spatial)
    if any(missing):
        img = functional.pad(img, missing)
    kern = topgrad.new_empty(shape)
    return (_flipped(op, _gradient(op, topgrad, img, kern, padding, True)),)
