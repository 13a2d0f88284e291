"""Put Ops on oneDNN in the place of abstract ones that stay on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from pytensor import config
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import (
    GraphRewriter,
    NodeProcessingGraphRewriter,
    copy_stack_trace,
    dfs_rewriter,
    node_rewriter,
)
from pytensor.tensor.basic import cast
from pytensor.tensor.blas import Dot22, Gemm
from pytensor.tensor.math import Dot, Sum

from dnnops.errors import DnnRequiredError
from dnnops.nnet.batchnorm import BatchNormInference, BatchNormTrain, BatchNormTrainGrad
from dnnops.nnet.conv import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.pool import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from dnnops.nnet.rnn_ops import RNNBackward, RNNForward
from dnnops.nnet.softmax import LogSoftmaxGrad, SoftmaxGrad, WholeSoftmax
from dnnops.onednn.base import OneDnnOp, onednn_available
from dnnops.onednn.batchnorm import (
    OneDnnBatchNormInference,
    OneDnnBatchNormTrain,
    OneDnnBatchNormTrainGrad,
    has_neighboring_statistics,
)
from dnnops.onednn.channel_sum import OneDnnChannelSum
from dnnops.onednn.conv import OneDnnConv, OneDnnConvGradInputs, OneDnnConvGradWeights
from dnnops.onednn.gemm import OneDnnDot, OneDnnGemm
from dnnops.onednn.pool import (
    OneDnnAveragePoolGrad,
    OneDnnMaxPoolGrad,
    OneDnnMaxPoolGradGrad,
    OneDnnPool,
)
from dnnops.onednn.rnn import OneDnnRNNBackward, OneDnnRNNForward
from dnnops.onednn.softmax import (
    OneDnnLogSoftmaxGrad,
    OneDnnSoftmax,
    OneDnnSoftmaxGrad,
    neighboring_axes,
)
from dnnops.runtime.op import MAX_NDIM

__all__ = ["local_to_onednn"]

#: What stays of an abstract Op's parameters makes the Op on oneDNN.
SAME_PARAMETERS: dict[type, type[OneDnnOp]] = {
    Conv: OneDnnConv,
    ConvGradInputs: OneDnnConvGradInputs,
    ConvGradWeights: OneDnnConvGradWeights,
    Pool: OneDnnPool,
    MaxPoolGrad: OneDnnMaxPoolGrad,
    MaxPoolGradGrad: OneDnnMaxPoolGradGrad,
    AveragePoolGrad: OneDnnAveragePoolGrad,
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
RECURRENT_NETWORKS: dict[type, type[OneDnnOp]] = {
    RNNForward: OneDnnRNNForward,
    RNNBackward: OneDnnRNNBackward,
}


@node_rewriter([*SAME_PARAMETERS, *SOFTMAXES])
def local_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace an abstract Op in float32 or float64 by the one on oneDNN.

    float16 is computed in float32.
    """
    abstract = type(node.op)
    dtype = node.outputs[0].type.dtype
    op: OneDnnOp
    if abstract in SOFTMAXES:
        axis = neighboring_axes(node.op.axis, node.inputs[0].type.ndim)
        if axis is None or dtype != "float32":
            return None
        op = SOFTMAXES[abstract](node.op, axis)
    elif abstract in SAME_PARAMETERS:
        op = SAME_PARAMETERS[abstract].from_abstract(node.op)
    else:  # a subclass: a backend Op already
        return None
    inputs: list[Any] = list(node.inputs)
    if dtype == "float16":
        inputs = [cast(x, "float32") if x.type.dtype == dtype else x for x in inputs]
        output = cast(op(*inputs), dtype)
    else:
        output = op(*inputs)
    copy_stack_trace(node.outputs[0], output)
    return [output]


@node_rewriter(list(BATCH_NORMALIZATIONS))
def local_batchnorm_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a float32 batch normalization by the one on oneDNN."""
    x = node.inputs[0].type
    backend = BATCH_NORMALIZATIONS.get(type(node.op))
    if (
        backend is None
        or x.dtype != "float32"
        or not has_neighboring_statistics(node.op.axes, x.ndim)
    ):
        return None
    outputs = backend.from_abstract(node.op).make_node(*node.inputs).outputs
    copy_stack_trace(node.outputs, outputs)
    return outputs


@node_rewriter(list(RECURRENT_NETWORKS))
def local_rnn_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace a recurrent network by the one on oneDNN; float16 is computed in float32."""
    backend = RECURRENT_NETWORKS.get(type(node.op))
    if backend is None:
        return None
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
    """Replace a float32 matrix product or sum of channels by one in oneDNN's threads."""
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
    """Apply the rewrites above to a graph that has something for it, if oneDNN can be used."""

    def __init__(self) -> None:
        super().__init__()
        self._substitute = dfs_rewriter(
            local_to_onednn, local_batchnorm_to_onednn, local_rnn_to_onednn
        )
        self._substitute_dense = dfs_rewriter(local_dense_to_onednn)
        self._warned = False

    def apply(self, fgraph: FunctionGraph) -> None:
        kinds = {*SAME_PARAMETERS, *SOFTMAXES, *BATCH_NORMALIZATIONS, *RECURRENT_NETWORKS}
        if not any(type(node.op) in kinds for node in fgraph.apply_nodes):
            return
        available, reason = onednn_available()
        if available:
            self._substitute.apply(fgraph)
            # Only beside other Ops on oneDNN: alone, the BLAS that PyTensor has does as well.
            if any(isinstance(node.op, OneDnnOp) for node in fgraph.apply_nodes):
                self._substitute_dense.apply(fgraph)
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
    """Tell Numba's linker about the Ops on oneDNN before it meets one.

    It changes no graph: it is a rewrite because only graphs for Numba's linker get those tagged
    ``numba``, so that other graphs need not wait for Numba's import.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        if any(isinstance(node.op, OneDnnOp) for node in fgraph.apply_nodes):
            import dnnops.onednn.numba_dispatch  # noqa: F401


@node_rewriter([OneDnnGemm])
def local_gemm_inplace(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Let a product overwrite what it is added to."""
    if node.op.inplace:
        return None
    output = OneDnnGemm(inplace=True)(*node.inputs)
    copy_stack_trace(node.outputs[0], output)
    return [output]


# After elementwise fusion and after graphs have moved to the GPU, before Ops become in-place.
optdb.register("to_onednn", ToOneDnn(), "fast_run", "onednn", position=49.3)
optdb.register("numba_dispatch_onednn", RegisterNumbaDispatch(), "numba", position=100.1)
# After PyTensor has made its own Gemm in-place, before it does so with elementwise Ops.
optdb.register(
    "onednn_gemm_inplace",
    dfs_rewriter(local_gemm_inplace, failure_callback=NodeProcessingGraphRewriter.warn_inplace),
    "fast_run",
    "onednn",
    "inplace",
    position=70.0,
)
