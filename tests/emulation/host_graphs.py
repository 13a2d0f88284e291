"""Compute graphs of device Ops on the host, with the corresponding abstract Ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import Op
from pytensor.graph.traversal import toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise

from dnnops import dnn
from dnnops.dtypes import HALF_DTYPES, numpy_dtype
from dnnops.gpu.attention.weights import GpuAttentionWeights, GpuAttentionWeightsGrad
from dnnops.gpu.base import CudnnOp
from dnnops.gpu.batchnorm import GpuDnnBatchNormBase
from dnnops.gpu.conv import GpuDnnConvBase
from dnnops.gpu.derivatives import GpuAbstractOp, GpuExpressionOp
from dnnops.gpu.pool_kernels import GpuMaxPoolGradGrad, GpuPool, GpuPoolGrad
from dnnops.gpu.rnn import GpuDnnRNNBase
from dnnops.gpuarray.basic import GpuAllocEmpty, GpuContiguous
from dnnops.gpuarray.elemwise import GpuElemwise
from dnnops.gpuarray.op import MirrorOp, is_on_device
from dnnops.gpuarray.pad import GpuPad
from dnnops.gpuarray.reduction import GpuCAReduce
from dnnops.gpuarray.transfer import GpuCast, GpuFromHost, GpuToGpu, HostFromGpu
from dnnops.nnet.activation.op import Activation, ActivationGrad
from dnnops.nnet.activation.softmax import WholeSoftmax
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.loss.ctc import CTC
from dnnops.nnet.pool.op import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from dnnops.nnet.regularization.dropout import Dropout, DropoutGrad
from dnnops.nnet.rnn.op import RNNBackward, RNNBase, RNNForward

__all__ = ["elementwise", "on_host"]

_CONVOLUTIONS: dict[str, Any] = {
    "forward": Conv,
    "grad_inputs": ConvGradInputs,
    "grad_weights": ConvGradWeights,
}


def _conv(op: Any, inputs: list[Any]) -> list[Any]:
    abstract = _CONVOLUTIONS[op.direction](**op.conv_params())
    alpha, *more = inputs[op.leading :]
    out = abstract(*inputs[: op.leading])
    scaled = alpha * out + more[0] * more[1] if more else alpha * out
    return [pt.cast(scaled, out.type.dtype)]


def _pool_grad(op: Any, inputs: list[Any]) -> list[Any]:
    x, _, gz, *vectors = inputs
    if op.mode == "max":
        return [MaxPoolGrad(op.ndim, op.ignore_border)(*inputs)]
    return [AveragePoolGrad(op.ndim, op.mode, op.ignore_border)(x, gz, *vectors)]


def _attention_weights(op: Any, inputs: list[Any]) -> list[Any]:
    """Return the weights, and the logarithms of the sums that divide them or the gradient."""
    given = inputs[len(op.leading) :]
    named = dict(zip(op.optional, given, strict=True))
    scores = inputs[0] * np.asarray(op.scale, inputs[0].type.dtype)
    *_, queries, keys = scores.shape
    row, column = pt.arange(queries).dimshuffle(0, "x"), pt.arange(keys).dimshuffle("x", 0)
    seen = [column <= row] if op.is_causal else []
    for name, positions in (("query_lengths", row), ("key_lengths", column)):
        if name in named:
            seen.append(positions < named[name].dimshuffle(0, "x", "x", "x"))
    mask = named.get("mask")
    if mask is not None and mask.type.dtype == "bool":
        seen.append(mask)
    elif mask is not None:
        scores = scores + mask
    for condition in seen:
        scores = pt.switch(condition, scores, np.asarray(-np.inf, scores.type.dtype))
    if op.is_gradient:
        _, by_weights, stats = inputs[:3]
        stats = stats.dimshuffle(0, 1, 2, "x")
        weights = pt.switch(pt.isinf(stats), 0, pt.exp(scores - stats))
        inner = (weights * by_weights).sum(axis=-1, keepdims=True)
        by_scores = weights * (by_weights - inner) * np.asarray(op.scale, scores.type.dtype)
        return [weights, by_scores]
    stats = pt.log(pt.exp(scores).sum(axis=-1))
    weights = pt.exp(scores - stats.dimshuffle(0, 1, 2, "x"))
    return [pt.switch(pt.isinf(stats).dimshuffle(0, 1, 2, "x"), 0, weights), stats]


def _pad(op: Any, inputs: list[Any]) -> list[Any]:
    (x,) = inputs
    if op.view_map:
        return [x[tuple(slice(-a, x.shape[i] + b) for i, (a, b) in enumerate(op.pads))]]
    zeros = pt.zeros([x.shape[i] + a + b for i, (a, b) in enumerate(op.pads)], dtype=x.type.dtype)
    inner = tuple(slice(a, a + x.shape[i]) for i, (a, _) in enumerate(op.pads))
    return [pt.set_subtensor(zeros[inner], x)]


def _softmax(op: Any, inputs: list[Any]) -> list[Any]:
    return [WholeSoftmax(op.axis, op.algo == "log")(*inputs)]


def elementwise(scalar_op: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return the results of a scalar Op on arrays; those of a fused one step by step.

    Dtypes may differ from those of the fused Op, with which PyTensor 3.0 rebuilds some wrongly.
    NumPy also computes the steps faster, and PyTensor allows more than 32 operands only in C.
    """
    if not isinstance(scalar_op, Composite):
        return Elemwise(scalar_op).make_node(*inputs).outputs
    inner = scalar_op.fgraph
    known: dict[Any, Any] = dict(zip(inner.inputs, inputs, strict=True))
    for node in inner.toposort():
        operands = [
            pt.constant(x.data, dtype=x.type.dtype) if isinstance(x, Constant) else known[x]
            for x in node.inputs
        ]
        known.update(zip(node.outputs, elementwise(node.op, operands), strict=True))
    # Results that read only some operands have the shape of all of them, too.
    ndim = max(x.type.ndim for x in inputs)
    patterns = [(True,) * (ndim - x.type.ndim) + x.type.broadcastable for x in inputs]
    wanted = tuple(map(all, zip(*patterns, strict=True)))
    found = [known[z] for z in inner.outputs]
    return [
        z if z.type.broadcastable == wanted else pt.broadcast_to(z, pt.broadcast_shape(*inputs))
        for z in found
    ]


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
    GpuPool: lambda op, x: [Pool(op.ndim, op.mode, op.ignore_border)(*x)],
    GpuPoolGrad: _pool_grad,
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
    GpuAttentionWeights: _attention_weights,
    GpuAttentionWeightsGrad: _attention_weights,
    GpuAllocEmpty: lambda op, x: [pt.full(x, np.asarray(np.nan, op.dtype))],
    GpuPad: _pad,
    GpuContiguous: lambda op, x: x,
    GpuElemwise: lambda op, x: elementwise(op.scalar_op, x),
    GpuCAReduce: _reduction,
    CheckAndRaise: lambda op, x: op.make_node(*x).outputs,
    MirrorOp: lambda op, x: op.host_op.make_node(*x).outputs,
}


