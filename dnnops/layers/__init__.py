"""Layers with the names and arguments of cudnn.torch, plus layers of current networks.

A layer holds its parameters as shared variables, and is called with symbolic variables. It builds
an ordinary graph, so that the result works with `pytensor.function`, `pytensor.grad` and every
other part of PyTensor.
"""

import sys

from dnnops.hints import explain_arguments, no_attribute
from dnnops.layers.activation import (
    GELU,
    ClippedReLU,
    LogSoftMax,
    ReLU,
    Sigmoid,
    SoftMax,
    SpatialLogSoftMax,
    SpatialSoftMax,
    Tanh,
    VolumetricLogSoftMax,
    VolumetricSoftMax,
)
from dnnops.layers.attention import MultiHeadAttention, TransformerEncoderLayer
from dnnops.layers.containers import Concat, Residual, Sequential
from dnnops.layers.conversion import convert
from dnnops.layers.convolution import (
    SpatialConvolution,
    SpatialFullConvolution,
    TemporalConvolution,
    VolumetricConvolution,
    VolumetricFullConvolution,
)
from dnnops.layers.criterion import (
    CrossEntropyCriterion,
    SpatialCrossEntropyCriterion,
    VolumetricCrossEntropyCriterion,
)
from dnnops.layers.dense import Dropout, Embedding, Linear, View
from dnnops.layers.initializers import (
    constant,
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
    normal,
    orthogonal,
    seed,
    uniform,
)
from dnnops.layers.layer import Layer
from dnnops.layers.normalization import (
    BatchNormalization,
    GroupNorm,
    LayerNorm,
    RMSNorm,
    SpatialBatchNormalization,
    SpatialCrossMapLRN,
    SpatialDivisiveNormalization,
    VolumetricBatchNormalization,
)
from dnnops.layers.places import show_places
from dnnops.layers.pooling import (
    SpatialAveragePooling,
    SpatialMaxPooling,
    TemporalMaxPooling,
    VolumetricAveragePooling,
    VolumetricMaxPooling,
)
from dnnops.layers.recurrent import BGRU, BLSTM, GRU, LSTM, RNN, RNNReLU, RNNTanh
from dnnops.layers.spatial_transformer import (
    AffineGridGenerator,
    BilinearSampler,
    SpatialTransformer,
)
from dnnops.layers.switches import WithSwitches
from dnnops.layers.torch_weights import from_torch, to_torch

__all__ = [
    "BGRU",
    "BLSTM",
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "AffineGridGenerator",
    "BatchNormalization",
    "BilinearSampler",
    "ClippedReLU",
    "Concat",
    "CrossEntropyCriterion",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "Layer",
    "LayerNorm",
    "Linear",
    "LogSoftMax",
    "MultiHeadAttention",
    "RMSNorm",
    "RNNReLU",
    "RNNTanh",
    "ReLU",
    "Residual",
    "Sequential",
    "Sigmoid",
    "SoftMax",
    "SpatialAveragePooling",
    "SpatialBatchNormalization",
    "SpatialConvolution",
    "SpatialCrossEntropyCriterion",
    "SpatialCrossMapLRN",
    "SpatialDivisiveNormalization",
    "SpatialFullConvolution",
    "SpatialLogSoftMax",
    "SpatialMaxPooling",
    "SpatialSoftMax",
    "SpatialTransformer",
    "Tanh",
    "TemporalConvolution",
    "TemporalMaxPooling",
    "TransformerEncoderLayer",
    "View",
    "VolumetricAveragePooling",
    "VolumetricBatchNormalization",
    "VolumetricConvolution",
    "VolumetricCrossEntropyCriterion",
    "VolumetricFullConvolution",
    "VolumetricLogSoftMax",
    "VolumetricMaxPooling",
    "VolumetricSoftMax",
    "constant",
    "convert",
    "from_torch",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "normal",
    "orthogonal",
    "seed",
    "to_torch",
    "uniform",
]


def __dir__() -> list[str]:
    """Return the public names, without the submodules that define them."""
    return list(__all__)


__getattr__ = no_attribute(__name__)
explain_arguments(__name__)
show_places()
# `benchmark`, `fastest` and `verbose`
sys.modules[__name__].__class__ = WithSwitches
