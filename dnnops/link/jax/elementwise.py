"""Convert elementwise functions, reductions and products to formulas that JAX compiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dnnops.link.formulas import (
    activation,
    attention,
    batchnorm,
    cross_entropy,
    dropout,
    group_norm,
    sampler,
    softmax,
    window_norm,
)
from dnnops.link.jax import library
from dnnops.link.jax.register import converts
from dnnops.nnet import (
    Activation,
    ActivationGrad,
    Attention,
    AttentionGrad,
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
from dnnops.nnet.norm.group_norm import GroupNorm, GroupNormGrad
from dnnops.nnet.norm.window_base import WindowNormBase, WindowSum

_FORMULAS: dict[Any, Callable[..., tuple]] = {
    ActivationGrad: activation.activation_gradient,
    # jax.nn.dot_product_attention isn't used: it computes the softmax in float32 even for float64,
    # and returns the mean of all values for a query without keys.
    Attention: attention.attention,
    AttentionGrad: attention.attention_gradient,
    BatchNormInference: batchnorm.batchnorm_inference,
    BatchNormTrain: batchnorm.batchnorm_train,
    BatchNormTrainGrad: batchnorm.batchnorm_gradient,
    CrossEntropy: cross_entropy.cross_entropy,
    CrossEntropyGrad: cross_entropy.cross_entropy_gradient,
    Dropout: dropout.dropout,
    DropoutGrad: dropout.dropout_gradient,
    GroupNorm: group_norm.group_norm,
    GroupNormGrad: group_norm.group_norm_gradient,
    LogSoftmaxGrad: softmax.log_softmax_gradient,
    SoftmaxGrad: softmax.softmax_gradient,
    SpatialTransformerGridGrad: sampler.grid_gradient,
    SpatialTransformerSampler: sampler.sampler,
    SpatialTransformerSamplerGrad: sampler.sampler_gradient,
    WindowNormBase: window_norm.window_norm,
    WindowSum: window_norm.window_sum,
}
for op_type, formula in _FORMULAS.items():
    converts(op_type)(partial(formula, library))

converts(SpatialTransformerGrid, sizes=1)(partial(sampler.grid, library))


@converts(Activation)
def activate(op: Activation, x: Any) -> tuple[Any]:
    """Compute an activation."""
    if op.mode == "relu":
        return (jax.nn.relu(x),)
    if op.mode == "clipped_relu":
        return (jnp.clip(x, 0, op.coef),)
    if op.mode == "tanh":
        return (jnp.tanh(x),)
    if op.mode == "sigmoid":
        return (jax.nn.sigmoid(x),)
    if op.mode == "elu":
        return (jax.nn.elu(x, op.coef),)
    gate = jax.nn.sigmoid(op.coef * x)
    return (jnp.where(gate == 0, 0.0, x * gate),)


@converts(WholeSoftmax)
def whole_softmax(op: WholeSoftmax, x: Any) -> tuple[Any]:
    """Compute a softmax or its logarithm."""
    return ((jax.nn.log_softmax if op.log else jax.nn.softmax)(x, axis=op.axis),)
