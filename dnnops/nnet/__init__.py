"""Device-independent neural-network Ops and the functions that create them.

The Ops run in NumPy; rewrites replace them with Ops that call oneDNN or cuDNN.
"""

from dnnops.hints import explain_arguments, no_attribute
from dnnops.nnet import (  # noqa: F401 - register with vectorize_graph
    vectorize,
    vectorize_batch,
    vectorize_conv,
    vectorize_random,
    vectorize_rnn,
    vectorize_sizes,
)
from dnnops.nnet.activation.elementwise import (
    gelu,
    hard_sigmoid,
    selu,
    softplus,
    softsign,
    ultra_fast_sigmoid,
)
from dnnops.nnet.activation.hierarchical import (
    h_softmax,
)
from dnnops.nnet.activation.op import (
    Activation,
    ActivationGrad,
    clipped_relu,
    elu,
    relu,
    sigmoid,
    swish,
    tanh,
)
from dnnops.nnet.activation.softmax import (
    LogSoftmaxGrad,
    SoftmaxGrad,
    WholeSoftmax,
    log_softmax,
    logsoftmax,
    softmax,
    softmax_graph,
    softmax_with_bias,
)
from dnnops.nnet.attention.functions import scaled_dot_product_attention
from dnnops.nnet.attention.op import Attention, AttentionGrad
from dnnops.nnet.blocksparse import sparse_block_dot
from dnnops.nnet.conv.checks import assert_conv_shape, assert_shape, border_mode_to_pad
from dnnops.nnet.conv.op import (
    Conv,
    ConvGradInputs,
    ConvGradWeights,
    conv1d,
    conv2d,
    conv3d,
    conv_output_shape,
    resolve_padding,
)
from dnnops.nnet.conv.separable import (
    causal_conv1d,
    separable_conv2d,
    separable_conv3d,
)
from dnnops.nnet.conv.shapes import (
    check_conv_gradinputs_shape,
    get_conv_gradinputs_shape,
    get_conv_gradinputs_shape_1axis,
    get_conv_gradweights_shape,
    get_conv_gradweights_shape_1axis,
    get_conv_output_shape,
    get_conv_shape_1axis,
)
from dnnops.nnet.conv.transpose import (
    conv2d_grad_wrt_inputs,
    conv2d_grad_wrt_weights,
    conv2d_transpose,
    conv3d_grad_wrt_inputs,
    conv3d_grad_wrt_weights,
    conv3d_transpose,
)
from dnnops.nnet.lookup import embedding
from dnnops.nnet.loss.cross_entropy import CrossEntropy, CrossEntropyGrad, cross_entropy
from dnnops.nnet.loss.ctc import CTC, ctc
from dnnops.nnet.loss.functions import (
    binary_crossentropy,
    categorical_crossentropy,
    confusion_matrix,
    crossentropy_categorical_1hot,
    sigmoid_binary_crossentropy,
)
from dnnops.nnet.loss.one_hot import (
    crossentropy_categorical_1hot_grad,
    crossentropy_softmax_1hot,
    crossentropy_softmax_1hot_with_bias,
    crossentropy_softmax_1hot_with_bias_dx,
    crossentropy_softmax_argmax_1hot_with_bias,
    crossentropy_softmax_max_and_argmax_1hot,
    crossentropy_softmax_max_and_argmax_1hot_with_bias,
)
from dnnops.nnet.norm.batchnorm import (
    BatchNormInference,
    BatchNormTrain,
    BatchNormTrainGrad,
    batch_normalization_test,
    batch_normalization_train,
)
from dnnops.nnet.norm.batchnorm_elementwise import (
    batch_normalization,
)
from dnnops.nnet.norm.divisive_normalization import (
    DivisiveNormalization,
    DivisiveNormalizationGrad,
    divisive_normalization,
)
from dnnops.nnet.norm.group_norm import GroupNorm, GroupNormGrad, group_norm
from dnnops.nnet.norm.layer_norm import layer_norm, rms_norm
from dnnops.nnet.norm.lrn import LRN, LRNGrad, local_response_normalization
from dnnops.nnet.pool.functions import pool_2d, pool_3d
from dnnops.nnet.pool.op import (
    AveragePoolGrad,
    MaxPoolGrad,
    MaxPoolGradGrad,
    Pool,
    pool_output_shape,
)
from dnnops.nnet.pool.same_size import (
    max_pool_2d_same_size,
)
from dnnops.nnet.prepend import (
    prepend_0_to_each_row,
    prepend_1_to_each_row,
    prepend_scalar_to_each_row,
)
from dnnops.nnet.regularization.dropout import Dropout, DropoutGrad, dropout, dropout_state
from dnnops.nnet.resample.neighbours import (
    images2neibs,
    neibs2images,
)
from dnnops.nnet.resample.spatial_transformer import (
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
    SpatialTransformerSampler,
    SpatialTransformerSamplerGrad,
    affine_grid,
    grid_sample,
    spatial_transformer,
)
from dnnops.nnet.resample.upsampling import (
    bilinear_kernel_1D,
    bilinear_kernel_2D,
    bilinear_upsampling,
    frac_bilinear_upsampling,
)
from dnnops.nnet.rnn.block import RNNBlock
from dnnops.nnet.rnn.op import RNNBackward, RNNForward

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
    "GroupNorm",
    "GroupNormGrad",
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
    "assert_conv_shape",
    "assert_shape",
    "batch_normalization",
    "batch_normalization_test",
    "batch_normalization_train",
    "bilinear_kernel_1D",
    "bilinear_kernel_2D",
    "bilinear_upsampling",
    "binary_crossentropy",
    "border_mode_to_pad",
    "categorical_crossentropy",
    "causal_conv1d",
    "check_conv_gradinputs_shape",
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
    "crossentropy_categorical_1hot_grad",
    "crossentropy_softmax_1hot",
    "crossentropy_softmax_1hot_with_bias",
    "crossentropy_softmax_1hot_with_bias_dx",
    "crossentropy_softmax_argmax_1hot_with_bias",
    "crossentropy_softmax_max_and_argmax_1hot",
    "crossentropy_softmax_max_and_argmax_1hot_with_bias",
    "ctc",
    "divisive_normalization",
    "dropout",
    "dropout_state",
    "elu",
    "embedding",
    "frac_bilinear_upsampling",
    "gelu",
    "get_conv_gradinputs_shape",
    "get_conv_gradinputs_shape_1axis",
    "get_conv_gradweights_shape",
    "get_conv_gradweights_shape_1axis",
    "get_conv_output_shape",
    "get_conv_shape_1axis",
    "grid_sample",
    "group_norm",
    "h_softmax",
    "hard_sigmoid",
    "images2neibs",
    "layer_norm",
    "local_response_normalization",
    "log_softmax",
    "logsoftmax",
    "max_pool_2d_same_size",
    "neibs2images",
    "pool_2d",
    "pool_3d",
    "pool_output_shape",
    "prepend_0_to_each_row",
    "prepend_1_to_each_row",
    "prepend_scalar_to_each_row",
    "relu",
    "resolve_padding",
    "rms_norm",
    "scaled_dot_product_attention",
    "selu",
    "separable_conv2d",
    "separable_conv3d",
    "sigmoid",
    "sigmoid_binary_crossentropy",
    "softmax",
    "softmax_graph",
    "softmax_with_bias",
    "softplus",
    "softsign",
    "sparse_block_dot",
    "spatial_transformer",
    "swish",
    "tanh",
    "ultra_fast_sigmoid",
]


def __dir__() -> list[str]:
    """Return the public names, without the submodules that define them."""
    return list(__all__)


__getattr__ = no_attribute(__name__)
explain_arguments(__name__)
