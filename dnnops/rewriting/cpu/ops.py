"""Replace abstract Ops that stay on the CPU with oneDNN Ops."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from pytensor import config
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import (
    GraphRewriter,
    copy_stack_trace,
    dfs_rewriter,
    node_rewriter,
)
from pytensor.tensor.basic import cast
from pytensor.tensor.blas import Dot22, Gemm
from pytensor.tensor.math import Dot, Sum

from dnnops.cpu.activation import OneDnnActivation, OneDnnActivationGrad
from dnnops.cpu.attention import OneDnnAttention, OneDnnAttentionGrad
from dnnops.cpu.base import OneDnnOp, onednn_available
from dnnops.cpu.batchnorm import (
    OneDnnBatchNormInference,
    OneDnnBatchNormTrain,
    OneDnnBatchNormTrainGrad,
    has_neighboring_statistics,
)
from dnnops.cpu.channel_sum import OneDnnChannelSum
from dnnops.cpu.conv import OneDnnConv, OneDnnConvGradInputs, OneDnnConvGradWeights
from dnnops.cpu.cross_entropy import OneDnnCrossEntropy, OneDnnCrossEntropyGrad
from dnnops.cpu.ctc import OneDnnCTC
from dnnops.cpu.divisive_normalization import (
    OneDnnDivisiveNormalization,
    OneDnnDivisiveNormalizationGrad,
)
from dnnops.cpu.dropout import OneDnnDropout, OneDnnDropoutGrad
from dnnops.cpu.gemm import OneDnnDot, OneDnnGemm
from dnnops.cpu.lrn import OneDnnLRN, OneDnnLRNGrad, OneDnnWindowSum
from dnnops.cpu.pool import (
    OneDnnAveragePoolGrad,
    OneDnnMaxPoolGrad,
    OneDnnMaxPoolGradGrad,
    OneDnnPool,
)
from dnnops.cpu.rnn import OneDnnRNNBackward, OneDnnRNNForward
from dnnops.cpu.softmax import (
    OneDnnLogSoftmaxGrad,
    OneDnnSoftmax,
    OneDnnSoftmaxGrad,
    neighboring_axes,
)
from dnnops.cpu.spatial_transformer import (
    OneDnnSpatialTransformerGrid,
    OneDnnSpatialTransformerGridGrad,
    OneDnnSpatialTransformerSampler,
    OneDnnSpatialTransformerSamplerGradGrid,
    OneDnnSpatialTransformerSamplerGradImage,
)
from dnnops.errors import DnnRequiredError
from dnnops.nnet.activation.op import Activation, ActivationGrad
from dnnops.nnet.activation.softmax import LogSoftmaxGrad, SoftmaxGrad, WholeSoftmax
from dnnops.nnet.attention.op import Attention, AttentionGrad
from dnnops.nnet.conv.op import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.loss.cross_entropy import CrossEntropy, CrossEntropyGrad
from dnnops.nnet.loss.ctc import CTC
from dnnops.nnet.norm.batchnorm import BatchNormInference, BatchNormTrain, BatchNormTrainGrad
from dnnops.nnet.norm.divisive_normalization import DivisiveNormalization, DivisiveNormalizationGrad
from dnnops.nnet.norm.lrn import LRN, LRNGrad
from dnnops.nnet.norm.window_base import WindowSum
from dnnops.nnet.pool.op import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from dnnops.nnet.regularization.dropout import Dropout, DropoutGrad
from dnnops.nnet.resample.spatial_transformer import (
    SpatialTransformerGrid,
    SpatialTransformerGridGrad,
    SpatialTransformerSampler,
    SpatialTransformerSamplerGrad,
)
from dnnops.nnet.rnn.op import RNNBackward, RNNForward
from dnnops.rewriting.cpu.activation import local_elemwise_activation, onednn_activation
from dnnops.runtime.op import MAX_NDIM

__all__ = ["local_to_onednn"]

Substitute = Callable[[FunctionGraph, Apply], list[Variable] | None]

_rewriters: list[Any] = []
_kinds: set[type] = set()


def _substitutes(*op_classes: type) -> Callable[[Substitute], Any]:
    """Register a function that replaces nodes of some Ops, but not of their backend subclasses."""

    def register(substitute: Substitute) -> Any:
        @wraps(substitute)
        def of_these(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
            return substitute(fgraph, node) if type(node.op) in op_classes else None

        rewriter = node_rewriter(list(op_classes))(of_these)
        _rewriters.append(rewriter)
        _kinds.update(op_classes)
        return rewriter

    return register


#: oneDNN Ops that have the parameters of the abstract Op.
SAME_PARAMETERS: dict[type, type[OneDnnOp]] = {
    Conv: OneDnnConv,
    ConvGradInputs: OneDnnConvGradInputs,
    ConvGradWeights: OneDnnConvGradWeights,
    Pool: OneDnnPool,
    MaxPoolGrad: OneDnnMaxPoolGrad,
    MaxPoolGradGrad: OneDnnMaxPoolGradGrad,
    AveragePoolGrad: OneDnnAveragePoolGrad,
    SpatialTransformerGrid: OneDnnSpatialTransformerGrid,
    SpatialTransformerGridGrad: OneDnnSpatialTransformerGridGrad,
    SpatialTransformerSampler: OneDnnSpatialTransformerSampler,
    LRN: OneDnnLRN,
    LRNGrad: OneDnnLRNGrad,
    WindowSum: OneDnnWindowSum,
    DivisiveNormalization: OneDnnDivisiveNormalization,
    DivisiveNormalizationGrad: OneDnnDivisiveNormalizationGrad,
    Attention: OneDnnAttention,
    AttentionGrad: OneDnnAttentionGrad,
}
SOFTMAXES: dict[type, Callable[[Any, tuple[int, ...]], OneDnnOp]] = {
    WholeSoftmax: lambda op, axis: OneDnnSoftmax(axis, op.log),
    SoftmaxGrad: lambda op, axis: OneDnnSoftmaxGrad(axis),
    LogSoftmaxGrad: lambda op, axis: OneDnnLogSoftmaxGrad(axis),
}
BATCH_NORMALIZATIONS: dict[type, type[OneDnnOp]] = {
    BatchNormTrain: OneDnnBatchNormTrain,
    BatchNormTrainGrad: OneDnnBatchNormTrainGrad,
    BatchNormInference: OneDnnBatchNormInference,
}
#: oneDNN Ops that can overwrite an operand.
INPLACE: list[type[OneDnnOp]] = [
    OneDnnGemm,
    OneDnnActivation,
    OneDnnActivationGrad,
    OneDnnDropout,
    OneDnnDropoutGrad,
]
CROSS_ENTROPIES: dict[type, type[OneDnnOp]] = {
    CrossEntropy: OneDnnCrossEntropy,
    CrossEntropyGrad: OneDnnCrossEntropyGrad,
}
DROPOUTS: dict[type, type[OneDnnOp]] = {Dropout: OneDnnDropout, DropoutGrad: OneDnnDropoutGrad}
RECURRENT_NETWORKS: dict[type, type[OneDnnOp]] = {
    RNNForward: OneDnnRNNForward,
    RNNBackward: OneDnnRNNBackward,
}


@_substitutes(*SAME_PARAMETERS, *SOFTMAXES)
def local_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a float32 or float64 abstract Op with the oneDNN Op.

    float16 is computed in float32.
    """
    abstract = type(node.op)
    dtype = node.outputs[0].type.dtype
    op: OneDnnOp
    if abstract in SOFTMAXES:
        axis = neighboring_axes(node.op.axis, node.inputs[0].type.ndim)
        if axis is None:
            return None
        op = SOFTMAXES[abstract](node.op, axis)
    else:
        if node.inputs[0].type.ndim > MAX_NDIM:
            return None
        op = SAME_PARAMETERS[abstract].from_abstract(node.op)
    inputs: list[Any] = list(node.inputs)
    if dtype == "float16":
        inputs = [cast(x, "float32") if x.type.dtype == dtype else x for x in inputs]
        outputs = [
            cast(output, old.type.dtype)
            for output, old in zip(op.make_node(*inputs).outputs, node.outputs, strict=True)
        ]
    else:
        outputs = op.make_node(*inputs).outputs
    copy_stack_trace(node.outputs, outputs)
    return outputs


