"""Device-independent neural-network Ops and the functions that make them.

The Ops run in NumPy as they are; rewrites replace them by Ops that call oneDNN or cuDNN.
"""

from dnnops.nnet import vectorize  # noqa: F401 - registers with vectorize_graph
from dnnops.nnet.activation import (
    Activation,
    ActivationGrad,
    clipped_relu,
    elu,
    relu,
    sigmoid,
    swish,
    tanh,
)
from dnnops.nnet.attention import Attention, AttentionGrad, scaled_dot_product_attention
from dnnops.nnet.batchnorm import (
    BatchNormInference,
    BatchNormTrain,
    BatchNormTrainGrad,
    batch_normalization_test,
    batch_normalization_train,
)
from dnnops.nnet.conv import (
    Conv,
    ConvGradInputs,
    ConvGradWeights,
    conv1d,
    conv2d,
    conv3d,
    conv_output_shape,
    resolve_padding,
)
from dnnops.nnet.conv_transpose import (
    conv2d_grad_wrt_inputs,
    conv2d_grad_wrt_weights,
    conv2d_transpose,
    conv3d_grad_wrt_inputs,
    conv3d_grad_wrt_weights,
    conv3d_transpose,
)
from dnnops.nnet.cross_entropy_ops import CrossEntropy, CrossEntropyGrad, cross_entropy
from dnnops.nnet.ctc_ops import CTC, ctc
from dnnops.nnet.divisive_normalization_ops import (
    DivisiveNormalization,
    DivisiveNormalizationGrad,
    divisive_normalization,
)
from dnnops.nnet.dropout_ops import Dropout, DropoutGrad, dropout, dropout_state
from dnnops.nnet.elementwise import (
    hard_sigmoid,
    selu,
    softplus,
    softsign,
    ultra_fast_sigmoid,
)
from dnnops.nnet.losses import (
    binary_crossentropy,
    categorical_crossentropy,
    confusion_matrix,
    crossentropy_categorical_1hot,
    sigmoid_binary_crossentropy,
)
from dnnops.nnet.lrn import LRN, LRNGrad, local_response_normalization
from dnnops.nnet.pool import (
    AveragePoolGrad,
    MaxPoolGrad,
    MaxPoolGradGrad,
    Pool,
    pool_2d,
    pool_3d,
    pool_output_shape,
)
from dnnops.nnet.rnn import RNNBlock
from dnnops.nnet.rnn_ops import RNNBackward, RNNForward
from dnnops.nnet.softmax_ops import (
    LogSoftmaxGrad,
    SoftmaxGrad,
    WholeSoftmax,
    log_softmax,
    logsoftmax,
    softmax,
    softmax_with_bias,
)
from dnnops.nnet.spatial_transformer_ops import (
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
    SpatialTransformerSampler,
    SpatialTransformerSamplerGrad,
    affine_grid,
    grid_sample,
    spatial_transformer,
)

__all__ = [
    "CTC",
    "LRN",
    "Activation",
    "ActivationGrad",
    "Attention",
    "AttentionGrad",
    "AveragePoolGrad",
    "BatchNormInference",
    "BatchNormTrain",
    "BatchNormTrainGrad",
    "Conv",
    "ConvGradInputs",
    "ConvGradWeights",
    "CrossEntropy",
    "CrossEntropyGrad",
    "DivisiveNormalization",
    "DivisiveNormalizationGrad",
    "Dropout",
    "DropoutGrad",
    "LRNGrad",
    "LogSoftmaxGrad",
    "MaxPoolGrad",
    "MaxPoolGradGrad",
    "Pool",
    "RNNBackward",
    "RNNBlock",
    "RNNForward",
    "SoftmaxGrad",
    "SpatialTransformerGrid",
    "SpatialTransformerGridGrad",
    "SpatialTransformerSampler",
    "SpatialTransformerSamplerGrad",
    "WholeSoftmax",
    "affine_grid",
    "batch_normalization_test",
    "batch_normalization_train",
    "binary_crossentropy",
    "categorical_crossentropy",
    "clipped_relu",
    "confusion_matrix",
    "conv1d",
    "conv2d",
    "conv2d_grad_wrt_inputs",
    "conv2d_grad_wrt_weights",
    "conv2d_transpose",
    "conv3d",
    "conv3d_grad_wrt_inputs",
    "conv3d_grad_wrt_weights",
    "conv3d_transpose",
    "conv_output_shape",
    "cross_entropy",
    "crossentropy_categorical_1hot",
    "ctc",
    "divisive_normalization",
    "dropout",
    "dropout_state",
    "elu",
    "grid_sample",
    "hard_sigmoid",
    "local_response_normalization",
    "log_softmax",
    "logsoftmax",
    "pool_2d",
    "pool_3d",
    "pool_output_shape",
    "relu",
    "resolve_padding",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "sigmoid_binary_crossentropy",
    "softmax",
    "softmax_with_bias",
    "softplus",
    "softsign",
    "spatial_transformer",
    "swish",
    "tanh",
    "ultra_fast_sigmoid",
]


def __dir__() -> list[str]:
    """The public names, without the modules that hold them."""
    return list(__all__)
