"""Compute graphs of device Ops on the host, with the corresponding abstract Ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import Op
from pytensor.graph.traversal import toposort
from pytensor.tensor.elemwise import Elemwise

from dnnops import dnn
from dnnops.dtypes import HALF_DTYPES, numpy_dtype
from dnnops.gpu.base import CudnnOp
from dnnops.gpu.batchnorm import GpuDnnBatchNormBase
from dnnops.gpu.conv import GpuDnnConvBase
from dnnops.gpu.derivatives import GpuAbstractOp, GpuExpressionOp
from dnnops.gpu.pool_kernels import GpuMaxPoolGradGrad
from dnnops.gpu.rnn import GpuDnnRNNBase
from dnnops.gpuarray.basic import GpuContiguous
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import MirrorOp, is_on_device
from dnnops.gpuarray.reduction import GpuCAReduce
from dnnops.gpuarray.transfer import GpuCast, GpuFromHost, GpuToGpu, HostFromGpu
from dnnops.nnet.activation.op import Activation, ActivationGrad
from dnnops.nnet.activation.softmax import WholeSoftmax
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.loss.ctc import CTC
from dnnops.nnet.pool.op import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from dnnops.nnet.regularization.dropout import Dropout, DropoutGrad
from dnnops.nnet.rnn.op import RNNBackward, RNNBase, RNNForward

__all__ = ["on_host"]

_CONVOLUTIONS: dict[str, Any] = {
    "forward": Conv,
    "grad_inputs": ConvGradInputs,
    "grad_weights": ConvGradWeights,
}


def _conv(op: Any, inputs: list[Any]) -> list[Any]:
    abstract = _CONVOLUTIONS[op.direction](**op.conv_params())
    alpha, *more = inputs[op.leading :]
    out = alpha * abstract(*inputs[: op.leading])
    return [out + more[0] * more[1] if more else out]


def _pool_grad(op: Any, inputs: list[Any]) -> list[Any]:
    x, _, gz, *vectors = inputs
    if op.mode == "max":
        return [MaxPoolGrad(op.ndim, op.ignore_border)(*inputs)]
    return [AveragePoolGrad(op.ndim, op.mode, op.ignore_border)(x, gz, *vectors)]


def _softmax(op: Any, inputs: list[Any]) -> list[Any]:
    return [WholeSoftmax(op.axis, op.algo == "log")(*inputs)]


def _reduction(op: Any, inputs: list[Any]) -> list[Any]:
    (x,) = inputs
    mapped = {"abs": abs, "sqr": pt.sqr}[op.premap](x) if op.premap else x
    return op.host_op.make_node(mapped).outputs


class Rounded(Op):
    """Round float32 numbers to a 16-bit dtype."""

    __props__ = ("dtype",)

    def __init__(self, dtype: str):
        self.dtype = dtype

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: list[Any], output_storage: list[list[Any]]) -> None:
        rounded = np.asarray(inputs[0]).astype(numpy_dtype(self.dtype))
        output_storage[0][0] = rounded.astype("float32")


def _abstract(op: Any, inputs: list[Any]) -> list[Any]:
    return op.abstract().make_node(*op.shared(inputs)).outputs


def _rnn(op: Any, inputs: list[Any]) -> list[Any]:
    network = {name: getattr(op, name) for name in RNNBase.__props__}
    if isinstance(op, RNNForward):
        return RNNForward(**network, keeps_reserve=op.keeps_reserve).make_node(*inputs).outputs
    return RNNBackward(**network, by_x=op.by_x).make_node(*inputs).outputs


#: Functions that compute device Ops on the host, by class; the first matching class is taken.
_LOWERED: dict[type, Callable[[Any, list[Any]], Any]] = {
    GpuFromHost: lambda op, x: x,
    HostFromGpu: lambda op, x: x,
    GpuToGpu: lambda op, x: x,
    GpuCast: lambda op, x: [pt.cast(x[0], op.dtype)],
    GpuDnnConvBase: _conv,
    dnn.GpuDnnPool: lambda op, x: [Pool(op.ndim, op.mode, op.ignore_border)(*x)],
    dnn.GpuDnnPoolGrad: _pool_grad,
    GpuMaxPoolGradGrad: lambda op, x: [MaxPoolGradGrad(op.ndim, op.ignore_border)(*x)],
    GpuDnnBatchNormBase: lambda op, x: op.abstract(x[0].type.ndim).make_node(*x).outputs,
    dnn.GpuDnnSoftmax: _softmax,
    dnn.GpuDnnCTC: lambda op, x: (
        CTC(op.with_gradients, op.with_label_lengths).make_node(*x).outputs
    ),
    dnn.GpuDnnActivation: lambda op, x: [Activation(op.mode, op.coef)(*x)],
    dnn.GpuDnnActivationGrad: lambda op, x: [ActivationGrad(op.mode, op.coef)(*x)],
    dnn.GpuDnnDropoutOp: lambda op, x: Dropout().make_node(*x).outputs,
    dnn.GpuDnnDropoutGrad: lambda op, x: [DropoutGrad()(*x)],
    GpuAbstractOp: _abstract,
    GpuDnnRNNBase: _rnn,
    GpuExpressionOp: lambda op, x: op._expressions(*x),
    GpuContiguous: lambda op, x: x,
    GpuElemwise: lambda op, x: Elemwise(op.scalar_op).make_node(*x).outputs,
    GpuCAReduce: _reduction,
    MirrorOp: lambda op, x: op.host_op.make_node(*x).outputs,
}


def _lowered(node: Apply, inputs: list[Any]) -> list[Any]:
    for op_class in type(node.op).__mro__:
        if op_class in _LOWERED:
            return _LOWERED[op_class](node.op, inputs)
    assert not isinstance(node.op, CudnnOp), f"{node.op} has no counterpart here"
    assert not any(map(is_on_device, node.outputs)), f"{node.op} has no counterpart here"
    return node.clone_with_new_inputs(inputs, strict=False).outputs


def _rounded(x: Any, old: Any) -> Any:
    if not is_on_device(old):
        return x
    dtype = old.type.dtype
    return Rounded(dtype)(pt.cast(x, "float32")) if dtype in HALF_DTYPES else pt.cast(x, dtype)


def on_host(outputs: list[Any], rounding: bool = False) -> list[Any]:
    """Return host variables with the values of `outputs`, which depend only on host inputs.

    Shared variables become constants, so that each evaluation uses the same random numbers.

    With `rounding`, 16-bit arrays are computed in float32, and rounded where they are stored.
    """
    new: dict[Any, Any] = {}

    def value(x: Any) -> Any:
        if x not in new and isinstance(x, SharedVariable):
            return pt.constant(x.get_value())
        if x not in new and isinstance(x, Constant) and is_on_device(x):
            return pt.constant(x.host_data.astype("float32") if rounding else x.data)
        return new.get(x, x)

    for node in toposort(outputs):
        given = [value(x) for x in node.inputs]
        if rounding:
            found = given if isinstance(node.op, GpuCast) else _lowered(node, given)
            found = [_rounded(x, z) for x, z in zip(found, node.outputs, strict=True)]
        else:
            found = _lowered(node, given)
        new.update(zip(node.outputs, found, strict=True))
    return [value(z) for z in outputs]