@_substitutes(*BATCH_NORMALIZATIONS)
def local_batchnorm_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a float32 or float64 batch normalization with the Op that uses dnnops loops."""
    x = node.inputs[0].type
    if x.dtype not in ("float32", "float64") or not has_neighboring_statistics(
        node.op.axes, x.ndim
    ):
        return None
    backend = BATCH_NORMALIZATIONS[type(node.op)]
    outputs = backend.from_abstract(node.op).make_node(*node.inputs).outputs
    copy_stack_trace(node.outputs, outputs)
    return outputs


@_substitutes(CTC)
def local_ctc_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a CTC loss with its CPU Op; float16 is computed in float32."""
    activations, *integers = node.inputs
    if activations.type.dtype == "float16":
        activations = cast(activations, "float32")
    outputs = OneDnnCTC.from_abstract(node.op).make_node(activations, *integers).outputs
    outputs = [cast(new, old.type.dtype) for new, old in zip(outputs, node.outputs, strict=True)]
    copy_stack_trace(node.outputs, outputs)
    return outputs


@_substitutes(*CROSS_ENTROPIES)
def local_cross_entropy_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a cross-entropy with its CPU Op; float16 is computed in float32."""
    inputs = [cast(x, "float32") if x.type.dtype == "float16" else x for x in node.inputs]
    backend = CROSS_ENTROPIES[type(node.op)]
    outputs = [
        cast(new, old.type.dtype) if new.type.dtype != old.type.dtype else new
        for new, old in zip(
            backend.from_abstract(node.op).make_node(*inputs).outputs, node.outputs, strict=True
        )
    ]
    copy_stack_trace(node.outputs, outputs)
    return outputs


@node_rewriter([Activation, ActivationGrad])
def local_activation_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace an activation with the oneDNN Op if that is faster."""
    op = onednn_activation(node)
    if op is None:
        return None
    output = op(*node.inputs)
    copy_stack_trace(node.outputs[0], output)
    return [output]


