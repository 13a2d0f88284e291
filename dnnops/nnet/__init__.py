"""Device-independent neural-network Ops and the functions that make them.

The Ops run in NumPy as they are; rewrites replace them by Ops that call oneDNN or cuDNN.
"""

import dnnops.nnet.vectorize  # noqa: F401 - registers with vectorize_graph
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
from dnnops.nnet.softmax import LogSoftmaxGrad, SoftmaxGrad, WholeSoftmax

__all__ = [
    "AveragePoolGrad",
    "BatchNormInference",
    "BatchNormTrain",
    "BatchNormTrainGrad",
    "Conv",
    "ConvGradInputs",
    "ConvGradWeights",
    "LogSoftmaxGrad",
    "MaxPoolGrad",
    "MaxPoolGradGrad",
    "Pool",
    "RNNBackward",
    "RNNBlock",
    "RNNForward",
    "SoftmaxGrad",
    "WholeSoftmax",
    "batch_normalization_test",
    "batch_normalization_train",
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
    "pool_2d",
    "pool_3d",
    "pool_output_shape",
    "resolve_padding",
]