def _lowered(node: Apply, inputs: list[Any]) -> list[Any]:
    for op_class in type(node.op).__mro__:
        if op_class in _LOWERED:
            return _LOWERED[op_class](node.op, inputs)
    assert not isinstance(node.op, CudnnOp), f"{node.op} has no counterpart here"
    assert not any(map(is_on_device, node.outputs)), f"{node.op} has no counterpart here"
    return node.clone_with_new_inputs(inputs, strict=False).outputs


def _stored(x: Any, old: Any, rounding: bool) -> Any:
    """Return a result in the dtype of a device array, or rounded to it."""
    if not is_on_device(old):
        return x
    dtype = old.type.dtype
    if dtype not in HALF_DTYPES:
        return pt.cast(x, dtype)
    return Rounded(dtype)(pt.cast(x, "float32")) if rounding else x


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
            data, name = x.host_data, x.host_data.dtype.name
            return pt.constant(data.astype("float32") if name in HALF_DTYPES else data)
        return new.get(x, x)

    for node in toposort(outputs):
        given = [value(x) for x in node.inputs]
        is_cast = rounding and isinstance(node.op, GpuCast)
        found = given if is_cast else _lowered(node, given)
        found = [_stored(x, z, rounding) for x, z in zip(found, node.outputs, strict=True)]
        new.update(zip(node.outputs, found, strict=True))
    return [value(z) for z in outputs]
