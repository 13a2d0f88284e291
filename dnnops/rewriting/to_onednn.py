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
    copy_stack_trace,
    dfs_rewriter,
    node_rewriter,
)
from pytensor.tensor.basic import cast
from pytensor.tensor.special import LogSoftmax, Softmax

from dnnops.errors import DnnUnavailableError
from dnnops.nnet.conv import Conv, ConvGradInputs, ConvGradWeights
from dnnops.nnet.pool import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool
from dnnops.nnet.softmax import LogSoftmaxGrad, SoftmaxGrad
from dnnops.onednn.base import OneDnnOp, onednn_available
from dnnops.onednn.conv import OneDnnConv, OneDnnConvGradInputs, OneDnnConvGradWeights
from dnnops.onednn.pool import (
    OneDnnAveragePoolGrad,
    OneDnnMaxPoolGrad,
    OneDnnMaxPoolGradGrad,
    OneDnnPool,
)
from dnnops.onednn.softmax import (
    OneDnnLogSoftmaxGrad,
    OneDnnSoftmax,
    OneDnnSoftmaxGrad,
    neighboring_axes,
)

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
SOFTMAXES: dict[type, Callable[[tuple[int, ...]], OneDnnOp]] = {
    Softmax: OneDnnSoftmax,
    LogSoftmax: lambda axis: OneDnnSoftmax(axis, log=True),
    SoftmaxGrad: OneDnnSoftmaxGrad,
    LogSoftmaxGrad: OneDnnLogSoftmaxGrad,
}


@node_rewriter([*SAME_PARAMETERS, *SOFTMAXES])
def local_to_onednn(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace an abstract Op in float32 or float64 by the one on oneDNN.

    float16 is computed in float32. A softmax in float64 stays PyTensor's, which is compiled.
    """
    abstract = type(node.op)
    dtype = node.outputs[0].type.dtype
    op: OneDnnOp
    if abstract in SOFTMAXES:
        axis = neighboring_axes(node.op.axis, node.inputs[0].type.ndim)
        if axis is None or dtype != "float32":
            return None
        op = SOFTMAXES[abstract](axis)
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


class ToOneDnn(GraphRewriter):
    """Apply `local_to_onednn` to a graph that has something for it, if oneDNN can be used."""

    def __init__(self) -> None:
        super().__init__()
        self._substitute = dfs_rewriter(local_to_onednn)
        self._warned = False

    def apply(self, fgraph: FunctionGraph) -> None:
        kinds = {*SAME_PARAMETERS, *SOFTMAXES}
        if not any(type(node.op) in kinds for node in fgraph.apply_nodes):
            return
        available, reason = onednn_available()
        if available:
            self._substitute.apply(fgraph)
            return
        if "onednn" in config.optimizer_including.split(":"):
            raise DnnUnavailableError(
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


# After elementwise fusion and after graphs have moved to the GPU, before Ops become in-place.
optdb.register("to_onednn", ToOneDnn(), "fast_run", "onednn", position=49.3)
optdb.register("numba_dispatch_onednn", RegisterNumbaDispatch(), "numba", position=100.1)
