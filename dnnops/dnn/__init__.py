"""cuDNN under the names of ``theano.gpuarray.dnn``.

These functions put Ops on cuDNN into a graph explicitly. Prefer `dnnops.nnet` where it can express
the same computation: its graphs get the same Ops through rewrites, and also run on a CPU.

Operands can be device variables, host variables or arrays; host data is transferred to the device.
Results are device variables.
"""

from __future__ import annotations

from dnnops.dnn.availability import dnn_available, dnn_present, version
from dnnops.dnn.batchnorm import dnn_batch_normalization_test, dnn_batch_normalization_train
from dnnops.dnn.constructors import gpu_dnn_conv, gpu_dnn_conv_gradI, gpu_dnn_conv_gradW
from dnnops.dnn.conv import (
    CONV_MODES,
    DIRECTION_HINTS,
    dnn_conv,
    dnn_conv3d,
    dnn_gradinput,
    dnn_gradinput3d,
    dnn_gradweight,
    dnn_gradweight3d,
)
from dnnops.dnn.ctc import dnn_ctc
from dnnops.dnn.elementwise import dnn_activation, dnn_add, dnn_transform, dropout
from dnnops.dnn.lrn import dnn_divisive_normalization, dnn_lrn
from dnnops.dnn.pool import dnn_pool
from dnnops.dnn.reduction import dnn_reduction
from dnnops.dnn.rnn import RNNBlock
from dnnops.dnn.spatial_transformer import dnn_spatialtf
from dnnops.gpu.activation import GpuDnnActivation, GpuDnnActivationGrad
from dnnops.gpu.attention import GpuDnnAttention, GpuDnnAttentionGrad
from dnnops.gpu.batchnorm import (
    GpuDnnBatchNorm,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
)
from dnnops.gpu.conv import GpuDnnConv, GpuDnnConvGradI, GpuDnnConvGradW
from dnnops.gpu.ctc import GpuDnnCTC
from dnnops.gpu.descriptors import GpuDnnConvDesc, GpuDnnDropoutDesc
from dnnops.gpu.divisive_normalization import (
    GpuDnnDivisiveNormalization,
    GpuDnnDivisiveNormalizationGrad,
)
from dnnops.gpu.dropout import GpuDnnDropoutGrad, GpuDnnDropoutOp
from dnnops.gpu.lrn import GpuDnnLRN, GpuDnnLRNGrad
from dnnops.gpu.pool import GpuDnnPool, GpuDnnPoolGrad
from dnnops.gpu.reduction import GpuDnnReduction
from dnnops.gpu.rnn import GpuDnnRNNBackward, GpuDnnRNNForward
from dnnops.gpu.softmax import GpuDnnSoftmax, GpuDnnSoftmaxGrad
from dnnops.gpu.spatial_transformer import (
    GpuDnnTransformerGradI,
    GpuDnnTransformerGradT,
    GpuDnnTransformerGrid,
    GpuDnnTransformerSampler,
)
from dnnops.gpu.transform import GpuDnnAddTensor, GpuDnnTransform

__all__ = [
    "CONV_MODES",
    "DIRECTION_HINTS",
    "GpuDnnActivation",
    "GpuDnnActivationGrad",
    "GpuDnnAddTensor",
    "GpuDnnAttention",
    "GpuDnnAttentionGrad",
    "GpuDnnBatchNorm",
    "GpuDnnBatchNormGrad",
    "GpuDnnBatchNormInference",
    "GpuDnnCTC",
    "GpuDnnConv",
    "GpuDnnConvDesc",
    "GpuDnnConvGradI",
    "GpuDnnConvGradW",
    "GpuDnnDivisiveNormalization",
    "GpuDnnDivisiveNormalizationGrad",
    "GpuDnnDropoutDesc",
    "GpuDnnDropoutGrad",
    "GpuDnnDropoutOp",
    "GpuDnnLRN",
    "GpuDnnLRNGrad",
    "GpuDnnPool",
    "GpuDnnPoolGrad",
    "GpuDnnRNNBackward",
    "GpuDnnRNNForward",
    "GpuDnnReduction",
    "GpuDnnSoftmax",
    "GpuDnnSoftmaxGrad",
    "GpuDnnTransform",
    "GpuDnnTransformerGradI",
    "GpuDnnTransformerGradT",
    "GpuDnnTransformerGrid",
    "GpuDnnTransformerSampler",
    "RNNBlock",
    "dnn_activation",
    "dnn_add",
    "dnn_available",
    "dnn_batch_normalization_test",
    "dnn_batch_normalization_train",
    "dnn_conv",
    "dnn_conv3d",
    "dnn_ctc",
    "dnn_divisive_normalization",
    "dnn_gradinput",
    "dnn_gradinput3d",
    "dnn_gradweight",
    "dnn_gradweight3d",
    "dnn_lrn",
    "dnn_pool",
    "dnn_present",
    "dnn_reduction",
    "dnn_spatialtf",
    "dnn_transform",
    "dropout",
    "gpu_dnn_conv",
    "gpu_dnn_conv_gradI",
    "gpu_dnn_conv_gradW",
    "version",
]


def __dir__() -> list[str]:
    """Return the public names, without the names of submodules."""
    return list(__all__)