@_substitutes(*DROPOUTS)
def local_dropout_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace dropout with the Op that uses compiled loops; float16 is computed in float32."""
    backend = DROPOUTS[type(node.op)]
    x, *others = node.inputs
    if x.type.ndim > MAX_NDIM:
        return None
    dtype = x.type.dtype
    x = cast(x, "float32") if dtype == "float16" else x
    outputs = backend().make_node(x, *others).outputs
    if dtype == "float16":
        outputs = [cast(outputs[0], dtype), *outputs[1:]]
    copy_stack_trace(node.outputs, outputs)
    return outputs


@_substitutes(SpatialTransformerSamplerGrad)
def local_sampler_grad_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace the gradients of a sampler with one Op each, so that an unused one is dropped.

    float16 is computed in float32.
    """
    dtype = node.outputs[0].type.dtype
    inputs = [cast(x, "float32") for x in node.inputs] if dtype == "float16" else node.inputs
    outputs: list[Any] = []
    for op, output in zip(
        (OneDnnSpatialTransformerSamplerGradImage(), OneDnnSpatialTransformerSamplerGradGrid()),
        node.outputs,
        strict=True,
    ):
        found = op(*inputs)
        outputs.append(cast(found, dtype) if dtype == "float16" else found)
        copy_stack_trace(output, outputs[-1])
    return outputs


@_substitutes(*RECURRENT_NETWORKS)
def local_rnn_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a recurrent network with the oneDNN Op; float16 is computed in float32."""
    backend = RECURRENT_NETWORKS[type(node.op)]
    inputs = [cast(x, "float32") if x.type.dtype == "float16" else x for x in node.inputs]
    outputs = [
        cast(new, old.type.dtype) if new.type.dtype != old.type.dtype else new
        for new, old in zip(
            backend.from_abstract(node.op).make_node(*inputs).outputs, node.outputs, strict=True
        )
    ]
    copy_stack_trace(node.outputs, outputs)
    return outputs


@node_rewriter([Dot, Dot22, Gemm, Sum])
def local_dense_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a float32 matrix product or channel sum with an Op that uses oneDNN's threads."""
    if any(x.type.dtype != "float32" for x in (*node.inputs, *node.outputs)):
        return None
    if isinstance(node.op, Sum):
        ndim = node.inputs[0].type.ndim
        if (
            not 3 <= ndim <= MAX_NDIM
            or node.op.axis is None
            or sorted(node.op.axis) != [0, *range(2, ndim)]
        ):
            return None
        output = OneDnnChannelSum()(*node.inputs)
    elif isinstance(node.op, Gemm):
        output = OneDnnGemm(node.op.inplace)(*node.inputs)
    elif all(x.type.ndim == 2 for x in node.inputs):
        output = OneDnnDot()(*node.inputs)
    else:
        return None
    copy_stack_trace(node.outputs[0], output)
    return [output]


class ToOneDnn(GraphRewriter):
    """Apply this module's rewrites to graphs with Ops that they replace, if oneDNN is available."""

    def __init__(self) -> None:
        super().__init__()
        self._substitute = dfs_rewriter(*_rewriters, local_activation_to_onednn)
        self._substitute_beside = dfs_rewriter(local_dense_to_onednn, local_elemwise_activation)
        self._warned = False

    def apply(self, fgraph: FunctionGraph) -> None:
        if not any(
            type(node.op) in _kinds or onednn_activation(node) is not None
            for node in fgraph.apply_nodes
        ):
            return
        available, reason = onednn_available()
        if available:
            self._substitute.apply(fgraph)
            # Only next to other oneDNN Ops: on its own, PyTensor's BLAS is as fast, and graphs that
            # are not neural networks stay unchanged.
            if any(isinstance(node.op, OneDnnOp) for node in fgraph.apply_nodes):
                self._substitute_beside.apply(fgraph)
            return
        if "onednn" in config.optimizer_including.split(":"):
            raise DnnRequiredError(
                f"optimizer_including=onednn, but oneDNN cannot be used: {reason}"
            )
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"oneDNN cannot be used: neural-network Ops run as plain NumPy, slowly. {reason}",
                stacklevel=2,
            )


class RegisterNumbaDispatch(GraphRewriter):
    """Register the oneDNN Ops with Numba's linker before it compiles a graph.

    It changes no graph. It is a rewrite because rewrites tagged ``numba`` apply only to graphs for
    Numba's linker, so that other graphs don't have to import Numba.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        if any(isinstance(node.op, OneDnnOp) for node in fgraph.apply_nodes):
            import dnnops.cpu.numba_dispatch  # noqa: F401


@node_rewriter(INPLACE)
def local_onednn_inplace(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Let an Op overwrite one of its operands."""
    if node.op.inplace:
        return None
    props = {name: getattr(node.op, name) for name in node.op.__props__}
    outputs = type(node.op)(**props | {"inplace": True}).make_node(*node.inputs).outputs
    copy_stack_trace(node.outputs, outputs)
    return outputs
