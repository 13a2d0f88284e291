"""Convert elementwise functions, reductions and products to formulas that PyTorch compiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from dnnops.errors import DnnValueError
from dnnops.link.formulas import (
    activation,
    batchnorm,
    cross_entropy,
    dropout,
    group_norm,
    sampler,
    softmax,
    window_norm,
)
from dnnops.link.formulas.shapes import require_same_shape
from dnnops.link.pytorch import library
from dnnops.link.pytorch.register import converts
from dnnops.nnet import (
    Activation,
    ActivationGrad,
    BatchNormInference,
    BatchNormTrain,
    BatchNormTrainGrad,
    CrossEntropy,
    CrossEntropyGrad,
    Dropout,
    DropoutGrad,
    LogSoftmaxGrad,
    SoftmaxGrad,
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
    SpatialTransformerSampler,
    SpatialTransformerSamplerGrad,
    WholeSoftmax,
)
from dnnops.nnet.norm.batchnorm_base import BatchNormBase
from dnnops.nnet.norm.group_norm import GroupNorm, GroupNormGrad
from dnnops.nnet.norm.window_base import WindowNormBase, WindowSum

Formula = Callable[..., tuple]


def _of_any_shapes(formula: Formula, op: Any, *operands: Any) -> tuple:
    return formula(library, op, *operands)


def _of_one_shape(formula: Formula, op: Any, *operands: Any) -> tuple:
    require_same_shape(op, *(x.shape for x in operands))
    return formula(library, op, *operands)


def _normalized(formula: Formula, op: BatchNormBase, *operands: Any) -> tuple:
    named = dict(zip(op.operands, operands, strict=True))
    shape, *others = (named[name].shape for name in op.data)
    require_same_shape(op, shape, *others)
    of_parameters = [1 if axis in op.axes else size for axis, size in enumerate(shape)]
    require_same_shape(op, of_parameters, *(named[name].shape for name in op.parameter_operands))
    return formula(library, op, *operands)


def _sampled(formula: Formula, op: Any, img: Any, grid: Any, *gout: Any) -> tuple:
    if img.shape[0] != grid.shape[0]:
        raise DnnValueError(
            f"{op}: the batch sizes must be equal, got {img.shape[0]} images and"
            f" {grid.shape[0]} grids"
        )
    if gout:
        require_same_shape(op, (*img.shape[:2], *grid.shape[1:3]), gout[0].shape)
    return formula(library, op, img, grid, *gout)


#: The function that checks the operands' shapes and the formula, by Op class.
_FORMULAS: dict[Any, tuple[Callable[..., tuple], Formula]] = {
    ActivationGrad: (_of_one_shape, activation.activation_gradient),
    BatchNormInference: (_normalized, batchnorm.batchnorm_inference),
    BatchNormTrain: (_normalized, batchnorm.batchnorm_train),
    BatchNormTrainGrad: (_normalized, batchnorm.batchnorm_gradient),
    CrossEntropy: (_of_any_shapes, cross_entropy.cross_entropy),
    CrossEntropyGrad: (_of_any_shapes, cross_entropy.cross_entropy_gradient),
    Dropout: (_of_any_shapes, dropout.dropout),
    DropoutGrad: (_of_any_shapes, dropout.dropout_gradient),
    GroupNorm: (_of_any_shapes, group_norm.group_norm),
    GroupNormGrad: (_of_any_shapes, group_norm.group_norm_gradient),
    LogSoftmaxGrad: (_of_one_shape, softmax.log_softmax_gradient),
    SoftmaxGrad: (_of_one_shape, softmax.softmax_gradient),
    SpatialTransformerGridGrad: (_of_any_shapes, sampler.grid_gradient),
    SpatialTransformerSampler: (_sampled, sampler.sampler),
    SpatialTransformerSamplerGrad: (_sampled, sampler.sampler_gradient),
    WindowNormBase: (_of_one_shape, window_norm.window_norm),
    WindowSum: (_of_any_shapes, window_norm.window_sum),
}
for op_type, (checked, formula) in _FORMULAS.items():
    converts(op_type)(partial(checked, formula))


@converts(SpatialTransformerGrid, sizes=1)
def grid(op: SpatialTransformerGrid, theta: Any, out_shape: Any) -> tuple[Any]:
    """Compute the affine grid of a spatial transformer."""
    require_same_shape(op, (theta.shape[0], 2, 3), theta.shape)
    if any(size < 1 for size in out_shape):
        raise DnnValueError(f"{op}: the sizes of out_shape must be positive, got {out_shape}")
    return sampler.grid(library, op, theta, out_shape)


@converts(Activation)
def activate(op: Activation, x: Any) -> tuple[Any]:
    """Compute an activation."""
    if op.mode == "relu":
        return (functional.relu(x),)
    if op.mode == "clipped_relu":
        return (torch.clamp(x, 0, op.coef),)
    if op.mode == "tanh":
        return (torch.tanh(x),)
    if op.mode == "sigmoid":
        return (torch.sigmoid(x),)
    if op.mode == "elu":
        return (functional.elu(x, op.coef),)
    gate = torch.sigmoid(op.coef * x)
    return (torch.where(gate == 0, 0.0, x * gate),)


@converts(WholeSoftmax)
def whole_softmax(op: WholeSoftmax, x: Any) -> tuple[Any]:
    """Compute a softmax or its logarithm."""
    if len(op.axis) == 1:
        function = functional.log_softmax if op.log else functional.softmax
        return (function(x, dim=op.axis[0]),)
    shifted = x - library.amax(x, op.axis)
    logarithm = shifted - torch.logsumexp(shifted, dim=op.axis, keepdim=True)
    return (logarithm if op.log else torch.exp(logarithm),)
